"""The data of the pictures: which element is drawn how, and what its words say."""

import math

import numpy as np
import pytest
import torch

from kernelpair.report.plane import FINE, NONFINITE, UNJUDGED, UNWRITTEN, VALUE, Plane, drawn_in_text, plane_of
from kernelpair.trial.judge import Compared

BOUND = 1e-3


def plane(got: torch.Tensor, truth: torch.Tensor, **more: object) -> Plane:
    bound = torch.full(truth.shape, BOUND, dtype=torch.float64)
    found = plane_of(Compared("out", got, truth.to(torch.float64), bound, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_each_element_is_of_the_kind_that_the_judge_gives_it() -> None:
    truth = torch.ones(2, 4)
    got, before = truth.clone(), torch.full((2, 4), 7.0)
    got[0, 1], got[0, 2], got[1, 0] = 2.0, math.nan, 7.0
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[1, 3] = False
    found = plane(got, truth, mask=mask, before=before)
    assert found.kinds.tolist() == [[FINE, VALUE, NONFINITE, FINE], [UNWRITTEN, FINE, FINE, UNJUDGED]]
    assert (found.wrong, found.judged) == (3, 7)
    assert found.ratios[0, 1] == pytest.approx(1 / BOUND) and math.isnan(found.ratios[1, 3])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ((slice(None), slice(16, 20)), "all 6 rows, columns 16 to 19 of 20"),
        ((2, slice(None)), "row 2 of 6, all 20 columns"),
        ((slice(None), slice(0, 20, 2)), "all 6 rows, every 2. column from 0 to 18"),
        ((slice(0, 1), slice(0, 1)), "row 0 of 6, column 0 of 20"),
    ],
)
def test_words_say_where(wrong: tuple[object, object], says: str) -> None:
    truth = torch.zeros(6, 20)
    got = truth.clone()
    got[wrong] = 1.0  # type: ignore[index]
    assert says in plane(got, truth).says


def test_a_single_wrong_element_of_a_large_tensor_stays_in_sight() -> None:
    truth = torch.zeros(40, 33, 700)
    got = truth.clone()
    got[17, 5, 333] = 1.0
    found = plane(got, truth)
    assert found.kinds.shape[0] <= 64 and found.kinds.shape[1] <= 128 and int((found.kinds == VALUE).sum()) == 1
    assert found.firsts == (17,) and found.wrong == 1


def test_the_histogram_counts_every_judged_element() -> None:
    truth = torch.zeros(3, 5)
    got = torch.full((3, 5), 0.4 * BOUND)
    got[0] = 3 * BOUND
    found = plane(got.double(), truth)
    assert found.histogram == {-1: 10, 2: 5}


def test_equal_elements_of_an_exact_output_are_right_and_others_infinitely_wrong() -> None:
    got = torch.tensor([[1.0, 2.0]])
    found = plane_of(Compared("k_cache", got, torch.tensor([[1.0, 3.0]]), None))
    assert found is not None and found.exact
    assert found.kinds.tolist() == [[FINE, VALUE]] and np.isinf(found.ratios[0, 1])


def test_shapes_that_disagree_have_no_picture() -> None:
    assert plane_of(Compared("out", torch.ones(2), torch.ones(3), None)) is None
    assert plane_of(Compared("out", torch.ones(0, 4), torch.ones(0, 4), None)) is None


def test_the_terminal_shows_the_same() -> None:
    truth = torch.zeros(2, 5)
    got = truth.clone()
    got[1, 3], got[1, 4], got[0, 0] = 1.0, math.inf, 0.9 * BOUND
    drawn = drawn_in_text(plane(got, truth)).splitlines()
    assert drawn[1].split() == ["0", "+...."] and drawn[2].split() == ["1", "...#N"]
