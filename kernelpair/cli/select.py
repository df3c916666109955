"""Which pairs and tiers a command line means."""

import os
from collections.abc import Sequence

import properties
from kernelpair.cli.main import UsageError
from kernelpair.pair import Pair
from kernelpair.provider import PREFIX, Provider, ProviderError, provider, ready
from properties.candidates import PYTHON, names, tier_named

ENVIRONMENT_TIER = "KERNELPAIR_TIER"
RESOLVE = "properties.candidates:resolve"
PRELOAD = ("properties.candidates",)


def select_pairs(wanted: Sequence[str]) -> list[Pair]:
    """The pairs of these names, all if there is none. UsageError lists the known ones."""
    known = properties.pairs()
    for name in wanted:
        if name not in known:
            raise UsageError(f"unknown pair {name!r}; known are {', '.join(known)}")
    return [known[name] for name in known if not wanted or name in wanted]


def select_tiers(wanted: Sequence[str]) -> list[str]:
    """The tiers asked for by option or environment; none means all. UsageError for one that is unknown or cannot run."""
    chosen = list(wanted) or [tier for tier in [os.environ.get(ENVIRONMENT_TIER)] if tier]
    for name in chosen:
        if name == PYTHON:
            continue
        try:
            tier = tier_named(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not tier.runnable:
            raise UsageError(f"tier {name} cannot run here: {tier.reason}")
    return chosen


def select_candidates(pair: Pair, tiers: Sequence[str]) -> list[tuple[str, str]]:
    """Candidate and, where it cannot run here, the reason. A pair that is not put on trial by tier has just one."""
    if pair.tiers == PYTHON:
        return [(PYTHON, "")]
    found = [(name, tier_named(name)) for name in names(pair) if not tiers or name in tiers]
    return [(name, "" if tier.runnable else tier.reason) for name, tier in found]


def select_provider(spec: str, tiers: Sequence[str]) -> Provider:
    """The provider asked for. UsageError if there is none, if it cannot be used here, or if a tier is asked for as well."""
    if tiers:
        raise UsageError("--tier chooses among our own kernels and --provider names somebody else's: give one of them")
    found = provider_named(spec)
    reason = ready(found)
    if reason:
        raise UsageError(f"provider {spec} cannot be used here: {reason}")
    return found


def provider_named(spec: str) -> Provider:
    """The provider of this name or file, whether it can be used here or not. UsageError if there is none."""
    try:
        found = provider(spec)
    except ProviderError as error:
        raise UsageError(str(error)) from None
    for pair in found.adapters:
        if pair not in properties.pairs():
            raise UsageError(f"provider {spec} adapts {pair!r}, which is no pair; known are {', '.join(properties.pairs())}")
    return found


def provided(found: Provider, pair: Pair) -> list[tuple[str, str]]:
    """The provider's candidate for a pair and, where it has none, the reason."""
    return [(PREFIX + found.spec, "" if pair.name in found.adapters else f"{found.name} has no such kernel")]
