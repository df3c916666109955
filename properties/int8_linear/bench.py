"""int8_linear: what is timed."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.int8_linear.cases import Int8Case
from reference.pack_int8_weight import pack_int8_weight, unpack_int8_weight

LLAMA_3_8B = ((4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336))  # N, K of its projections
ROWS = (1, 16, 64, 256, 1024)


def _inputs(M: int, N: int, K: int) -> Inputs:
    data, sums = pack_int8_weight(torch.randint(-128, 128, (N, K), dtype=torch.int8))
    x = torch.randn(M, K, dtype=torch.bfloat16)
    w_scale = torch.full((N,), 1e-3)
    weight: Inputs = {"data": data, "sums": sums, "N": N, "K": K, "w_scale": w_scale}
    return {"form": "linear", "x": x, **weight, "bias": None, "symmetric": True}


def _torch_linear(given: Inputs) -> Callable[[], object]:
    """The layer in bf16, with the weight dequantized once: what quantizing is to be faster than."""
    weight = unpack_int8_weight(given["data"], given["N"], given["K"]) * given["w_scale"][:, None]
    dense = weight.to(torch.bfloat16)
    return lambda: torch.nn.functional.linear(given["x"], dense)


def _row(M: int, N: int, K: int) -> BenchRow:
    return BenchRow(
        f"{M} x {N} x {K}",
        lambda: _inputs(M, N, K),
        flops=2.0 * M * N * K,
        bytes=1.0 * N * K + 2.0 * M * (N + K),
        peers={"torch": _torch_linear},
        alone=True,
    )


BENCH = Bench(
    rows=[_row(M, N, K) for N, K in LLAMA_3_8B for M in ROWS],
    case=Int8Case(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024),
    memory="kept between calls: a copy of at most 1,024 rows of x in bytes (two for each on vectors without VNNI), with the sums "
    "of 128 rows between slices of K (tiles); in each thread 0.8 MiB for the sums that wait (vectors)",
)
