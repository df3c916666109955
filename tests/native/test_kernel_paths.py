"""No way through a kernel stays untried: the marks of csrc/core/path.h are all reached by cases that the pair draws."""

import pytest

import properties
from kernelpair.call.runner import Isolated
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from optimized import best_tier, operator, paths, taken_paths, tiers, tiled_tiers
from properties.suite import candidate

PAIRS = properties.pairs()
CASES = 2000
TRIED = sorted({best_tier(), "avx512", *tiled_tiers()} & {tier.name for tier in tiers() if tier.runnable})
MARKED = [(pair, tier) for pair in PAIRS.values() for tier in TRIED if pair.coverage.paths(tier)]


@pytest.mark.parametrize(("pair", "tier"), MARKED, ids=[f"{pair.name}-{tier}" for pair, tier in MARKED])
def test_every_way_is_taken(pair: Pair, tier: str) -> None:
    wanted = set(pair.coverage.paths(tier))
    subject = candidate(pair, tier)
    with Isolated(subject, preload=("properties.suite",)) as runner:
        run = Search(Subject(pair, subject), runner, trial="value", stopped=lambda: wanted <= run.tally.paths.keys())
        tally = run.run(CASES, None, 1, None)
    assert tally.passed, tally.failures
    assert wanted <= tally.paths.keys(), f"{tally.cases} cases never took {wanted - tally.paths.keys()}"


def test_every_mark_belongs_to_a_pair() -> None:
    for tier in tiers():
        claimed = {name for pair in PAIRS.values() for name in pair.coverage.paths(tier.name)}
        assert claimed == set(paths(tier.name)) and bool(claimed) == tier.compiled


def test_a_tier_has_the_ways_that_it_can_take() -> None:
    for tier in tiers():
        named = paths(tier.name)
        assert ("store_dense" in named) == tier.compiled
        assert any("_tiles" in name for name in named) == (tier.compiled and tier.tiled)
        assert ("decode_pairs" in named) == (tier.compiled and tier.products == "dots")
        assert ("decode_tiles_expanded" in named) == (tier.compiled and tier.tiled and tier.products != "dots")


def test_what_was_taken_is_told_once() -> None:
    taken_paths()
    pair = PAIRS["store_cache"]
    operator("store_cache")(**pair.cases.inputs(pair.cases.type()))
    assert taken_paths() == ["store_dense"]
    assert taken_paths() == []
