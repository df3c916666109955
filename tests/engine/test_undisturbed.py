"""What somebody else's module changes of the process that loads it is put back."""

import builtins
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelpair.call.undisturbed import undisturbed


def _files() -> list[tuple[int, int]]:
    found = [os.fstat(number) for number in range(3)]
    return [(each.st_dev, each.st_ino) for each in found]


def _nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    os.close(2)


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "a function": (lambda: setattr(torch, "where", print), lambda: torch.where),
    "a method": (lambda: setattr(Tensor, "abs", print), lambda: Tensor.abs),
    "a method that is gone": (lambda: delattr(Tensor, "norm"), lambda: getattr(Tensor, "norm", None)),
    "a function of nn": (lambda: setattr(torch.nn.functional, "silu", print), lambda: torch.nn.functional.silu),
    "a function of Python": (lambda: setattr(time, "monotonic", print), lambda: time.monotonic),
    "a method of Python": (lambda: setattr(json.JSONEncoder, "encode", print), lambda: json.JSONEncoder.encode),
    "a builtin": (lambda: setattr(builtins, "open", print), lambda: open),
    "who finds modules": (sys.meta_path.clear, lambda: list(sys.meta_path)),
    "where modules are": (sys.path.clear, lambda: list(sys.path)),
    "default device": (lambda: torch.set_default_device("meta"), lambda: (torch.zeros(1).device, torch.get_default_device())),
    "mode": (lambda: torch.overrides.BaseTorchFunctionMode().__enter__(), torch._C._len_torch_function_stack),
    "gradients": (lambda: torch.set_grad_enabled(not torch.is_grad_enabled()), torch.is_grad_enabled),
    "streams": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
    "files": (_nowhere, _files),
    "timer": (lambda: signal.setitimer(signal.ITIMER_REAL, 1000.0), lambda: any(signal.getitimer(signal.ITIMER_REAL))),
    "limit": (
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    ),
    "limit for good": (
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30)),
        lambda: (resource.getrlimit(resource.RLIMIT_FSIZE), resource.setrlimit),
    ),
    "umask": (lambda: os.umask(0o777), lambda: [os.umask(os.umask(0o022)), os.umask(0o022)][0]),
    "processors": (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), lambda: os.sched_getaffinity(0)),
    "garbage": (gc.disable, gc.isenabled),
    "errors of numpy": (lambda: np.seterr(all="raise"), np.geterr),
    "folder": (lambda: os.chdir("/"), os.getcwd),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_put_back(what: str) -> None:
    change, state = CHANGES[what]
    before = state()
    with undisturbed():
        change()
    assert state() == before


def test_it_is_put_back_where_the_module_raises() -> None:
    before = torch.where
    with pytest.raises(ImportError), undisturbed():
        _take_over_and_fail()
    assert torch.where is before


def _take_over_and_fail() -> None:
    torch.where = print  # type: ignore[assignment]
    raise ImportError("half loaded")


def test_what_is_added_stays() -> None:
    with undisturbed():
        torch.of_a_library = 3  # type: ignore[attr-defined]
        sys.path.insert(0, "of_a_library")
    assert vars(torch).pop("of_a_library") == 3 and sys.path.pop(0) == "of_a_library"
