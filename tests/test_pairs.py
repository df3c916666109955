"""Every pair on every tier: the main trial, as pytest ids like `test_pair[store_cache-avx512]`."""

import os

import pytest

import properties
from kernelpair.check import read_case
from kernelpair.pytest_plugin import hold_trial
from properties.candidates import PYTHON, candidate, names, tier_named

ALL = [(pair, name) for pair in properties.pairs().values() for name in names(pair)]


def _skip_unless_wanted(config: pytest.Config, tier: str) -> None:
    wanted = config.getoption("--tier") or [t for t in [os.environ.get("KERNELPAIR_TIER")] if t]
    for name in wanted:
        tier_named(name)  # an unknown name is an error, not an empty run
    if tier == PYTHON:
        return
    if wanted and tier not in wanted:
        pytest.skip(f"only {', '.join(wanted)} asked for")
    if not tier_named(tier).runnable:
        if tier in wanted:
            pytest.fail(f"tier {tier} cannot run here: {tier_named(tier).reason}", pytrace=False)
        pytest.skip(tier_named(tier).reason)


def _corpus(pair: str) -> list:  # type: ignore[type-arg]
    folder = properties.ROOT / "tests" / "corpus" / pair
    lines = [line for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines() if line.strip()]
    return [read_case(properties.pairs(), line)[1] for line in lines]


@pytest.mark.parametrize(("pair", "tier"), ALL, ids=[f"{pair.name}-{name}" for pair, name in ALL])
def test_pair(request: pytest.FixtureRequest, pair, tier):  # type: ignore[no-untyped-def]
    _skip_unless_wanted(request.config, tier)
    subject = candidate(pair, tier)
    tally = hold_trial(request.config, pair, subject, ("properties.candidates",), _corpus(pair.name))
    assert tally.cases > 0, "nothing was tested"
