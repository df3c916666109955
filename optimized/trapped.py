"""Tile instructions on a CPU that has none: this process carries them out in software (csrc/trap/trap.h). To try the machine
code of the amx tier, a thousand times slower than hardware; nothing here is ever chosen unasked."""

import ctypes
import importlib.util
import os
from functools import cache

import torch

from optimized.library import load_untried


class Totals(ctypes.Structure):
    """What was carried out, as csrc/trap/trap.h has it."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("loads", "products", "stores", "zeros", "configurations", "releases", "traps")
    ]


@cache
def library() -> ctypes.CDLL:
    """The library of the handler, which is built beside that of the kernels. ImportError where there is none."""
    spec = importlib.util.find_spec("optimized._trap")
    if spec is None or spec.origin is None:
        raise ImportError("the library optimized/_trap.so is missing: it is built on Linux on x86-64 only")
    return ctypes.CDLL(spec.origin)


def install() -> None:
    """Catch tile instructions in this process. OSError where the system refuses."""
    failed = library().kernelpair_trap_install()
    if failed:
        raise OSError(failed, f"tile instructions cannot be trapped: {os.strerror(failed)}")


def trap_tiles() -> None:
    """Catch them, and let a tier that lacks nothing else run when it is named."""
    install()
    load_untried()
    torch.ops.kernelpair._allow_trapped_tiles()


def totals() -> dict[str, int]:
    """Instructions carried out since the last reset, in all threads together; `traps` counts the signals for them."""
    counted = Totals()
    library().kernelpair_trap_counts(ctypes.byref(counted))
    return {name: getattr(counted, name) for name, _ in Totals._fields_}


def reset() -> None:
    """Count from 0 again."""
    library().kernelpair_trap_reset()
