"""What a failure hangs on, and how long that is looked for."""

from itertools import count
from types import SimpleNamespace

import pytest

from kernelpair.contract.case import Case
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.search import groups
from kernelpair.search.groups import group_of
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
