"""Tile instructions on a CPU that has none: this process carries them out in software (csrc/trap/trap.h). To try the machine
code of the amx tier, a thousand times slower than hardware; nothing here is ever chosen unasked."""

import ctypes
import os
from functools import cache

import torch

from optimized.library import BUILT, library_path, load_untried

COUNTED = ("loads", "products", "stores", "zeros", "configurations", "releases", "traps")


class Totals(ctypes.Structure):
    """What was carried out, as csrc/trap/trap.h has it."""

    _fields_ = [(name, ctypes.c_uint64) for name in COUNTED]


@cache
def library() -> ctypes.CDLL:
    """The library of the handler: beside that of the kernels, or where theirs usually is. ImportError where there is none."""
    for folder in (library_path().parent, BUILT):
        if (folder / "_trap.so").is_file():
            return ctypes.CDLL(str(folder / "_trap.so"))
    raise ImportError(f"{library_path().with_name('_trap.so')} is missing: it is built on Linux on x86-64 only")


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
    return {name: getattr(counted, name) for name in COUNTED}


def reset() -> None:
    """Count from 0 again."""
    library().kernelpair_trap_reset()
