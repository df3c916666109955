"""Kernels that touch what the harness itself works with, and answers that no kernel should give: all is the kernel's fault."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.call import runner as running
from kernelpair.call.fork_server import ServerGone
from kernelpair.call.memory import Arena
from kernelpair.call.runner import GARBLES, Isolated
from kernelpair.call.system import BEGINNING, END
from kernelpair.call.whereabouts import asked
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.trial.check import check
from tests.selftest.side_effects import PAIR, RESULT, reference
from tests.selftest.toy import ToyCase

CASE = ToyCase(rows=3, width=5)
Kernel = Callable[[Tensor, float], Any]


def _returns(make: Callable[[Tensor], Any]) -> Kernel:
    return lambda x, scale: make(reference(x, scale))


def _does(act: Callable[[], object]) -> Kernel:
    """A kernel that, where there are three rows, also does something else."""
    return lambda x, scale: (reference(x, scale), act() if len(x) == 3 else None)[0]


def _raises(error: BaseException) -> Kernel:
    def kernel(x: Tensor, scale: float) -> Tensor:
        raise error

    return kernel


def _into_sockets(content: bytes) -> None:
    for descriptor in range(3, 64):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, content)


def _empty_files() -> None:
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.ftruncate(descriptor, 0)


def _without_memory(y: Tensor) -> Tensor:
    y.untyped_storage().resize_(0)
    return y


class _Speechless(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("nor this")


class _Quiet(BaseException):
    pass


class _Lies(Tensor):
    @classmethod
    def __torch_function__(cls, *arguments: Any, **named: Any) -> Any:
        return "anything"


class _EndsWhoReadsIt(list[int]):
    def __reduce__(self) -> Any:
        return os._exit, (5,)


class _Name(str):
    pass


good: Kernel = reference
writes_a_message = _does(lambda: _into_sockets(b"\0\0\0\5hello"))
announces_a_message = _does(lambda: _into_sockets(b"\0\xff\xff\xff"))
announces_a_huge_message = _does(lambda: _into_sockets(b"\x7f\xff\xff\xff"))
writes_zeros = _does(lambda: _into_sockets(bytes(64)))
empties_files = _does(_empty_files)
comes_back_twice = _does(os.fork)
raises_without_words = _raises(_Speechless())
raises_at_length = _raises(ValueError("a" * 10_000_000 + "the end"))
raises_for_a_terminal = _raises(ValueError("a\x1b[31m\0b"))
raises_turned_round = _raises(ValueError("a\u202eb\u2028c"))
raises_no_exception = _raises(_Quiet("x"))
raises_an_interrupt = _raises(KeyboardInterrupt())
result_without_memory = _returns(_without_memory)
result_of_a_terabyte = _returns(lambda y: torch.zeros(1).expand(1 << 36))
result_on_meta = _returns(lambda y: y.to("meta"))
result_that_is_sparse = _returns(lambda y: y.to_sparse())
result_that_is_nested = _returns(lambda y: torch.nested.nested_tensor([y, y]))
result_that_lies = _returns(lambda y: y.as_subclass(_Lies))
result_that_ends_its_reader = _returns(lambda y: _EndsWhoReadsIt())
result_without_an_end = _returns(lambda y: 10**100_000)
result_with_a_function = _returns(lambda y: [lambda: None])
result_with_a_number_for_a_name = _returns(lambda y: {1: y})
result_with_an_odd_name = _returns(lambda y: {_Name(RESULT): y})

TOLD = {
    "writes_a_message": ("crash", GARBLES),
    "announces_a_message": ("crash", GARBLES),
    "announces_a_huge_message": ("crash", GARBLES),
    "writes_zeros": ("crash", GARBLES),
    "raises_without_words": ("exception", "_Speechless: (its message cannot be read, which raises RuntimeError)"),
    "raises_for_a_terminal": ("exception", r"ValueError: a\x1b[31m\x00b"),
    "raises_turned_round": ("exception", r"ValueError: a\u202eb\u2028c"),
    "raises_no_exception": ("exception", "_Quiet: x"),
    "raises_an_interrupt": ("exception", "KeyboardInterrupt: "),
    "result_without_memory": ("exception", "result y of shape [3, 5] reaches beyond its storage"),
    "result_of_a_terabyte": ("exception", "result y of shape [68719476736] takes 262144 MiB, more than any result may"),
    "result_on_meta": ("exception", "result y is no dense tensor on the CPU, but torch.strided on meta"),
    "result_that_is_sparse": ("exception", "result y is no dense tensor on the CPU, but torch.sparse_coo on cpu"),
    "result_that_is_nested": ("exception", "result y is no dense tensor on the CPU, but nested"),
    "result_that_lies": ("result_form", "the result is a _Lies, a subclass of Tensor"),
    "result_that_ends_its_reader": ("layout", "[], expected a tensor"),
    "result_without_an_end": ("exception", "result y is a whole number of 332,193 bits, more than any result has"),
    "result_with_a_function": ("exception", "result an item of y is a function, not a tensor or a plain value"),
    "result_with_a_number_for_a_name": ("exception", "the call returned a mapping with a int among its names"),
    "result_with_an_odd_name": ("exception", "the call returned a mapping with a _Name among its names"),
}


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Verdict]]:
    """Judges a case with a kernel of this module, each case of a test in the same runner."""
    monkeypatch.setattr(running, "MESSAGE_SECONDS", 0.5)
    runners: list[Isolated] = []

    def judged(name: str, case: ToyCase = CASE) -> Verdict:
        candidate = Candidate("toy", f"{__file__}:{name}")
        if not runners:
            runners.append(Isolated(candidate, preload=("properties.suite",)))
        return check(Subject(PAIR, candidate), case, runners[0])

    yield judged
    for runner in runners:
        runner.close()


def _is_gone(seconds: float) -> None:
    raise ServerGone


@pytest.mark.parametrize("gone", [False, True])
def test_a_call_that_is_asked_where_it_is_may_write_any_amount_and_end_its_server(gone: bool) -> None:
    log, process = os.memfd_create("log"), subprocess.Popen(["sleep", "60"])
    try:
        ended = _is_gone if gone else lambda seconds: os.ftruncate(log, 1 << 40)
        assert asked(process.pid, Arena.create(1 << 20), log, ended) == "" and os.fstat(log).st_size == 0
    finally:
        os.close(log)
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", TOLD)
def test_it_is_told_as_the_kernels_fault(verdict: Callable[..., Verdict], name: str) -> None:
    kind, says = TOLD[name]
    (failure,) = verdict(name).failures
    assert failure.kind == kind and says in failure.detail


def test_a_long_message_is_told_by_its_beginning_and_its_end(verdict: Callable[..., Verdict]) -> None:
    (failure,) = verdict("raises_at_length").failures
    assert len(failure.detail) < BEGINNING + END + 200 and "the end" in failure.detail and "10,000,007" in failure.detail


def test_the_arena_cannot_be_taken_from_the_judge(verdict: Callable[..., Verdict]) -> None:
    assert verdict("empties_files").passed


def test_a_kernel_that_forks_and_comes_back_twice_answers_once(verdict: Callable[..., Verdict]) -> None:
    for seed in range(8):
        assert verdict("comes_back_twice", replace(CASE, seed=seed)).passed
        assert verdict("comes_back_twice", replace(CASE, rows=2, seed=seed)).passed
    (failure,) = verdict("comes_back_twice", replace(CASE, trial="aftermath")).failures
    assert (failure.kind, failure.tensor) == ("left_behind", "processes")
