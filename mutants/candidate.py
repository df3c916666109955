"""Mutants as candidates, found by name in whichever process needs them: the judge builds, the worker loads."""

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelpair.candidate import Candidate
from kernelpair.jobs import STATE
from kernelpair.pair import Pair
from mutants import BEST, Mutant, MutantError, mutants
from mutants.build import Planted, plant
from optimized import tiers
from properties import candidates, pairs

BUILD_FOLDER = "KERNELPAIR_MUTANTS"  # where the processes of one run build, by way of their environment
BY_PREFERENCE = ("avx512", "avx2", "scalar")
NOTHING = Planted("", ())


@dataclass(frozen=True)
class MutantCandidate(Candidate):
    """A candidate that loads a library of its own, and patched modules in the place of ours."""

    planted: Planted = NOTHING

    def enter(self) -> None:
        if hasattr(torch.ops.kernelpair, "_tiers"):
            raise ImportError("the ordinary library is loaded already: a mutant needs a process of its own")
        if self.planted.library:
            os.environ["KERNELPAIR_LIBRARY"] = self.planted.library
        for name, path in self.planted.modules:
            _replace_module(name, path)
        super().enter()


def _replace_module(name: str, path: str) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, stem = name.rpartition(".")
    setattr(importlib.import_module(package), stem, module)


def tier_of(mutant: Mutant) -> tuple[str, str]:
    """The tier in which a mutant is planted here, and if it cannot run, why."""
    runnable = {tier.name: tier for tier in tiers() if tier.runnable}
    if mutant.tier == BEST:
        return next(name for name in BY_PREFERENCE if name in runnable), ""
    known = {tier.name: tier for tier in tiers()}
    if mutant.tier not in known:
        raise MutantError(f"{mutant.name}: unknown tier {mutant.tier!r}")
    return mutant.tier, "" if mutant.tier in runnable else known[mutant.tier].reason


def resolve(pair: str, name: str) -> tuple[Pair, Candidate]:
    """The candidate `name` of a pair: a mutant, built now, or the ordinary kernel in a tier."""
    known = mutants()
    if name not in known:
        return candidates.resolve(pair, name)
    mutant = known[name]
    found = pairs()[pair]
    tier, _ = tier_of(mutant)
    kernel = found.files.get("kernel", f"csrc/kernels/{pair}.cpp")
    planted = plant(mutant, kernel, tier, folder_of(mutant))
    usual = candidates.candidate(found, candidates.PYTHON if found.tiers == candidates.PYTHON else tier)
    return found, MutantCandidate(usual.name, usual.entry, usual.prepare, usual.ran, planted=planted)


def folder_of(mutant: Mutant) -> Path:
    """Where a mutant is built."""
    return Path(os.environ.get(BUILD_FOLDER, STATE / "mutants")) / mutant.pair / mutant.id
