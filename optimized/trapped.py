"""Tile instructions on a CPU that has none: this process carries them out in software (csrc/trap/trap.h). It serves to try the
machine code of the amx tier, a thousand times slower than hardware; the library never chooses it by itself."""

import ctypes
import os
from collections.abc import Sequence
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
    """Catch them, and let a tier run when it is named that lacks nothing else but what this library emulates."""
    install()
    load_untried()
    torch.ops.kernelpair._allow_stand_ins()


def cpuid_faults() -> bool:
    """Whether this CPU can be made to fault on CPUID."""
    return int(library().kernelpair_trap_cpuid_faults()) == 0


def claim(faulting: bool, half: bool) -> None:
    """From now on, answer CPUID and system calls about extended states as on a CPU with AMX; this cannot be undone. CPUID is
    answered where it faults, or where it is replaced. With `half` AVX512-FP16 is said to be there too. OSError where the
    system refuses."""
    failed = library().kernelpair_trap_claim(int(faulting), int(half))
    if failed:
        raise OSError(failed, f"this process cannot be told that it has AMX: {os.strerror(failed)}")


def replace_cpuid(places: Sequence[int]) -> None:
    """Put an instruction that traps in the place of each CPUID at these addresses. OSError where that cannot be done."""
    failed = library().kernelpair_trap_replace((ctypes.c_void_p * len(places))(*places), ctypes.c_size_t(len(places)))
    if failed:
        raise OSError(failed, f"CPUID cannot be replaced in memory: {os.strerror(failed)}")


def cpuid(leaf: int, subleaf: int, real: Sequence[int], half: bool = False) -> tuple[int, ...]:
    """What is answered (eax, ebx, ecx, edx), given what this CPU says."""
    registers = (ctypes.c_uint32 * 8)(*real)
    library().kernelpair_trap_cpuid(leaf, subleaf, int(half), registers)
    return tuple(registers[4:])


def totals() -> dict[str, int]:
    """Instructions carried out since the last reset, in all threads together; `traps` counts the signals for them."""
    counted = Totals()
    library().kernelpair_trap_counts(ctypes.byref(counted))
    return {name: getattr(counted, name) for name in COUNTED}


def reset() -> None:
    """Count from 0 again."""
    library().kernelpair_trap_reset()
