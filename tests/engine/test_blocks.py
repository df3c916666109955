"""Bytes around a result that the candidate allocated itself: those that its block has to spare, and the block's length."""

import ctypes
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.call import blocks, results
from kernelpair.call.blocks import written_around
from kernelpair.call.runner import InProcess, Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure
from kernelpair.trial.check import check
from tests.engine.test_results import PAIR, reference
from tests.selftest.toy import ToyCase

SPARED = (60, 61, 703, 4107, 200_013)  # sizes whose blocks have bytes to spare
CASE = ToyCase(rows=3, width=5)  # a result of 60 bytes

without_a_sanitizer = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer watches what is around blocks"
)


def _write(y: Tensor, first: int, count: int) -> None:
    ctypes.memset(y.data_ptr() + first, 1, count)


def one_past(x: Tensor, scale: float) -> dict[str, Any]:
    results = reference(x, scale)
    _write(results["y"], results["y"].nbytes, 1)
    return results


def just_before(x: Tensor, scale: float) -> dict[str, Any]:
    results = reference(x, scale)
    _write(results["y"], -4, 4)
    return results


def through_a_larger_storage(x: Tensor, scale: float) -> dict[str, Any]:
    whole = torch.empty(x.numel() + 3)
    whole[x.numel() :] = 1
    return reference(x, scale) | {"y": torch.mul(x, scale, out=whole[: x.numel()].view(x.shape))}


def failures(name: str) -> list[Failure]:
    candidate = Candidate("toy", f"{__file__}:{name}")
    with Isolated(candidate, preload=("properties.suite",)) as runner:
        return check(Subject(PAIR, candidate), CASE, runner).failures


@without_a_sanitizer
def test_a_byte_past_the_end_is_seen() -> None:
    (failure,) = failures("one_past")
    assert (failure.kind, failure.tensor) == ("untouched", "y")
    assert re.fullmatch(r"1 of the \d+ bytes behind its memory were written", failure.detail)


@without_a_sanitizer
def test_a_byte_before_the_beginning_is_seen() -> None:
    """Where glibc does not end the process first, at the next block that it hands out or takes back."""
    (failure,) = failures("just_before")
    assert failure.kind == "crash" or (failure.kind, failure.detail) == (
        "untouched", "the bytes just before its memory were written"
    )


@pytest.mark.parametrize("name", ["reference", "through_a_larger_storage"])
def test_what_lies_in_its_own_storage_is_no_failure(name: str) -> None:
    assert not failures(name)


@pytest.mark.parametrize("times", [1, 2])
def test_what_does_not_come_again_is_no_failure(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["something lay there"] * times
    monkeypatch.setattr(results, "written_around", lambda value: said.pop() if said else "")
    candidate = Candidate("toy", f"{__file__}:reference")
    with InProcess(candidate) as runner:
        found = check(Subject(PAIR, candidate), CASE, runner).failures
    assert [failure.kind for failure in found] == ["untouched"] * (times - 1)


def _take_blocks(seed: int) -> None:
    """Blocks of all sizes, given back in any order, beside others of which nothing is asked."""
    draw, kept, others = random.Random(seed), list[Tensor](), list[int]()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    for _ in range(10_000):
        sizes = (60, draw.randrange(1, 600), draw.randrange(1, 5000), draw.randrange(1, 300_000))
        block = torch.empty(draw.choices(sizes, (30, 30, 30, 1))[0], dtype=torch.uint8)
        if says := written_around(block):
            raise RuntimeError(f"{block.nbytes} bytes: {says}")
        block.zero_()
        kept.append(block)
        others.append(libc.malloc(draw.randrange(8, 3000)))
        while len(kept) > draw.randrange(1, 60):
            kept.pop(draw.randrange(len(kept)))
        while len(others) > draw.randrange(1, 60):
            libc.free(others.pop(draw.randrange(len(others))))


def many_sizes(x: Tensor, scale: float) -> dict[str, Any]:
    """Raises where a block seems to have been written around that was not, and where one that was is not seen."""
    if not blocks._filled():
        raise RuntimeError("the C library of this worker does not fill its blocks")
    with ThreadPoolExecutor(4) as threads:  # each of which has a heap of its own
        list(threads.map(_take_blocks, range(4)))
    for size in SPARED:
        block = torch.empty(size, dtype=torch.uint8)
        _write(block, size, 1)
        if not written_around(block):
            raise RuntimeError(f"{size} bytes: one behind them was written unseen")
    return reference(x, scale)


@without_a_sanitizer
def test_nothing_is_said_of_blocks_that_nobody_wrote_around() -> None:
    assert not failures("many_sizes")


def test_memory_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of the C library begins where such a tensor does."""
    monkeypatch.setattr(blocks, "_filled", lambda: True)  # this process was not started like a worker
    assert not written_around(torch.frombuffer(bytearray(64), dtype=torch.uint8, offset=8))
    assert not written_around(torch.empty(0)) and not written_around(torch.empty(3, device="meta"))
    assert not written_around(torch.empty(3).share_memory_())


def unknown_fills(x: Tensor, scale: float) -> dict[str, Any]:
    """Raises where the fill of a process is not known and yet looked for."""
    known, tunables = os.environ["MALLOC_PERTURB_"], os.environ["GLIBC_TUNABLES"]
    for fill, expected in ((known, True), ("", False), ("x", False), ("-1", False), ("7", False)):
        os.environ["MALLOC_PERTURB_"] = fill
        for each in (blocks._fills, blocks._filled):
            each.cache_clear()
        if blocks._filled() != expected:
            raise RuntimeError(f"MALLOC_PERTURB_={fill!r} where blocks are filled with {known}")
    os.environ |= {"MALLOC_PERTURB_": known, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}
    blocks._filled.cache_clear()
    if blocks._filled():
        raise RuntimeError("blocks of a thread's cache are not filled")
    os.environ["GLIBC_TUNABLES"] = tunables
    return reference(x, scale)


@without_a_sanitizer
def test_without_a_known_fill_nothing_is_said() -> None:
    assert not failures("unknown_fills")
