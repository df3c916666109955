"""What a pair's signature names are arguments that some case has, also where the reference takes `**kwargs`."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import properties
from kernelpair.contract.mistakes import arguments_named, mistakes_in, parameters
from kernelpair.contract.pair import Pair, Stepwise

PAIRS = properties.pairs()
DRAWN = 100  # cases in which every argument is to occur


def arguments_met(pair: Pair, wanted: set[str]) -> set[str]:
    """The arguments of drawn cases, until all that are wanted occurred."""
    met: set[str] = set()

    @settings(max_examples=DRAWN, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(pair.cases.strategy)
    def draw(case: Any) -> None:
        if not wanted <= met:
            met.update(pair.cases.inputs(case))

    draw()
    return met


@pytest.mark.parametrize("name", PAIRS)
def test_a_signature_names_arguments_that_occur(name: str) -> None:
    pair = PAIRS[name]
    wanted = {name for names in arguments_named(pair.signature).values() for name in names}
    known = parameters(pair.reference) or sorted(arguments_met(pair, wanted))
    if isinstance(pair.truth, Stepwise):  # a run names its results itself; some are compared step by step alone
        known = [*known, *pair.signature.scratch]
    assert not list(mistakes_in(pair, known))
