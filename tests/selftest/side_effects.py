"""Kernels that compute what they should and leave their process, an argument or a result other than they may."""

import ctypes
import gc
import locale
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Cases, Inputs, NotFuzzed, Pair, Signature, Within
from kernelpair.contract.subject import Subject
from tests.selftest.toy import LAYOUTS, ROUNDOFF, ToyCase, inputs, library, strategy

RESULT = "y"


def reference(x: Tensor, scale: float) -> Tensor:
    """`scale * x`, a new tensor."""
    return scale * x


def _inputs(case: ToyCase) -> Inputs:
    given = inputs(case)
    return {"x": given["x"], "scale": given["scale"]}


PAIR = Pair(
    name="scaled",
    reference=reference,
    optimized=reference,
    cases=Cases(type=ToyCase, version=1, strategy=strategy().filter(lambda case: "out" not in case.layout), inputs=_inputs),
    signature=Signature(results=(RESULT,), layouts={"x": LAYOUTS["x"]}),
    truth=Within(lambda case, given, truth: {RESULT: ROUNDOFF * truth[RESULT].abs()}),
    fuzz=NotFuzzed("its reference checks nothing"),
)


def _leaving(act: Callable[[Tensor, Tensor], Any]) -> Callable[..., Any]:
    """A kernel that, if there are rows, does something else beside its work; what that returns is the result if it is one."""

    def kernel(x: Tensor, scale: float) -> Tensor:
        result = reference(x, scale)
        made = act(x, result) if x.numel() else None
        return made if isinstance(made, Tensor) else result

    return kernel


def _sets(name: str, value: int) -> Callable[..., Any]:
    return _leaving(lambda x, y: getattr(library(), name)(value))


_kept: list[Any] = []
_calls = count()
_buffer = torch.zeros(4096)
ROUND_DOWN, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, NO_INVALID_MASK, NO_MASKS = 1 << 13, 1 << 6, 1 << 15, 1 << 7, 0x3F << 7
USUAL = 0x1F80
DOUBLE_X87, UNMASKED_X87, USUAL_X87 = 0x027F, 0x0340, 0x037F
CLONE = 56  # the number of the system call on x86-64
LC_NUMERIC_MASK = 1 << locale.LC_NUMERIC


def _thread(run: Callable[[], Any]) -> None:
    threading.Thread(target=run, daemon=True).start()


def _child() -> None:
    if not os.fork():
        time.sleep(100)
        os._exit(0)


def _spin() -> None:
    while True:
        pass


def _spin_once() -> None:
    if not _kept:
        _kept.append(True)
        _thread(_spin)


def _static(y: Tensor) -> Tensor:
    found = _buffer[: y.numel()].view(y.shape)
    found.copy_(y)
    return found


def _in_large_storage(y: Tensor) -> Tensor:
    large = torch.empty(1 << 20)[: y.numel()].view(y.shape)
    large.copy_(y)
    return large


def _kill_judge() -> None:
    os.kill(os.getppid(), signal.SIGKILL)


def _leak() -> None:
    allocate = ctypes.CDLL(None).malloc
    allocate.restype = ctypes.c_void_p
    ctypes.memset(allocate(100 << 20), 1, 1)


_allocate = ctypes.CDLL(None).malloc
_allocate.restype = ctypes.c_void_p


def _leak_a_little() -> None:
    _allocate(24)


def _leak_mapping() -> None:
    _kept.append(mmap.mmap(-1, 100 << 20))


def _set_thread_locale() -> None:
    """Each time another one than the last, for this thread alone."""
    use = ctypes.CDLL(None).uselocale
    use.argtypes = (ctypes.c_void_p,)
    use(_locale_number(next(_calls) % 2))


@cache
def _locale_number(which: int) -> Any:
    make = ctypes.CDLL(None).newlocale
    make.restype = ctypes.c_void_p
    return make(LC_NUMERIC_MASK, b"C.UTF-8", None)


def _sets_in_pool(mxcsr: int, x87: int) -> Callable[..., Any]:
    return _leaving(lambda x, y: library().set_fp_in_pool(mxcsr, x87))


def _resize(x: Tensor) -> None:
    """Other storage of more bytes, of which the tensor sees what it saw."""
    x.set_(torch.zeros(1 << 20).untyped_storage(), 0, x.shape, x.stride())


def _cycle() -> None:
    """What Python frees some calls later."""
    ring: list[object] = [bytearray(1 << 16)]
    ring.append(ring)


def _ignore(number: int) -> None:
    handle = ctypes.CDLL(None).signal
    handle.restype = ctypes.c_void_p
    handle(number, ctypes.c_void_p(1))


def _set_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def _enter_mode() -> None:
    _kept.append(torch.overrides.BaseTorchFunctionMode())
    _kept[-1].__enter__()


def _filter_warnings() -> None:
    warnings.filterwarnings("ignore", message=f"number {next(_calls)}")


def _silence_numpy() -> None:
    np.seterr(over="warn" if np.geterr()["over"] == "ignore" else "ignore")


def _close_stderr() -> None:
    with suppress(OSError):
        os.close(2)


def _leave_folder() -> None:
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())


def _child_that_sends_no_signal() -> None:
    if not ctypes.CDLL(None).syscall(CLONE, 0, 0, 0, 0, 0):
        time.sleep(100)
        os._exit(0)


rounds_down = _sets("set_mxcsr", USUAL | ROUND_DOWN)
flushes_to_zero = _sets("set_mxcsr", USUAL | FLUSH_TO_ZERO)
takes_denormals_for_zero = _sets("set_mxcsr", USUAL | DENORMALS_ARE_ZERO)
unmasks_exceptions = _sets("set_mxcsr", USUAL & ~NO_INVALID_MASK)
unmasks_all_exceptions = _sets("set_mxcsr", USUAL & ~NO_MASKS)
sets_x87_word = _sets("set_x87", DOUBLE_X87)
unmasks_x87_exceptions = _sets("set_x87", UNMASKED_X87)
rounds_down_in_pool = _sets_in_pool(USUAL | ROUND_DOWN, USUAL_X87)
flushes_to_zero_in_pool = _sets_in_pool(USUAL | FLUSH_TO_ZERO, USUAL_X87)
takes_denormals_for_zero_in_pool = _sets_in_pool(USUAL | DENORMALS_ARE_ZERO, USUAL_X87)
unmasks_exceptions_in_pool = _sets_in_pool(USUAL & ~NO_INVALID_MASK, USUAL_X87)
sets_x87_word_in_pool = _sets_in_pool(USUAL, DOUBLE_X87)
sets_threads = _leaving(lambda x, y: torch.set_num_threads(torch.get_num_threads() + 1))
sets_default_dtype = _leaving(lambda x, y: torch.set_default_dtype(torch.float64))
sets_deterministic = _leaving(lambda x, y: torch._C._set_deterministic_algorithms(True))
sets_matmul_precision = _leaving(lambda x, y: torch.set_float32_matmul_precision("medium"))
sets_default_device = _leaving(lambda x, y: torch.set_default_device("meta"))
sets_grad_mode = _leaving(lambda x, y: torch._C._set_grad_enabled(not torch.is_grad_enabled()))
sets_inference_mode = _leaving(lambda x, y: _kept.append(torch._C._InferenceMode(True)))
sets_autocast = _leaving(lambda x, y: torch.set_autocast_enabled("cpu", not torch.is_autocast_enabled("cpu")))
sets_recursion_limit = _leaving(lambda x, y: sys.setrecursionlimit(sys.getrecursionlimit() + 1))
draws_from_torch = _leaving(lambda x, y: torch.rand(1).sum() and None)
seeds_torch = _leaving(lambda x, y: (torch.manual_seed(5), None)[1])
seeds_numpy = _leaving(lambda x, y: np.random.seed(5))
seeds_random = _leaving(lambda x, y: random.seed(5))
draws_from_numpy = _leaving(lambda x, y: (np.random.rand(), None)[1])
draws_from_random = _leaving(lambda x, y: (random.random(), None)[1])
changes_folder = _leaving(lambda x, y: os.chdir("/" if os.getcwd() != "/" else "/proc"))
changes_umask = _leaving(lambda x, y: os.umask(0o055 if os.umask(0) != 0o055 else 0o022))
changes_environment = _leaving(lambda x, y: os.environ.update(A_KERNEL=os.environ.get("A_KERNEL", "") + "x"))
changes_c_environment = _leaving(lambda x, y: ctypes.CDLL(None).setenv(b"A_KERNEL", b"%d" % (next(_calls) % 2), 1))
changes_locale = _leaving(lambda x, y: (locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), None)[1])
changes_thread_locale = _leaving(lambda x, y: _set_thread_locale())
changes_signal_handler = _leaving(lambda x, y: _ignore(signal.SIGUSR1))
changes_signal_mask = _leaving(lambda x, y: (signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]), None)[1])
changes_alternative_stack = _leaving(lambda x, y: library().set_alternative_stack())
switches_onednn_off = _leaving(lambda x, y: torch._C._set_mkldnn_enabled(not torch._C._get_mkldnn_enabled()))
enters_mode = _leaving(lambda x, y: _enter_mode())
silences_numpy = _leaving(lambda x, y: _silence_numpy())
filters_warnings = _leaving(lambda x, y: _filter_warnings())
stops_garbage_collector = _leaving(lambda x, y: gc.disable())
takes_one_processor = _leaving(lambda x, y: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
lowers_priority = _leaving(lambda x, y: (os.nice(1), None)[1])
sets_limit = _leaving(lambda x, y: _set_limit())
leaves_timer = _leaving(lambda x, y: (signal.setitimer(signal.ITIMER_REAL, 1000.0), None)[1])
closes_stderr = _leaving(lambda x, y: _close_stderr())
leaves_folder_that_is_gone = _leaving(lambda x, y: _leave_folder())
leaves_child_without_signal = _leaving(lambda x, y: _child_that_sends_no_signal())
leaves_thread = _leaving(lambda x, y: _thread(lambda: time.sleep(100)))
leaves_spinning_thread = _leaving(lambda x, y: _spin_once())
leaves_process = _leaving(lambda x, y: _child())
leaves_orphan = _leaving(lambda x, y: (subprocess.run("sleep 100 & ", shell=True, check=True), None)[1])  # noqa: S602
leaves_descriptor = _leaving(lambda x, y: (os.dup(0), None)[1])
leaves_temporary_file = _leaving(lambda x, y: (tempfile.mkstemp(), None)[1])
leaves_the_same_file = _leaving(lambda x, y: (Path(tempfile.gettempdir(), "same").write_text("x"), None)[1])
leaks = _leaving(lambda x, y: _leak())
leaks_a_little = _leaving(lambda x, y: _leak_a_little())
leaks_mapping = _leaving(lambda x, y: _leak_mapping())
cyclic_garbage = _leaving(lambda x, y: _cycle())
static_buffer = _leaving(lambda x, y: _static(y))
result_requires_grad = _leaving(lambda x, y: y.requires_grad_())
result_of_a_subclass = _leaving(lambda x, y: torch.nn.Parameter(y, requires_grad=False))
result_with_conj_bit = _leaving(lambda x, y: torch.complex(y, y).conj())
result_with_neg_bit = _leaving(lambda x, y: torch._neg_view(-y))
result_in_large_storage = _leaving(lambda x, y: _in_large_storage(y))
argument_of_other_dtype = _leaving(lambda x, y: setattr(x, "data", x.to(torch.float64)))
argument_requires_grad = _leaving(lambda x, y: (x.requires_grad_(), None)[1])
argument_in_other_storage = _leaving(lambda x, y: _resize(x))
argument_in_larger_storage = _leaving(lambda x, y: setattr(x, "data", torch.zeros(1 << 20)[: x.numel()].view(x.shape)))
kills_its_parent = _leaving(lambda x, y: _kill_judge())
kills_its_group = _leaving(lambda x, y: os.kill(0, signal.SIGKILL))
good = reference

FAULTS = {
    "rounds_down": "fp_state",
    "flushes_to_zero": "fp_state",
    "takes_denormals_for_zero": "fp_state",
    "unmasks_exceptions": "fp_state",
    "unmasks_all_exceptions": "fp_state",
    "sets_x87_word": "fp_state",
    "unmasks_x87_exceptions": "fp_state",
    "rounds_down_in_pool": "fp_state",
    "flushes_to_zero_in_pool": "fp_state",
    "takes_denormals_for_zero_in_pool": "fp_state",
    "unmasks_exceptions_in_pool": "fp_state",
    "sets_x87_word_in_pool": "fp_state",
    "flushes_when_loaded": "fp_state",
    "sets_threads": "settings",
    "sets_default_dtype": "settings",
    "sets_deterministic": "settings",
    "sets_matmul_precision": "settings",
    "sets_default_device": "settings",
    "sets_grad_mode": "settings",
    "sets_inference_mode": "settings",
    "sets_autocast": "settings",
    "sets_recursion_limit": "settings",
    "draws_from_torch": "settings",
    "seeds_torch": "settings",
    "seeds_numpy": "settings",
    "seeds_random": "settings",
    "draws_from_numpy": "settings",
    "draws_from_random": "settings",
    "changes_folder": "settings",
    "changes_umask": "settings",
    "changes_environment": "settings",
    "changes_c_environment": "settings",
    "changes_locale": "settings",
    "changes_thread_locale": "settings",
    "changes_signal_handler": "settings",
    "changes_signal_mask": "settings",
    "changes_alternative_stack": "settings",
    "switches_onednn_off": "settings",
    "enters_mode": "settings",
    "silences_numpy": "settings",
    "filters_warnings": "settings",
    "stops_garbage_collector": "settings",
    "lowers_priority": "settings",
    "sets_limit": "settings",
    "leaves_timer": "settings",
    "closes_stderr": "settings",
    "leaves_folder_that_is_gone": "settings",
    "leaves_child_without_signal": "left_behind",
    "leaves_thread": "left_behind",
    "leaves_spinning_thread": "left_behind",
    "leaves_process": "left_behind",
    "leaves_orphan": "left_behind",
    "leaves_descriptor": "left_behind",
    "leaves_temporary_file": "left_behind",
    "leaves_the_same_file": "left_behind",
    "leaks": "leak",
    "leaks_a_little": "leak",
    "leaks_mapping": "leak",
    "static_buffer": "overwritten",
    "result_requires_grad": "result_form",
    "result_of_a_subclass": "result_form",
    "result_with_conj_bit": "result_form",
    "result_with_neg_bit": "result_form",
    "result_in_large_storage": "result_form",
    "argument_of_other_dtype": "argument_form",
    "argument_requires_grad": "argument_form",
    "argument_in_other_storage": "argument_form",
    "argument_in_larger_storage": "argument_form",
    "kills_its_parent": "kills_parent",
    "kills_its_group": "kills_parent",
}
"""Kernel -> the kind of failure that it must be reported as."""
if len(os.sched_getaffinity(0)) > 1:
    FAULTS["takes_one_processor"] = "settings"


def flush_to_zero(name: str) -> None:
    """What a library compiled with -ffast-math does when it is loaded."""
    library().set_mxcsr(USUAL | FLUSH_TO_ZERO)


def candidate(name: str) -> Candidate:
    """A kernel of this module."""
    if name == "flushes_when_loaded":
        return Candidate("toy", f"{__file__}:good", prepare=f"{__file__}:flush_to_zero")
    return Candidate("toy", f"{__file__}:{name}")


def subject(name: str, **known: str) -> Subject:
    """It on trial; `known` are side effects that are not judged."""
    return Subject(PAIR, candidate(name), side_effects=known)
