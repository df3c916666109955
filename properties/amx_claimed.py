"""Somebody else's AMX kernels on a CPU without AMX: a worker's CPUID says that it is there; its tile instructions are trapped.

A library asks CPUID and the kernel before it takes such a path. Where the CPU can fault on CPUID each question is caught. Where
it cannot, each CPUID of the libraries that are loaded is replaced in memory by an instruction that traps.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernelpair.contract.case import Case
from kernelpair.contract.other_cpu import OtherCpu
from kernelpair.environment import cpu_flags
from kernelpair.report.files import write_whole
from properties.cpuid_sites import NotFound, cpuid_offsets

if TYPE_CHECKING:
    from optimized import Tier

NAME, HALF = "amx", "avx512_fp16"
LEFT_AS_THEY_ARE = ("ld-linux", "libc.so", "libc-", "libm.so", "libpython", "_trap.so")
"""Beginnings of names of files whose choice of code has nothing to do with tiles."""
FOUND = Path(".kernelpair/cpuid.json")
NO_HALF = "float16: this CPU lacks the AVX512-FP16 that every CPU with AMX has"
_replaced: set[str] = set()


def _tier() -> "Tier":
    from properties.suite import SUITE

    return next(tier for tier in SUITE.tiers() if tier.products == "tile_registers")


def amx() -> OtherCpu:
    """The CPU as a suite names it."""
    tier = _tier()
    if tier.runnable:
        return OtherCpu(NAME, lambda: "", f"{__name__}:tell_nothing")
    limits = {NO_HALF: lambda case: getattr(case, "dtype", "") == "float16"} if lacks_half() else {}
    return OtherCpu(NAME, obstacle, f"{__name__}:tell", tier.run_as, limits, _without_half)


def _without_half(case: Case) -> Case:
    return replace(case, dtype="bfloat16")


def lacks_half() -> bool:
    """Whether this CPU is to be said to have AVX512-FP16 as well, without which oneDNN takes no AMX path."""
    return HALF not in cpu_flags()


def obstacle() -> str:
    """Why a worker cannot be told that it has AMX."""
    from optimized import trapped

    tier = _tier()
    instead = "Without --cpu the library takes its other paths, and `kernelpair check --tier amx` tries our own AMX kernels"
    if not tier.run_as:
        return f"its tile instructions cannot be trapped here: {tier.reason}. {instead.partition(',')[0]}"
    try:
        if trapped.cpuid_faults() or shutil.which("objdump"):
            return ""
    except ImportError as error:
        return str(error)
    return (
        "this CPU cannot fault on CPUID (arch_prctl refuses ARCH_SET_CPUID), and objdump (binutils), by which CPUID is found in "
        f"libraries to be replaced, is not installed. {instead}"
    )


def how_it_is_told() -> str:
    """What `--cpu amx` does on this machine, for `doctor`."""
    from optimized import trapped

    if _tier().runnable:
        return "there"
    reason = obstacle()
    return reason or f"told with --cpu {NAME}: {'CPUID faults' if trapped.cpuid_faults() else 'CPUID is replaced in memory'}"


def tell_nothing(first: bool) -> None:
    """The CPU has what is claimed."""


def tell(first: bool) -> None:
    """Make this process believe it: `first` before a candidate's library is loaded, then again after it."""
    from optimized import trapped

    faulting = trapped.cpuid_faults()
    if first:
        trapped.install()
        trapped.claim(faulting, lacks_half())
    if not faulting:
        trapped.replace_cpuid([address for path, base in _loaded() for address in _addresses(path, base)])


def _loaded() -> Iterator[tuple[str, int]]:
    """Libraries that were not looked at yet, and where they are."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, inode, *path = line.split(maxsplit=5)
        if path and inode != "0" and int(offset, 16) == 0 and path[0] not in _replaced and ".so" in os.path.basename(path[0]):
            _replaced.add(path[0])
            if not os.path.basename(path[0]).startswith(LEFT_AS_THEY_ARE):
                yield path[0], int(addresses.partition("-")[0], 16)


def _addresses(path: str, base: int) -> list[int]:
    try:
        return [base + offset for offset in _offsets(path)]
    except NotFound as error:
        raise NotFound(f"where {path} asks CPUID is not known: {error}") from None


def _offsets(path: str) -> list[int]:
    """The places in a file, remembered from one worker to the next: of the largest libraries they take seconds to find."""
    status = os.stat(path)
    key = f"{path} {status.st_size} {status.st_mtime_ns}"
    known = _known()
    if key not in known:
        known[key] = cpuid_offsets(Path(path))
        FOUND.parent.mkdir(exist_ok=True)
        write_whole(FOUND, json.dumps(known))
    return known[key]


@cache
def _known() -> dict[str, list[int]]:
    try:
        found: dict[str, list[int]] = json.loads(FOUND.read_text())
    except (OSError, ValueError):
        return {}
    return found
