"""What a call must leave in its process as it was: floating-point state, settings, and nothing left behind."""

import ctypes
import gc
import locale
import os
import platform
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernelpair.call.fork_server import FOLDER
from kernelpair.call.system import children, told

IDLE_SECONDS = 0.0003  # of waiting, in which threads whose calls have ended need no processor,
NOTHING_SECONDS = 1e-5  # or no more of its time than this;
BUSY_SECONDS, DECIDED_SECONDS = 0.01, 2.0  # one that has had so much goes on running; on a busy machine it waits for it
BUSY_LOOKS = 10  # and was never seen idle: what a host takes from a virtual machine counts as time of the thread that it stopped
RNG_BYTES = 2500  # of numpy's global generator: 624 words and a position
CACHES = ("torchinductor_",)  # beginnings of names in the temporary folder that later calls use again
MXCSR_CONTROL, X87_CONTROL = 0xFFC0, 0x1F3F  # without the flags that every operation may raise
X87_AT = 0  # of the words of <fenv.h>: on x86-64 the x87 control word stands at its begin,
X86 = platform.machine() == "x86_64"
MXCSR_AT = 7 if X86 else 0  # and MXCSR behind the rest; elsewhere the one control word
ROUNDING = ("to nearest", "down", "up", "towards zero")
ROUNDS_AT = {"mxcsr": 13, "x87": 10}  # the lower of the two bits that say how
MASKS_AT = {"mxcsr": 0x1F80, "x87": 0x3F} if X86 else {}  # of exceptions
FLUSHES = {"flush-to-zero": 1 << 15, "denormals-are-zero": 1 << 6}  # bits of MXCSR
SIGNALS = range(1, signal.NSIG)
LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
TIMERS = {"real": signal.ITIMER_REAL, "virtual": signal.ITIMER_VIRTUAL, "profiling": signal.ITIMER_PROF}
WALL = 0x40000000  # of waitid(): children too whose end sends no signal

_libc = ctypes.CDLL(None)
_libm = ctypes.PyDLL("libm.so.6")  # whose functions come back at once: to let other threads run meanwhile takes longer
_locale = ctypes.PyDLL(None).setlocale  # in a process that just woke a third of the time of Python's
_locale.restype = ctypes.c_char_p
_IN_POOL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass(frozen=True)
class SideEffect:
    """Something that a call left changed."""

    kind: str
    name: str
    says: str


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
    "thread_locale": "settings",
    "processes": "left_behind",
    "temporary_files": "left_behind",
    "c_environment": "settings",
    "signal_handlers": "settings",
    "fp_of_pool": "fp_state",
    "matmul_precision": "settings",
    "default_device": "settings",
    "onednn": "settings",
    "torch_modes": "settings",
    "numpy_errors": "settings",
    "warning_filters": "settings",
    "garbage_collector": "settings",
    "processors": "settings",
    "priority": "settings",
    "resource_limits": "settings",
    "timers": "settings",
    "standard_streams": "settings",
}
BY_IMPORT = {
    "locale", "environment", "c_environment", "numpy_random", "torch_random", "python_random", "signal_handlers", "threads",
    "descriptors", "warning_filters",
}
"""What loading a module in the midst of a call may change."""
BY_COMPILER = BY_IMPORT | {"recursion_limit", "processes"}
"""What torch.compile may change where a call lets it compile: it raises the limit, and keeps the processes that compile."""
NOT_ON_LOADING = BY_IMPORT | {"torch_threads", "recursion_limit", "alternative_stack", "processes", "temporary_files"}
GROWING = ("threads", "descriptors")
"""What a first call may make for all later ones: a side effect only if the same call does it again."""
BY_OTHERS = {"processors", "priority", "resource_limits"}
"""What somebody else may change of a process that runs: side effects only if the same call does it again."""
NAMES = (*STATE, *DEEP)
_CHANGES = {"threads": "{1} threads where there were {0}", "descriptors": "the lowest free file descriptor is {1}, was {0}"}
_UNPRINTED = {
    "environment", "numpy_random", "torch_random", "python_random", "c_environment", "signal_handlers", "warning_filters",
    "resource_limits", "standard_streams",
}


class _ControlWords:
    """How a thread computes."""

    def __init__(self) -> None:
        self._fenv = ctypes.create_string_buffer(64)
        self._words = memoryview(self._fenv).cast("B").cast("I")

    def read(self) -> tuple[int, int]:
        """The x87 word and MXCSR of this thread."""
        _libm.fegetenv(self._fenv)
        words = self._words
        return words[X87_AT] & X87_CONTROL if MXCSR_AT else 0, words[MXCSR_AT] & MXCSR_CONTROL

    def set(self, x87: int, mxcsr: int) -> None:
        """Let this thread compute so."""
        _libm.fegetenv(self._fenv)
        self._words[MXCSR_AT] = mxcsr
        if MXCSR_AT:
            self._words[X87_AT] = self._words[X87_AT] & ~0xFFFF | x87
        _libm.fesetenv(self._fenv)


class Surroundings:
    """Reads the state of this process, and says what changed.

    A worker wakes for a call, and what it runs then takes ten times as long as in a loop. So `read` runs little: few functions,
    which do little in Python.
    """

    def __init__(self) -> None:
        self._words = _ControlWords()
        self._environment: dict[bytes, bytes] = {}
        self._stack = ctypes.create_string_buffer(24)
        self._action = ctypes.create_string_buffer(256)
        self._numpy = np.random.mtrand._rand._bit_generator.ctypes.state_address
        self._thread_locale = _libc.uselocale
        self._thread_locale.restype = ctypes.c_void_p

    def read(self, deep: bool = False, pool: bool = True, drawn: bool = False) -> tuple[Any, ...]:
        """The state now. Without the `pool` no thread is started to look at it; where it is read `deep`, what is `drawn` first
        lets no random state be one that a call has left: who sets it to the same again changes it then."""
        if deep and drawn:
            _draw()
        environment = os.environ._data  # type: ignore[attr-defined]  # as bytes: sixty times as fast
        if environment != self._environment:
            self._environment = dict(environment)
        state = (
            *self._words.read(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch._C._get_deterministic_algorithms(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch._C._is_any_autocast_enabled(),
            sys.getrecursionlimit(),
            _locale(locale.LC_ALL, None),
            self._environment,  # the same object while nothing changes, so that two states are compared at once
        )
        return state if not deep else (*state, *self._deep(pool))

    def set_control_words(self, state: tuple[Any, ...]) -> None:
        """Compute as in this state again: a process in which exceptions are unmasked may not live to tell of it."""
        self._words.set(*state[:2])

    @staticmethod
    def threads(state: tuple[Any, ...]) -> int:
        """Of a deep state how many threads there were."""
        return int(state[NAMES.index("threads")])

    def _deep(self, pool: bool) -> tuple[Any, ...]:
        umask = os.umask(0o077)
        os.umask(umask)
        _libc.sigaltstack(None, self._stack)
        return (
            ctypes.string_at(self._numpy, RNG_BYTES),
            torch.default_generator.get_state().numpy().tobytes(),
            random.getstate(),
            os.stat("/proc/self/task").st_nlink - 2,
            _lowest_free_descriptor(),
            _working_directory(),
            umask,
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            self._stack.raw,
            self._thread_locale(None),
            _processes(),
            _temporary_files(),
            _c_environment(),
            self._signal_handlers(),
            control_words_of_pool() if pool else "",
            torch.get_float32_matmul_precision(),
            str(torch.get_default_device()),
            torch._C._get_mkldnn_enabled(),
            torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack(),
            np.geterr(),
            tuple(warnings.filters),
            (gc.isenabled(), *gc.get_threshold()),
            sorted(os.sched_getaffinity(0)),
            os.getpriority(os.PRIO_PROCESS, 0),
            tuple(map(resource.getrlimit, LIMITS)),
            " and ".join(name for name, number in TIMERS.items() if any(signal.getitimer(number))) or "none",
            tuple(map(_leads_to, range(3))),
        )

    def _signal_handlers(self) -> tuple[bytes, ...]:
        found = []
        for number in SIGNALS:
            _libc.sigaction(number, None, self._action)
            found.append(self._action.raw[:16])
        return tuple(found)


def _draw() -> None:
    """A number from each random state."""
    torch.rand(1)
    np.random.rand()
    random.random()


def may_change(imported: bool, compiled: bool) -> Collection[str]:
    """The names of what a call may change that has loaded a module, or let torch.compile compile."""
    return BY_COMPILER if compiled else BY_IMPORT if imported else ()


def changes(before: tuple[Any, ...], after: tuple[Any, ...], may: Collection[str] = ()) -> list[SideEffect]:
    """What differs, but for what `may`."""
    found = []
    for name, was, now in zip(NAMES, before, after):
        if was != now and name not in may and not (name in GROWING and now < was):
            first, second = _shown(name, was), _shown(name, now)
            plain = "changed" if name in _UNPRINTED else "{1} instead of {0}" if first != second else "{1}, written anew"
            says = _CHANGES.get(name, plain).format(first, second) + (_modes(name, was, now) if name in MASKS_AT else "")
            found.append(SideEffect((STATE | DEEP)[name], name, says))
    return found


def _modes(name: str, was: int, now: int) -> str:
    """What the bits of a control word that changed are, in words."""
    rounds, flushes = ROUNDS_AT[name], FLUSHES if name == "mxcsr" else {}
    told = [f"{mode} {'on' if now & bit else 'off'}" for mode, bit in flushes.items() if (was ^ now) & bit]
    told += [f"rounds {ROUNDING[now >> rounds & 3]}"] if (was ^ now) >> rounds & 3 else []
    told += ["exceptions unmasked"] if was & ~now & MASKS_AT[name] else []
    return f" ({', '.join(told)})" if told else ""


def lasting(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of a deep state that a call changes once and for all: afterwards nobody sees which call changed it."""
    return state[NAMES.index("working_directory") :]


def on_loading(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[SideEffect, ...]:
    """What loading a candidate changed that no library may change for the whole process."""
    found = [effect for effect in changes(before, after, BY_IMPORT) if effect.name not in NOT_ON_LOADING]
    return tuple(SideEffect(effect.kind, effect.name, f"when it was loaded: {effect.says}") for effect in found)


def _shown(name: str, value: Any) -> str:
    if name == "locale":
        return str(value.decode())
    if name == "temporary_files":
        return ", ".join(file for file, _ in value) or "none"
    return hex(value) if name in ("mxcsr", "x87") else oct(value) if name == "umask" else str(value)


def _lowest_free_descriptor() -> int:
    try:
        free = os.open("/", os.O_RDONLY)
    except OSError:  # a call has set a limit that lets no more be opened
        return -1
    os.close(free)
    return free


def _leads_to(descriptor: int) -> tuple[int, int] | None:
    """Device and inode; None where it is closed."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that is no longer there"


def _processes() -> int:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
    except ChildProcessError:  # the quick answer: there is none
        return 0
    return len(children())


def _temporary_files() -> tuple[tuple[str, int], ...]:
    """The name of each, and when it was written: a call may write the file anew that the last one has left. 0 for folders, which
    may be caches, and where other processes write too."""
    found, folder = list[tuple[str, int]](), tempfile.gettempdir()
    own = os.path.basename(folder).startswith(FOLDER)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(CACHES):
                timed = own and not entry.is_dir()
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns if timed else 0))
    return tuple(sorted(found))


def _c_environment() -> tuple[bytes, ...]:
    """As C sees it, which Python does not when a library changes it."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: list[bytes] = []
    while entries and (entry := entries[len(found)]) is not None:
        found.append(entry)
    return tuple(sorted(found))


def control_words_of_pool() -> str:
    """The control words of the other threads that torch computes with, if they are OpenMP's."""
    parallel = getattr(_libc, "GOMP_parallel", None)  # GNU's; LLVM's and Intel's libraries have it too
    own, found = threading.get_ident(), set()

    def look(data: int | None) -> None:
        if threading.get_ident() != own:
            x87, mxcsr = _ControlWords().read()
            found.add(f"mxcsr {mxcsr:#x}, x87 {x87:#x}")

    if parallel is not None:
        parallel(_IN_POOL(look), None, max(torch.get_num_threads(), 2), 0)  # one other thread, also on a single core
    return " and ".join(sorted(found))


def busy() -> bool:
    """Whether other threads go on running while this one waits, however seldom the system lets them."""
    until, used, looks = time.monotonic() + DECIDED_SECONDS, 0.0, 0
    while (used < BUSY_SECONDS or looks < BUSY_LOOKS) and time.monotonic() < until:
        before = _used_by_others()
        threading.Event().wait(IDLE_SECONDS)
        spent = _used_by_others() - before
        if spent < NOTHING_SECONDS and not _others_are_runnable():
            return False
        used, looks = used + spent, looks + 1
    return used >= BUSY_SECONDS and looks >= BUSY_LOOKS


def _used_by_others() -> float:
    """Seconds of a processor that the other threads have had."""
    return time.process_time() - time.thread_time()


def _others_are_runnable() -> bool:
    own = str(threading.get_native_id())
    for task in set(os.listdir("/proc/self/task")) - {own}:
        with suppress(OSError):  # the thread has ended
            if told(f"/proc/self/task/{task}/stat").rpartition(b") ")[2][:1] == b"R":
                return True
    return False
