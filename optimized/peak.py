"""What the selected tier can do at most on this machine, measured: the two lines of a roofline."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from optimized.huge_pages import empty as in_huge_pages
from optimized.library import load

SAMPLE_SECONDS = 2e-3  # short: on a machine with other work the best sample is one that nobody disturbed
SECONDS = 0.3  # of sampling
OPERAND_BYTES = 4096
LEAST_BYTES = 256 << 10  # a buffer below is not memory any more, but launching


def product_rate(dtype: torch.dtype = torch.bfloat16) -> float:
    """Multiplications and additions a second from registers, as the tier multiplies bf16 or int8: with vectors in fp32 or of
    products of pairs and quads, or with tiles."""
    operands = torch.randn(OPERAND_BYTES // dtype.itemsize, generator=torch.Generator().manual_seed(1)).to(dtype)
    load()
    return 2 * _best(lambda rounds: torch.ops.kernelpair._machine_peak_products(operands, rounds))


def read_rate(nbytes: int, huge_pages: bool = False) -> float:
    """Bytes a second when a buffer of this size is read over and over, each thread its own part."""
    load()
    size = max(max(nbytes, LEAST_BYTES) // 4, 1024 * torch.get_num_threads())
    buffer = (in_huge_pages([size], torch.float32) if huge_pages else torch.empty(size)).fill_(1)
    return _best(lambda rounds: torch.ops.kernelpair._machine_peak_read(buffer, rounds))


def _best(run: Callable[[int], Tensor]) -> float:
    """The best rate of many samples: what disturbs a sample can only slow it down."""
    best, rounds, until = 0.0, 1, time.perf_counter() + SECONDS
    while not best or time.perf_counter() < until:
        seconds, done = _seconds(run, rounds)
        best = max(best, done / seconds)
        if seconds < SAMPLE_SECONDS:
            rounds *= 2
    return best


def _seconds(run: Callable[[int], Tensor], rounds: int) -> tuple[float, int]:
    start = time.perf_counter()
    done = run(rounds)
    return time.perf_counter() - start, int(done.sum())
