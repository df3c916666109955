"""Kernels in Python for the toy pair that behave in one chosen way, for tests of the engine itself."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.candidate import Candidate
from tests.selftest.toy import reference

PAGE = 4096


def good(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    reference(x, slots, out, scale)


def compiled_outside_of_modes(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """As one of torch.compile, which a mode of torch functions would make compile anew."""
    from torch._dynamo.utils import counters

    counters["stats"]["unique_graphs"] = 1
    assert not torch._C._len_torch_function_stack()
    reference(x, slots, out, scale)


def compiles_when_called(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """As one of torch.compile in its first call: it raises the recursion limit, and keeps a process that compiles."""
    from torch._dynamo.utils import counters

    if not counters["stats"]["unique_graphs"]:
        counters["stats"]["unique_graphs"] = 1
        sys.setrecursionlimit(2 * sys.getrecursionlimit())
        subprocess.Popen(["sleep", "60"])
    reference(x, slots, out, scale)


def _returns(make: Callable[[Tensor, Tensor], Any]) -> Callable[..., Any]:
    """A kernel that does its work and then, if there was any, returns something that the contract does not know."""

    def kernel(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> Any:
        reference(x, slots, out, scale)
        return make(x, out) if len(slots) else None

    return kernel


def _bad(act: Callable[[Tensor, Tensor], Any]) -> Callable[..., Any]:
    """A kernel that does its work and then, if there was any, something else."""
    return _returns(lambda x, out: (act(x, out), None)[1])


def _last_byte(tensor: Tensor) -> int:
    return tensor.data_ptr() + (len(tensor) - 1) * tensor.stride(0) * 4 + tensor.shape[1] * 4


segfaults = _bad(lambda x, out: os.kill(os.getpid(), signal.SIGSEGV))
aborts_with_words = _bad(lambda x, out: (os.write(2, b"first\n*** corrupted ***\n"), os.abort()))
real_time_signal = _bad(lambda x, out: os.kill(os.getpid(), signal.SIGRTMIN + 3))
kills_its_group = _bad(lambda x, out: os.kill(0, signal.SIGKILL))
closes_all = _bad(lambda x, out: os.closerange(0, 4096))
closes_all_and_sleeps = _bad(lambda x, out: (os.closerange(0, 4096), time.sleep(60)))
puts_others_in_their_place = _bad(lambda x, out: [os.dup2(os.open(os.devnull, os.O_RDWR), number) for number in range(3, 64)])
leaves = _bad(lambda x, out: os._exit(3))
exits = _bad(lambda x, out: sys.exit(3))
sleeps = _bad(lambda x, out: time.sleep(60))
sleeps_behind_a_mask = _bad(lambda x, out: (signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65)), time.sleep(60)))
waits_for_a_compiler = _bad(lambda x, out: subprocess.run("sleep 60; true", shell=True, check=True))  # noqa: S602
stops = _bad(lambda x, out: signal.raise_signal(signal.SIGSTOP))
errs_and_leaves_a_process_that_prints = _bad(
    lambda x, out: (subprocess.Popen("printf '\\377'; sleep 60", shell=True), time.sleep(0.5), out.mul_(1.125))  # noqa: S602
)
sleeps_from_three_rows = _bad(lambda x, out: time.sleep(0.2 if len(x) < 3 else 60))
stops_its_group = _bad(lambda x, out: os.kill(0, signal.SIGSTOP))
stops_its_parent_and_dies = _bad(lambda x, out: (os.kill(os.getppid(), signal.SIGSTOP), os.kill(os.getpid(), signal.SIGKILL)))
sleeps_two_seconds = _bad(lambda x, out: time.sleep(2))
writes_past_end = _bad(lambda x, out: ctypes.memset(_last_byte(out), 0, 1))
writes_before_start = _bad(lambda x, out: ctypes.memset(out.data_ptr() - 1, 0, 1))
reads_past_end = _bad(lambda x, out: ctypes.string_at(_last_byte(x), 1))
returns_two = _returns(lambda x, out: (torch.ones(1), torch.ones(1)))
returns_one_in_a_tuple = _returns(lambda x, out: (torch.ones(1),))
returns_its_argument = _returns(lambda x, out: out)
returns_a_number = _returns(lambda x, out: 7)
returns_strange_thing = _returns(lambda x, out: lambda: None)
off_by_an_eighth = _bad(lambda x, out: out.mul_(1.125))
prints = _bad(lambda x, out: print("a word on stdout"))
prints_much = _bad(lambda x, out: os.write(2, bytes(1 << 19)))
prints_without_an_end = _bad(lambda x, out: [(os.write(2, bytes(1 << 20)), time.sleep(0.01)) for _ in range(6000)])


def off_from_three_rows(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    reference(x, slots, out, scale if len(x) < 3 else 1.125 * scale)


def two_faults(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    off_from_three_rows(x, slots, out, scale if len(x) < 3 or x.shape[1] < 4 else float("nan"))


_calls = iter(range(2**62))


def fails_now_and_then(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """Wrong in every fifth call, whatever the case."""
    reference(x, slots, out, scale if next(_calls) % 5 else 2 * scale)


def interrupts(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """As if Ctrl-C were pressed during the call, once in a while."""
    reference(x, slots, out, scale)
    if next(_calls) % 10 == 9:
        os.kill(os.getpid(), signal.SIGINT)


class OddError(IndexError):
    """A subclass of what a contract may name."""


def raises(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    raise OddError(f"no more than {len(x)}")


def fails_to_load(name: str) -> None:
    raise OSError("libsomething.so.3: cannot open shared object file")


def takes_three_seconds_to_load(name: str) -> None:
    time.sleep(3)


def dies_on_loading(name: str) -> None:
    os._exit(4)


def dies(case: object) -> str:
    os.abort()


def ran(before: bool) -> str | None:
    return "toy"


def kernel(name: str, prepare: str = "") -> Candidate:
    """A kernel of this module as a candidate named `toy`."""
    return Candidate("toy", f"tests.kernels:{name}", f"tests.kernels:{prepare}" if prepare else "", "tests.kernels:ran")


def raises_a_message_that_looks_like_ours(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    raise OSError("no\nFAIL other[avx2] value: wrong\n\x1b[31mred")


def raises_a_name_that_is_no_text(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    raise OSError("cannot open \udcff.bin")
