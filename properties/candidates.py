"""Our own kernels as candidates: one a tier, found again by name in the worker."""

from kernelpair.candidate import Candidate
from kernelpair.pair import Pair
from kernelpair.provider import PREFIX, provider
from optimized import Tier, forget_last_tier, last_tier, paths, set_tier, tiers
from properties import pairs

PYTHON = "python"


def candidate(pair: Pair, tier: str) -> Candidate:
    """The compiled kernel of `pair` in `tier`, or the one candidate of a pair that is not put on trial by tier."""
    module = pair.files["properties"].removesuffix(".py").replace("/", ".")
    prepare = "" if tier == PYTHON else "properties.candidates:set_tier"
    return Candidate(tier, f"{module}:PAIR.optimized", prepare, "properties.candidates:observe", "properties.candidates:taken")


def names(pair: Pair) -> list[str]:
    """The candidates of a pair: all tiers, runnable here or not."""
    return [PYTHON] if pair.tiers == PYTHON else [tier.name for tier in tiers()]


def tier_named(name: str) -> Tier:
    """The tier of this name. ValueError lists the known ones."""
    for tier in tiers():
        if tier.name == name:
            return tier
    raise ValueError(f"unknown tier {name!r}; known are {', '.join(tier.name for tier in tiers())}")


def observe(before: bool) -> str | None:
    """Forget, or tell, which tier ran last."""
    if before:
        forget_last_tier()
        return None
    return last_tier() or ""


def taken() -> list[str]:
    """The ways that kernels took since this was last asked."""
    return paths(taken=True)


def resolve(pair: str, name: str) -> tuple[Pair, Candidate]:
    """Pair and candidate by name, a tier or `provider:<name or file>`, in whichever process needs them."""
    found = pairs()[pair]
    if name.startswith(PREFIX):
        return provider(name.removeprefix(PREFIX)).trial(found)
    return found, candidate(found, name)


__all__ = ["PYTHON", "candidate", "names", "observe", "resolve", "set_tier", "taken", "tier_named"]
