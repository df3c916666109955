"""Which selections of experts are right: ties, near ties, and groups that only show by the experts chosen from them."""

import random
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
import torch

import optimized
from kernelpair.contract.pair import Inputs
from properties.topk_gating.selection import _experts_right, _groups_right, right, scored, settle
from reference.topk_gating import topk_gating

SMALL = 1e-7  # what float64 tells apart and the errors of a choice do not


def routed(bias: list[float], topk: int, groups: int = 1, kept: int = 1, logits: list[float] | None = None) -> Inputs:
    """One row. Without logits every score is 0, and experts are chosen by their bias alone."""
    z = torch.tensor([logits or [-torch.inf] * len(bias)], dtype=torch.float64)
    return {
        "logits": z, "topk": topk, "scoring": "sigmoid", "renormalize": True,
        "correction_bias": torch.tensor(bias, dtype=torch.float64), "num_expert_group": groups, "topk_group": kept,
        "scaling_factor": 1.0, "num_valid": None,
    }


def is_right(given: Inputs, ids: list[int], ties: bool = True) -> bool:
    found = replace(scored(given, torch.ones(1, dtype=torch.bool)), ties=ties)
    return bool(right(found, torch.tensor([ids]))[0])


@pytest.mark.parametrize(
    ("bias", "ids", "fine"),
    [
        ([0.5, 0.3, 0.4], [0, 2], True),
        ([0.5, 0.3, 0.4], [2, 0], False),  # the better one comes first
        ([0.5, 0.3, 0.4], [0, 1], False),  # expert 2 is better
        ([0.5, 0.3, 0.4], [0, 0], False),
        ([0.5, 0.3, 0.4], [0, 3], False),
        ([0.5, 0.3, 0.4], [0, -1], False),
        ([0.5, 0.4, 0.4 + SMALL / 10], [0, 1], True),  # nearer than their errors
        ([0.5, 0.4, 0.4 + SMALL / 10], [0, 2], True),
        ([0.5, 0.4, 0.4 + 10 * SMALL], [0, 1], False),
    ],
)
def test_experts_are_chosen_by_what_tells_them_apart(bias: list[float], ids: list[int], fine: bool) -> None:
    assert is_right(routed(bias, 2), ids) == fine


def test_of_equal_experts_the_lower_is_chosen_and_comes_first() -> None:
    given = routed([0.4, 0.5, 0.4, 0.4], 3)
    assert is_right(given, [1, 0, 2])
    for ids in ([1, 2, 0], [1, 0, 3]):
        assert not is_right(given, ids) and is_right(given, ids, ties=False)


@pytest.mark.parametrize(
    ("logits", "ids", "others", "ours"),
    [
        ([1.0, -5.0, 1.0, 1.0 - SMALL], [3], True, False),  # of two so near either has the larger score
        ([1.0, -5.0, 1.0, 1.0 - SMALL], [2], True, False),  # which may be why this group stayed
        ([1.0, -5.0, 1.0, 0.5], [2], False, False),
        ([1.0, -5.0, 1.0, 1.0], [2], False, False),
        ([1.0, -5.0, 1.0, 1.0 - SMALL], [0], True, True),
    ],
)
def test_groups_of_equal_largest_logits_are_equal_where_no_other_expert_is_near(
    logits: list[float], ids: list[int], others: bool, ours: bool
) -> None:
    given = routed([], 1, groups=2, kept=1, logits=logits) | {"correction_bias": None}
    found = scored(given, torch.ones(1, dtype=torch.bool))
    for rising, fine in ((False, others), (True, ours)):
        assert bool(right(replace(found, rising=rising), torch.tensor([ids]))[0]) == fine


def test_of_equal_groups_the_lower_stays() -> None:
    given = routed([0.1, 0.2, 0.4, 0.3, 0.3, 0.4], 1, groups=3, kept=1)
    assert is_right(given, [2])
    assert not is_right(given, [5]) and is_right(given, [5], ties=False)


def test_groups_that_stayed_unseen_are_looked_for() -> None:
    bias = [0.8, 0.7, 0.9, 0.0, 0.45, 0.45]  # by the sums of two the second and the third group tie
    assert is_right(routed(bias, 2, groups=3, kept=2), [0, 1])  # the third one stayed
    assert is_right(routed(bias, 2, groups=3, kept=2), [2, 0])  # the second
    bias[4:] = [0.44, 0.44]
    assert not is_right(routed(bias, 2, groups=3, kept=2), [0, 1])


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(12))
def test_groups_that_can_stay_are_those_of_which_some_choice_is_right(seed: int, kept: int) -> None:
    rng = random.Random(seed)
    bias = [rng.choice((0.1, 0.2)) + rng.randrange(-3, 4) * SMALL / 4 for _ in range(12)]
    given = routed(bias, 2, groups=6, kept=kept)
    found = replace(scored(given, torch.ones(1, dtype=torch.bool)), ties=bool(seed % 2))
    answers = set()
    for ids in permutations(range(12), 2):
        chosen = torch.tensor([ids])
        sets = [set(each) for each in combinations(range(6), kept) if {i // 2 for i in ids} <= set(each)]
        stay = [torch.tensor([[group in each for group in range(6)]]) for each in sets]
        expected = any(bool(_groups_right(found, each) & _experts_right(found, chosen, each)) for each in stay)
        assert bool(right(found, chosen)) == expected, ids
        answers.add(expected)
    assert answers == {True, False}


def test_of_many_groups_not_every_choice_is_tried() -> None:
    bias = [(group * 37 % 70) / 100 for group in range(70) for _ in range(2)]
    given = routed(bias, 8, groups=70, kept=17)
    best = sorted(range(140), key=lambda expert: (-bias[expert], expert))[:8]
    assert is_right(given, best) and not is_right(given, [*best[:7], bias.index(0.3)])


def test_too_many_groups_are_wrong() -> None:
    bias = [0.5, 0.1, 0.5 + SMALL / 10, 0.1]
    assert not is_right(routed(bias, 2, groups=2, kept=1), [2, 0])
    assert is_right(routed(bias, 2, groups=2, kept=1), [0, 1])
    assert is_right(routed(bias, 2, groups=2, kept=1), [2, 3])


def test_sums_of_groups_beyond_float32_are_alike() -> None:
    given = routed([-3e38, -2e38, -2e38, -2e38], 2, groups=2, kept=1)
    assert is_right(given, [1, 0]) and is_right(given, [2, 3])
    given = routed([-3e38, -2e37, -2e38, -2e37], 2, groups=2, kept=1)
    assert not is_right(given, [1, 0]) and is_right(given, [3, 2])


def settled(given: Inputs, ids: list[list[int]]) -> dict[str, Any]:
    arguments = {name: value for name, value in given.items()}
    weights, chosen = topk_gating(**arguments)
    outputs = {"weights": torch.zeros_like(weights), "ids": torch.tensor(ids, dtype=torch.int32)}
    return settle(None, given, {"weights": weights, "ids": chosen}, outputs)


def test_weights_follow_the_choice() -> None:
    given = routed([0.0, 0.0, 0.0], 1, logits=[1.0, 1.0 + SMALL, 0.0]) | {"renormalize": False}
    for expert in (0, 1):
        assert settled(given, [[expert]])["ids"].tolist() == [[expert]]
        assert settled(given, [[expert]])["weights"].item() == torch.sigmoid(given["logits"][0, expert]).item()
    assert settled(given, [[2]])["ids"].tolist() == [[1]]


def test_of_a_row_with_nan_any_different_experts_are_right() -> None:
    given = routed([0.0, 0.0, 0.0], 2, logits=[1.0, float("nan"), 0.0])
    assert settled(given, [[2, 1]])["ids"].tolist() == [[2, 1]]
    assert settled(given, [[2, 1]])["weights"].isnan().all()
    for wrong in ([1, 1], [-1, -1], [0, 3]):
        assert settled(given, [wrong])["ids"].tolist() == [[0, 1]]


@pytest.mark.parametrize("tier", [tier.name for tier in optimized.tiers() if tier.runnable])
def test_a_group_whose_sum_overflows_can_still_be_taken(tier: str) -> None:
    bias, logits = torch.tensor([-2e38, -2e38, -1.9e38, -3e38]), torch.zeros(1, 4)
    with optimized.use_tier(tier):
        _, ids = optimized.operator("topk_gating")(logits, 2, "sigmoid", True, bias, 2, 1)
    assert ids.tolist() == [[0, 1]]


def test_the_largest_scaling_factor_that_float32_rounds_to_a_number() -> None:
    logits = torch.zeros(1, 8)
    got, wanted = (side(logits, 2, scaling_factor=3.4028235e38)[0] for side in (optimized.operator("topk_gating"), topk_gating))
    assert got.isfinite().all() and torch.equal(got, wanted)


def test_where_the_choice_names_all_groups_no_other_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a wrong kernel took two milliseconds, and a model's batch has thousands of rows."""
    monkeypatch.setattr("properties.topk_gating.selection._some_groups_right", None)
    assert not is_right(routed([0.5, 0.3, 0.4], 2), [0, 1])
    assert not is_right(routed([0.1, 0.2, 0.4, 0.3, 0.3, 0.4], 2, groups=3, kept=2), [0, 2])
