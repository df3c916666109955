"""Memory that the candidate has from torch: accesses past it and after it was freed fault, writes just around it are seen."""

import ctypes
import os
import platform
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.call import results, torch_memory
from kernelpair.call.runner import InProcess, Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure
from kernelpair.trial.check import check
from tests.engine.test_results import PAIR, reference
from tests.selftest.toy import ToyCase

CASE = ToyCase(rows=3, width=5)  # a result of 60 bytes
PAST = "memory past the end of a tensor that the call allocated, or of one that it has freed"

pytestmark = [
    pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer watches what is around blocks"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the C library gives torch its memory here"),
]


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


def far_past(x: Tensor, scale: float) -> dict[str, Any]:
    results = reference(x, scale)
    _write(results["y"], results["y"].nbytes, 5)
    return results


def reads_past(x: Tensor, scale: float) -> dict[str, Any]:
    scratch = torch.empty(100)
    ctypes.string_at(scratch.data_ptr(), 449)  # 400, up to 64: 448
    return reference(x, scale)


def reads_what_is_freed(x: Tensor, scale: float) -> dict[str, Any]:
    address = torch.empty(100).data_ptr()
    ctypes.string_at(address, 4)
    return reference(x, scale)


def one_past_scratch(x: Tensor, scale: float) -> dict[str, Any]:
    _write(torch.empty(25), 100, 1)
    return reference(x, scale)


def second_past_scratch_of_a_thread(x: Tensor, scale: float) -> dict[str, Any]:
    thread = threading.Thread(target=lambda: _write(torch.empty(25), 101, 1))
    thread.start()
    thread.join()
    return reference(x, scale)


def just_before_scratch(x: Tensor, scale: float) -> dict[str, Any]:
    _write(torch.empty(25), -1, 1)
    return reference(x, scale)


def over_what_stands_before_scratch(x: Tensor, scale: float) -> dict[str, Any]:
    _write(torch.empty(25), -64, 8)
    return reference(x, scale)


def through_a_larger_storage(x: Tensor, scale: float) -> dict[str, Any]:
    whole = torch.empty(x.numel() + 3)
    whole[x.numel() :] = 1
    return reference(x, scale) | {"y": torch.mul(x, scale, out=whole[: x.numel()].view(x.shape))}


def failures(name: str) -> list[Failure]:
    candidate = Candidate("toy", f"{__file__}:{name}")
    with Isolated(candidate, preload=("properties.suite",)) as runner:
        return check(Subject(PAIR, candidate), CASE, runner).failures


def test_a_byte_past_the_end_is_seen() -> None:
    (failure,) = failures("one_past")
    assert (failure.kind, failure.tensor) == ("untouched", "y")
    assert failure.detail == "1 of the 4 bytes behind its memory were written"


def test_a_byte_before_the_beginning_is_seen() -> None:
    (failure,) = failures("just_before")
    assert (failure.kind, failure.tensor) == ("untouched", "y")
    assert failure.detail == "the bytes just before its memory were written"


@pytest.mark.parametrize(
    ("name", "access"), [("far_past", "writes"), ("reads_past", "reads"), ("reads_what_is_freed", "reads")]
)
def test_further_off_and_afterwards_it_faults(name: str, access: str) -> None:
    (failure,) = failures(name)
    assert failure.kind == "crash"
    assert re.match(f"SIGSEGV: {access} {PAST}", failure.detail)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("one_past_scratch", "just past the end of"),
        ("second_past_scratch_of_a_thread", "1 byte past the end of"),
        ("just_before_scratch", "just before"),
        ("over_what_stands_before_scratch", "just before"),
    ],
)
def test_what_is_written_around_scratch_is_seen(name: str, place: str) -> None:
    (failure,) = failures(name)
    assert (failure.kind, failure.tensor) == ("untouched", "")
    assert failure.detail == f"memory {place} a tensor of 100 bytes was written, which the call allocated and freed"


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


def _take(seed: int) -> None:
    """Pieces of all sizes, filled to their last byte and given back in any order."""
    draw, kept = random.Random(seed), list[Tensor]()
    for _ in range(2_000):
        sizes = (60, draw.randrange(1, 600), draw.randrange(1, 5000), draw.randrange(1, 300_000))
        piece = torch.empty(draw.choices(sizes, (30, 30, 30, 1))[0], dtype=torch.uint8)
        if set(piece.tolist()) != {torch_memory.filled_with()}:
            raise RuntimeError(f"{piece.nbytes} bytes that nobody has filled")
        kept.append(piece.fill_(seed))
        while len(kept) > draw.randrange(1, 60):
            given_back = kept.pop(draw.randrange(len(kept)))
            if not bool((given_back == seed).all()):
                raise RuntimeError(f"{given_back.nbytes} bytes that somebody else has filled")


def many_sizes(x: Tensor, scale: float) -> dict[str, Any]:
    """Raises where pieces overlap, or where one does not come from there, or is not given back."""
    before = torch_memory.held()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_take, range(4)))
    if torch_memory.held() != before:
        raise RuntimeError(f"{torch_memory.held()} bytes are held, {before} were")
    if not torch_memory.belongs(torch.empty(1).data_ptr()):
        raise RuntimeError("torch has its memory from elsewhere")
    return reference(x, scale)


def test_nothing_is_said_of_memory_that_nobody_wrote_around() -> None:
    assert not failures("many_sizes")


def test_memory_of_others_is_left_alone() -> None:
    torch_memory.install()
    assert not torch_memory.written_around(torch.frombuffer(bytearray(64), dtype=torch.uint8, offset=8))
    assert not torch_memory.written_around(torch.empty(0)) and not torch_memory.written_around(torch.empty(3, device="meta"))
    assert not torch_memory.written_around(torch.empty(3))
    with torch_memory.given():
        assert torch_memory.belongs(torch.empty(3).data_ptr())
    assert not torch_memory.belongs(torch.empty(3).data_ptr())


@pytest.mark.parametrize(("perturb", "filled"), [("7", 248), ("", 126), ("x", 126), ("-1", 126)])
def test_the_fill_is_the_c_librarys(perturb: str, filled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", perturb)
    monkeypatch.setattr(torch_memory, "_installed", [])
    assert torch_memory.filled_with() == filled
