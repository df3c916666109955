"""Load somebody else's module here, and let this process stay as it was: it judges, and leads."""

import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import torch

from kernelpair.call.surroundings import LIMITS, STATE, TIMERS, Surroundings
from kernelpair.interruption import SIGNALS as ENDING

STREAMS = ("stdin", "stdout", "stderr")  # of sys; their descriptors are 0, 1 and 2
JUDGING = (torch, torch.Tensor, torch._C.TensorBase, torch.nn.functional)
"""What a judge computes with; libraries put functions of theirs in the place of torch's."""
OF_PYTHON = sys.stdlib_module_names - {"logging", "warnings"}
"""Modules by whose functions and classes a judge talks, waits and draws; a library may say how messages are shown."""
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of a class whose attributes can be changed


@contextmanager
def undisturbed() -> Iterator[None]:
    """After the block this process computes as it did before, works in the same folder, writes to the same files, has the limits
    and timers that it had, and handles the signals that are to end it, whatever the block loads. What the block adds, stays."""
    with ExitStack() as stack:
        for keep in (_numbers, _settings, _system, _limits, _streams, _handlers, _modes, _finders, _functions):
            stack.callback(keep())  # to put back in the opposite order
        yield


def _functions() -> Callable[[], None]:
    """torch's and Python's own, where others have come into their place."""
    modules = [module for name, module in list(sys.modules.items()) if module and name.partition(".")[0] in OF_PYTHON]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    places = (*JUDGING, *modules, *(each for each in classes if each.__flags__ & HEAP_TYPE))
    known = [(place, name, value) for place in places for name, value in list(vars(place).items()) if callable(value)]
    own = set(vars(torch.Tensor))

    def put_back() -> None:
        for place, name, value in known:
            if vars(place).get(name) is not value:
                setattr(place, name, value)
        for name in set(vars(torch.Tensor)) - own:
            if hasattr(torch._C.TensorBase, name):  # else it is nothing of torch's that it hides
                delattr(torch.Tensor, name)

    return put_back


def _finders() -> Callable[[], None]:
    """Where modules are looked for, and who does it."""
    folders, finders = list(sys.path), list(sys.meta_path)

    def put_back() -> None:
        sys.path.extend(_missing(folders, sys.path))
        sys.meta_path.extend(_missing(finders, sys.meta_path))

    return put_back


def _missing(known: list[Any], now: list[Any]) -> list[Any]:
    """What of the one list is not in the other, as often as it is not."""
    left, missing = list(now), list[Any]()
    for each in known:
        if each in left:
            left.remove(each)
        else:
            missing.append(each)
    return missing


def _modes() -> Callable[[], None]:
    """Which modes torch's functions run in; a default device is one."""
    device, modes = torch.get_default_device(), torch._C._len_torch_function_stack()

    def put_back() -> None:
        if torch.get_default_device() != device:
            torch.set_default_device(None)
        while torch._C._len_torch_function_stack() > modes:
            torch._C._pop_torch_function_stack()

    return put_back


def _handlers() -> Callable[[], None]:
    """Who handles signals that end this process, and no timer that sends others."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    ending = {number: handler for number in ENDING if (handler := signal.getsignal(number)) is not None}
    idle = [number for number in TIMERS.values() if not any(signal.getitimer(number))]

    def put_back() -> None:
        for number in idle:
            signal.setitimer(number, 0.0)
        for number, handler in ending.items():
            signal.signal(number, handler)

    return put_back


def _streams() -> Callable[[], None]:
    """Where this process reads and writes."""
    streams = {name: getattr(sys, name) for name in STREAMS}
    held: dict[int, int] = {}
    for descriptor in range(len(STREAMS)):
        with suppress(OSError):  # it is closed
            held[descriptor] = os.dup(descriptor)

    def put_back() -> None:
        for descriptor, same in held.items():
            os.dup2(same, descriptor)
            os.close(same)
        for name, stream in streams.items():
            setattr(sys, name, stream)

    return put_back


def _system() -> Callable[[], None]:
    """What the system knows of this process."""
    folder, umask, processors = os.open(".", os.O_RDONLY), os.umask(0o077), os.sched_getaffinity(0)
    os.umask(umask)

    def put_back() -> None:
        os.sched_setaffinity(0, processors)
        os.umask(umask)
        os.fchdir(folder)
        os.close(folder)

    return put_back


def _limits() -> Callable[[], None]:
    """What the system lets this process have. Python lets nobody lower for good in the meantime what a judge needs to write."""
    limits, of_python = {limit: resource.getrlimit(limit) for limit in LIMITS}, resource.setrlimit

    def for_a_while(limit: int, pair: tuple[int, int]) -> None:
        soft, _ = pair
        of_python(limit, (soft, resource.getrlimit(limit)[1]))

    def put_back() -> None:
        resource.setrlimit = of_python
        for limit, before in limits.items():
            if (now := resource.getrlimit(limit)) != before:
                try:
                    resource.setrlimit(limit, before)
                except (OSError, ValueError):  # who may not raise what has been lowered for good
                    resource.setrlimit(limit, (now[1], now[1]))

    resource.setrlimit = for_a_while
    return put_back


def _settings() -> Callable[[], None]:
    """Settings of Python and of numpy."""
    depth, collects, errors = sys.getrecursionlimit(), gc.isenabled(), np.geterr()

    def put_back() -> None:
        sys.setrecursionlimit(depth)
        (gc.enable if collects else gc.disable)()
        np.seterr(**errors)

    return put_back


def _numbers() -> Callable[[], None]:
    """How torch, and the processor, compute."""
    surroundings = Surroundings()
    before = surroundings.read()

    def put_back() -> None:
        surroundings.set_control_words(before)
        by_name = dict(zip(STATE, before))
        torch.set_num_threads(by_name["torch_threads"])
        torch.set_default_dtype(by_name["default_dtype"])
        if torch.are_deterministic_algorithms_enabled() != by_name["deterministic"]:  # to set it loads torch's compiler
            torch.use_deterministic_algorithms(by_name["deterministic"])
        torch.set_grad_enabled(by_name["grad_mode"])

    return put_back
