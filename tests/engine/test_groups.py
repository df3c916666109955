"""What a failure hangs on, and how long that is looked for."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest

import properties
from kernelpair.contract.case import Case
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.search import groups
from kernelpair.search.groups import group_of
from properties.topk_gating.cases import TopkCase
from tests.selftest.toy import PAIR, ToyCase

CASE = ToyCase(rows=3, width=5, spare=1, guard="start", poison="outlier", layout={"x": "padded"})


def tried_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many cases are tried to find what a failure of this kind hangs on, each of which takes three seconds."""
    clock, tried = count(0.0, 3.0), []
    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def fails(case: Case) -> Verdict:
        tried.append(case)
        return Verdict(case, PAIR.line(case), [Failure(kind, "", "any case")])

    group = group_of(PAIR, fails(CASE), fails, {"dtype": {"float32", "bfloat16", "float16"}, "poison": {"nan", "outlier"}})
    assert group.label == f"{kind}: any case"
    return len(tried)


def test_a_hang_is_not_tried_in_every_other_way_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    within = 1 + int(groups.HANGING_SECONDS / 3)
    assert tried_of("hang", monkeypatch) <= within < tried_of("crash", monkeypatch)


@pytest.mark.parametrize(
    ("fails", "label"),
    [
        (lambda case: case.bias != "none", "value out: bias not none"),
        (lambda case: case.bias == "call", "value out: bias call"),
        (lambda case: True, "value out: any case"),
    ],
)
def test_what_hangs_on_an_argument_that_is_there_says_so(fails: Callable[[TopkCase], bool], label: str) -> None:
    pair = properties.pairs()["topk_gating"]

    def judged(case: Case) -> Verdict:
        assert isinstance(case, TopkCase)
        return Verdict(case, pair.line(case), [Failure("value", "out", "wrong")] if fails(case) else [])

    seen = {"bias": {"none", "call", "float32"}}
    assert group_of(pair, judged(TopkCase(bias="call")), judged, seen).label == label
