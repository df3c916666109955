"""Tiers: the instruction sets that the kernels are compiled for, which of them can run here, and which one is used."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from optimized.library import load, raise_as_marked


@dataclass(frozen=True)
class Tier:
    """One build of the kernels. `reason` says why a tier that is not runnable is not; `flags` are its compiler flags;
    `products` how it multiplies bf16: none (as float32), dots, tile_registers or soft_tiles. `run_as` is not empty
    where it can be put on trial all the same: `trapped`, with its tile instructions carried out by a handler
    (`optimized.trapped`), `emulated`, with those of AVX512 by what the library was compiled to (csrc/simd/emulated.h)."""

    name: str
    compiled: bool
    runnable: bool
    reason: str
    flags: str
    products: str = "none"
    run_as: str = ""

    @property
    def tiled(self) -> bool:
        """Whether kernels multiply tiles of bf16; elsewhere bf16 is widened to float32 first."""
        return self.products != "none"

    @property
    def emulated(self) -> bool:
        """Whether the tiles are software: on any CPU, about a thousand times slower than hardware."""
        return self.products == "soft_tiles"

    def __str__(self) -> str:
        return self.name


@cache
def build() -> dict[str, Any]:
    """How the library was built: compiler, build_type, build_directory, the tiers, which share objects, the kernels
    that multiply as tiers differ in, the best tier here."""
    load()
    return dict(json.loads(torch.ops.kernelpair._tiers()))


@cache
def tiers() -> tuple[Tier, ...]:
    """All tiers, compiled or not, as CMakeLists.txt lists them: from what any CPU has to what few have, the emulated one
    last."""
    return tuple(Tier(**tier) for tier in build()["tiers"])


def best_tier(products: bool = True) -> str:
    """The tier that kernels run in when none was asked for: the one in which this CPU multiplies fastest, or the best for kernels
    without `products`. They differ where dot products are slower than FMAs."""
    return str(build()["best" if products else "best_without_products"])


def set_tier(name: str) -> None:
    """Run every kernel of this process in the tier `name`; if it is empty, in the best for each or KERNELPAIR_TIER. ValueError if
    it is unknown or cannot run here."""
    load()
    raise_as_marked(torch.ops.kernelpair._set_tier, str(name))


@contextmanager
def use_tier(name: str) -> Iterator[None]:
    """Run the kernels of a block in the tier `name`, in all threads of this process."""
    load()
    before = str(torch.ops.kernelpair._asked_tier())
    set_tier(name)
    try:
        yield
    finally:
        set_tier(before)


def selected_tier(products: bool = True) -> str:
    """The tier in which the next kernel runs: the last one set, else KERNELPAIR_TIER, else the best of this CPU for kernels with
    `products`, or for those without."""
    load()
    return str(raise_as_marked(torch.ops.kernelpair._selected_tier, products))


def last_tier() -> str | None:
    """The tier that ran last, None if no kernel ran since `forget_last_tier`."""
    load()
    return torch.ops.kernelpair._last_tier() or None


def tiled_tiers() -> tuple[str, ...]:
    """Names of the tiers that multiply tiles of bf16."""
    return tuple(tier.name for tier in tiers() if tier.tiled)


def paths(tier: str) -> list[str]:
    """The paths that kernels may take in a tier (csrc/core/path.h)."""
    load()
    return _names(torch.ops.kernelpair._paths(tier))


def taken_paths() -> list[str]:
    """The paths that kernels took, in any tier, since this was last asked."""
    load()
    return _names(torch.ops.kernelpair._taken_paths())


def _names(listed: str) -> list[str]:
    return listed.split(",") if listed else []


def forget_last_tier() -> None:
    """Forget which tier ran, so that a call can be seen to run a kernel at all."""
    load()
    torch.ops.kernelpair._forget_last_tier()
