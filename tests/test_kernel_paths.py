"""No way through a kernel stays untried: the marks of csrc/common/path.h are all reached by cases that the pair draws."""

import pytest

import properties
from kernelpair.drive import Drive
from kernelpair.pair import Pair
from kernelpair.run import Isolated
from optimized import TILED, best_tier, paths, tiers
from properties.candidates import candidate

PAIRS = properties.pairs()
CASES = 2000
TRIED = sorted({best_tier(), "avx512", *TILED} & {tier.name for tier in tiers() if tier.runnable})
MARKED = [(pair, tier) for pair in PAIRS.values() for tier in TRIED if pair.paths(tier)]


@pytest.mark.parametrize(("pair", "tier"), MARKED, ids=[f"{pair.name}-{tier}" for pair, tier in MARKED])
def test_every_way_is_taken(pair: Pair, tier: str) -> None:
    wanted = set(pair.paths(tier))
    subject = candidate(pair, tier)
    with Isolated(subject, preload=("properties.candidates",)) as runner:
        run = Drive(pair, subject, runner, relation="value", stopped=lambda: wanted <= run.tally.paths.keys())
        tally = run.run(CASES, None, 1, None)
    assert tally.passed, tally.failures
    assert wanted <= tally.paths.keys(), f"{tally.cases} cases never took {wanted - tally.paths.keys()}"


def test_every_mark_belongs_to_a_pair() -> None:
    claimed = {name for pair in PAIRS.values() for tier in TILED for name in pair.paths(tier)}
    assert claimed == set(paths())


def test_what_was_taken_is_told_once() -> None:
    from optimized import operator

    paths(taken=True)
    pair = PAIRS["store_cache"]
    operator("store_cache")(**pair.inputs(pair.case()))
    assert paths(taken=True) == ["store_dense"]
    assert paths(taken=True) == []
