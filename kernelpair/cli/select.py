"""Which suite, pairs and candidates a command line means."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelpair.cli.main import UsageError
from kernelpair.names import unknown
from kernelpair.sources import BuildError
from kernelpair.suite import REFERENCE, Place, Suite, SuiteError, Tier, find, loaded, obstacle, run_as

if TYPE_CHECKING:  # both load torch, which commands that only look do without
    from kernelpair.contract.pair import Pair
    from kernelpair.providers.provider import Provider

ENVIRONMENT_TIER = "KERNELPAIR_TIER"


def select_suite(options: argparse.Namespace, *, built: bool = False) -> tuple[Place, Suite]:
    """The suite that is meant; with `built` its kernels are brought up to date. UsageError if there is none, or if it does
    not build."""
    try:
        place = find(options.suite)
        suite = place.load()
        if getattr(options, "in_process", False):
            os.environ.update({name: value for name, value in suite.on_trial.items() if name not in os.environ})
        if built:
            suite.sources.bring_up_to_date(suite.root)
    except SuiteError as error:
        raise UsageError(str(error)) from None
    except BuildError as error:
        raise UsageError(f"the kernels do not build: {error}") from None
    return place, suite


def select_pairs(suite: Suite, wanted: Sequence[str]) -> "list[Pair]":
    """The pairs of these names, or all if none is given. UsageError lists the known ones, and names one that is broken."""
    found, broken = select_loaded(suite, wanted)
    if broken:
        raise UsageError("; ".join(f"pair {name} is broken: {says}" for name, says in broken.items()))
    return found


def select_loaded(suite: Suite, wanted: Sequence[str]) -> "tuple[list[Pair], dict[str, str]]":
    """The same, and for each broken pair what is wrong with it: the others can be tried without it."""
    known = suite.pairs()
    for name in wanted:
        if name not in known:
            raise UsageError(unknown("pair", name, known))
    found, broken = loaded(suite, wanted)
    return list(found.values()), broken


def select_tiers(suite: Suite, wanted: Sequence[str], *, timed: bool = False) -> list[str]:
    """The candidates asked for by option or environment, tiers most often; none means all. UsageError for a tier that cannot
    run here, or with `timed` not at its own speed, and for a name that is neither a tier nor a candidate of any pair."""
    chosen = list(wanted) or [tier for tier in [os.environ.get(ENVIRONMENT_TIER)] if tier]
    tiers = {tier.name: tier for tier in suite.tiers()}
    for name in chosen:
        if name in tiers:
            reason = _untimed(tiers[name]) if timed else obstacle(tiers[name])
            if reason:
                raise UsageError(f"tier {name} cannot {'be timed' if timed else 'run'} here: {reason}")
            continue
        if name == REFERENCE:
            continue
        others = {candidate.name for pair in loaded(suite)[0].values() for candidate in suite.candidates(pair)}
        if name not in others:
            raise UsageError(unknown("tier", name, tiers or sorted(others)))
    return chosen


def _untimed(tier: Tier) -> str:
    """Why a tier cannot be timed here: what only stands in for it has a speed of its own."""
    return "" if tier.runnable else f"it runs {run_as(tier)} only: {tier.reason}" if run_as(tier) else tier.reason


def select_candidates(suite: Suite, pair: "Pair", chosen: Sequence[str], *, timed: bool = False) -> list[tuple[str, str]]:
    """Candidate and, where it cannot run here (with `timed`, at its own speed), the reason. One that is not named as a tier is
    there whatever tiers are chosen, unless another one of the pair is; the reference only where it is asked for."""
    tiers = {tier.name: tier for tier in suite.tiers()}
    reference = [(REFERENCE, "")] if REFERENCE in chosen else []
    chosen = [name for name in chosen if name != REFERENCE]
    if reference and not chosen:
        return reference
    names = [candidate.name for candidate in suite.candidates(pair)]
    if chosen:
        names = [name for name in names if name in chosen] or [name for name in names if name not in tiers]
    why = _untimed if timed else obstacle
    return reference + [(name, why(tiers[name]) if name in tiers else "") for name in names]


def select_provider(suite: Suite, spec: str, tiers: Sequence[str]) -> "Provider":
    """The provider asked for. UsageError if there is none, if it cannot be used here, or if a tier is asked for as well."""
    if tiers:
        raise UsageError("--tier chooses among our own kernels and --provider names somebody else's: give one of them")
    from kernelpair.providers.named import ProviderError
    from kernelpair.providers.provider import ready

    found = provider_named(suite, spec)
    try:
        reason = ready(found)
    except ProviderError as error:
        raise UsageError(str(error)) from None
    if reason:
        raise UsageError(f"provider {spec} cannot be used here: {reason}")
    return found


def provider_named(suite: Suite, spec: str) -> "Provider":
    """The provider of this name or file, whether it can be used here or not. UsageError if there is none."""
    from kernelpair.providers.named import ProviderError
    from kernelpair.providers.provider import provider

    try:
        found = provider(spec)
    except ProviderError as error:
        raise UsageError(str(error)) from None
    for pair in found.adapters:
        if pair not in suite.pairs():
            raise UsageError(
                f"provider {spec} is for a pair that the suite in {suite.root} has not: {unknown('pair', pair, suite.pairs())}"
            )
    return found


def select_cpu(suite: Suite, options: argparse.Namespace) -> str:
    """The CPU that `--cpu` names; empty without it. UsageError where workers cannot be told that they have it."""
    name: str = options.cpu or ""
    if not name:
        return ""
    reason = cpu_obstacle(suite, name)
    if not options.provider:
        raise UsageError("--cpu needs --provider: our own kernels are tried on a tier, trapped where the CPU lacks it")
    if options.in_process:
        raise UsageError("--cpu changes what a whole process sees of its CPU: it does not go with --in-process")
    if reason:
        raise UsageError(f"--cpu {name}: {reason}")
    return name


def cpu_obstacle(suite: Suite, name: str) -> str:
    """Why workers cannot be told here that they have this CPU; empty where they can, and without a name. UsageError for an
    unknown one."""
    known = {cpu.name: cpu for cpu in suite.cpus}
    if name and name not in known:
        raise UsageError(unknown("CPU", name, known))
    return known[name].obstacle() if name else ""


def provided(found: "Provider", pair: "Pair", cpu: str = "") -> list[tuple[str, str]]:
    """The provider's candidate for a pair and, where it has none, the reason."""
    from kernelpair.providers.provider import candidate_name

    return [(candidate_name(found.spec, cpu), found.lacks(pair.name))]
