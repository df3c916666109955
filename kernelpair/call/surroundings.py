"""What a call must leave in its process as it was: floating-point state, settings, and nothing left behind."""

import ctypes
import locale
import os
import platform
import random
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kernelpair.call.system import children

LEAST_LEAK = 4096  # bytes by which every one of several equal calls must grow the heap to be called a leak
IDLE_SECONDS = (0.001, 0.01)  # of waiting, the longer to make sure; a process whose calls have ended needs no processor then,
MOST_BUSY = 0.4  # but for this part of the time
RNG_BYTES = 2500  # of numpy's global generator: 624 words and a position
CACHES = ("torchinductor_",)  # beginnings of names in the temporary folder that later calls use again
MXCSR_CONTROL, X87_CONTROL = 0xFFC0, 0x1F3F  # without the flags that every operation may raise
FENV = struct.Struct("<H26xI")  # of <fenv.h> on x86-64: the x87 control word, and MXCSR behind the rest
SIGNALS = range(1, signal.NSIG)

_libc = ctypes.CDLL(None)
_libm = ctypes.CDLL("libm.so.6")


@dataclass(frozen=True)
class SideEffect:
    """Something that a call left changed."""

    kind: str
    name: str
    says: str


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


@cache
def _mallinfo() -> Callable[[], _Heap] | None:
    """None with a C library that has no such function."""
    function = getattr(_libc, "mallinfo2", None)
    if function is not None:
        function.restype = _Heap
    return function


def heap_bytes() -> int:
    """What is allocated and not freed; 0 where the C library does not tell."""
    heap = _mallinfo()
    found = heap() if heap is not None else None
    return int(found.uordblks + found.hblkhd) if found is not None else 0


# What is read around every call, in the order of `Surroundings.read`: what takes no call of the system.
STATE = {
    "x87": "fp_state",
    "mxcsr": "fp_state",
    "torch_threads": "settings",
    "default_dtype": "settings",
    "deterministic": "settings",
    "grad_mode": "settings",
    "inference_mode": "settings",
    "autocast": "settings",
    "recursion_limit": "settings",
    "locale": "settings",
    "environment": "settings",
}
# What takes longer, in an `aftermath` trial alone.
DEEP = {
    "numpy_random": "settings",
    "torch_random": "settings",
    "python_random": "settings",
    "threads": "left_behind",
    "descriptors": "left_behind",
    "working_directory": "settings",
    "umask": "settings",
    "signal_mask": "settings",
    "alternative_stack": "settings",
    "processes": "left_behind",
    "temporary_files": "left_behind",
    "c_environment": "settings",
    "signal_handlers": "settings",
    "fp_of_pool": "fp_state",
}
BY_IMPORT = {
    "locale", "environment", "c_environment", "numpy_random", "torch_random", "python_random", "signal_handlers", "threads",
    "descriptors",
}
"""What loading a module in the midst of a call may change."""
NOT_ON_LOADING = BY_IMPORT | {"torch_threads", "recursion_limit", "alternative_stack", "processes", "temporary_files"}
GROWING = ("threads", "descriptors")
"""What a first call may make for all later ones: a side effect only if the same call does it again."""
NAMES = (*STATE, *DEEP)
_CHANGES = {"threads": "{1} threads where there were {0}", "descriptors": "the lowest free file descriptor is {1}, was {0}"}
_UNPRINTED = {"environment", "numpy_random", "torch_random", "python_random", "c_environment", "signal_handlers"}


class Surroundings:
    """Reads the state of this process, and says what changed."""

    def __init__(self) -> None:
        self._fenv = ctypes.create_string_buffer(64)
        self._stack = ctypes.create_string_buffer(24)
        self._action = ctypes.create_string_buffer(256)
        self._numpy = np.random.mtrand._rand._bit_generator.ctypes.state_address
        self._x86 = platform.machine() == "x86_64"

    def read(self, deep: bool = False) -> tuple[Any, ...]:
        """The state now."""
        _libm.fegetenv(self._fenv)
        x87, mxcsr = FENV.unpack_from(self._fenv) if self._x86 else (0, int.from_bytes(self._fenv.raw[:4], "little"))
        state = (
            x87 & X87_CONTROL,
            mxcsr & MXCSR_CONTROL,
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            sys.getrecursionlimit(),
            locale.setlocale(locale.LC_ALL, None),
            dict(os.environ._data),  # type: ignore[attr-defined]  # as bytes: sixty times as fast
        )
        return state if not deep else (*state, *self._deep())

    def _deep(self) -> tuple[Any, ...]:
        umask = os.umask(0o077)
        os.umask(umask)
        free = os.dup(2)
        os.close(free)
        _libc.sigaltstack(None, self._stack)
        return (
            ctypes.string_at(self._numpy, RNG_BYTES),
            torch.default_generator.get_state().numpy().tobytes(),
            random.getstate(),
            os.stat("/proc/self/task").st_nlink - 2,
            free,
            os.getcwd(),
            umask,
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            self._stack.raw,
            _processes(),
            _temporary_files(),
            _c_environment(),
            self._signal_handlers(),
            pool_rounds(),
        )

    def _signal_handlers(self) -> tuple[bytes, ...]:
        found = []
        for number in SIGNALS:
            _libc.sigaction(number, None, self._action)
            found.append(self._action.raw[:16])
        return tuple(found)


def changes(before: tuple[Any, ...], after: tuple[Any, ...], imported: bool) -> list[SideEffect]:
    """What differs. With `imported`, of what loading a module does not change."""
    found = []
    for name, was, now in zip(NAMES, before, after):
        if was != now and not (imported and name in BY_IMPORT) and not (name in GROWING and now < was):
            what = _CHANGES.get(name, "{1} instead of {0}" if name not in _UNPRINTED else "changed")
            found.append(SideEffect((STATE | DEEP)[name], name, what.format(_shown(name, was), _shown(name, now))))
    return found


def lasting(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of a deep state what a call changes once and for all: when it has, nobody sees which call it was."""
    return state[NAMES.index("working_directory") :]


def on_loading(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[SideEffect, ...]:
    """What loading a candidate changed of what no library may change for the whole process."""
    found = [effect for effect in changes(before, after, True) if effect.name not in NOT_ON_LOADING]
    return tuple(SideEffect(effect.kind, effect.name, f"when it was loaded: {effect.says}") for effect in found)


def _shown(name: str, value: Any) -> str:
    return hex(value) if name in ("mxcsr", "x87") else oct(value) if name == "umask" else str(value)


def _processes() -> int:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the quick answer: there is none
        return 0
    return len(children())


def _temporary_files() -> tuple[str, ...]:
    with suppress(OSError):
        return tuple(sorted(name for name in os.listdir(tempfile.gettempdir()) if not name.startswith(CACHES)))
    return ()


def _c_environment() -> tuple[bytes, ...]:
    """As C sees it, which Python does not when a library changes it."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: list[bytes] = []
    while entries and (entry := entries[len(found)]) is not None:
        found.append(entry)
    return tuple(sorted(found))


@cache
def _probe() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums whose rounding shows the mode, of denormals whether they are flushed, and what they are in the usual state."""
    count = 40960  # from 32768 on torch shares the work out between the two threads of a call
    left = torch.tensor([1.0, 1.0, 1e-40, -1.0]).repeat(count // 4)
    right = torch.tensor([3 * 2.0**-25, 2.0**-25, 0.0, -(2.0**-25)]).repeat(count // 4)
    expected = torch.tensor([1.0 + 2.0**-23, 1.0, 1e-40, -1.0]).view(torch.int32).repeat(count // 4)
    return left, right, torch.empty(count), expected


def pool_rounds() -> str:
    """How torch's threads round."""
    left, right, sums, expected = _probe()
    return "as usual" if torch.equal(torch.add(left, right, out=sums).view(torch.int32), expected) else "otherwise"


def busy() -> bool:
    """Whether something goes on running in this process while this thread waits."""
    return all(_busy(seconds) for seconds in IDLE_SECONDS)


def _busy(seconds: float) -> bool:
    began, used = time.perf_counter(), time.process_time()
    threading.Event().wait(seconds)
    return time.process_time() - used > MOST_BUSY * (time.perf_counter() - began)
