"""Which wrong calls a search makes: those first that were made least often, and what fails until it is small."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from kernelpair.call.runner import HarnessError, InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL
from kernelpair.contract.pair import Inputs, Pair, WrongCall
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.search import search as searching
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.trial.check import Journal, check
from kernelpair.trial.refusals import enough_wrong_calls
from tests.selftest.toy import PAIR, ToyCase, library, reference

MANY, DRAWS = 60, 120
SLOTS = PAIR.wrong_calls["slot_too_large"]
ACCEPTING = Candidate("accepting", f"{__name__}:accepting")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    library()


def checked(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """The toy's reference, which refuses slots that are too large, with two checks more."""
    if not isinstance(scale, float):
        raise TypeError("scale must be a float")
    if x.shape[1:] != out.shape[1:]:
        raise ValueError("x and out differ in their width")
    reference(x, slots, out, scale)


def _in_words(case: ToyCase, given: Inputs) -> Inputs | None:
    return given | {"scale": "one"}


def _wider(case: ToyCase, given: Inputs) -> Inputs | None:
    return given | {"x": given["x"].repeat(1, 2)} if case.rows and case.width else None


def of_many() -> Pair:
    """The toy with dozens of wrong calls, two of which its kernel takes for right."""
    many = {f"slot_{number}": SLOTS for number in range(MANY)}
    two = {"words": WrongCall(_in_words, TypeError, "scale"), "wider": WrongCall(_wider, ValueError, "x")}
    return replace(PAIR, reference=checked, wrong_calls=many | two)


def made_by(pair: Pair, monkeypatch: pytest.MonkeyPatch, several: bool = False) -> tuple[list[Verdict], Tally]:
    """The verdicts of a search among correct and wrong calls, and its tally."""
    verdicts: list[Verdict] = []
    usual = searching.check

    def noted(*arguments: object) -> Verdict:
        verdicts.append(usual(*arguments))  # type: ignore[arg-type]
        return verdicts[-1]

    monkeypatch.setattr(searching, "check", noted)
    with InProcess(ACCEPTING) as runner:
        tally = Search(Subject(pair, ACCEPTING), runner, several=several).run(DRAWS, None, 1, None)
    return verdicts, tally


def accepting(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """Right, but for the two checks that it does not make."""
    reference(x[:, : out.shape[1]], slots, out, 0.75 if isinstance(scale, str) else scale)


def test_none_is_made_again_before_all_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = of_many()
    pair = replace(pair, wrong_calls={name: wrong for name, wrong in pair.wrong_calls.items() if name.startswith("slot")})
    verdicts, tally = made_by(pair, monkeypatch)
    assert tally.passed, tally.failures
    made, most = Counter[str](), enough_wrong_calls(pair)
    for verdict in verdicts:
        others = verdict.wrong_calls[1:]
        assert len(others) < most and all(made[name] == min(made[each] for each in pair.wrong_calls) for name in others[:1])
        made.update(verdict.wrong_calls)
    assert made.keys() == pair.wrong_calls.keys(), "a search of some hundred cases makes them all"


def test_one_that_fails_is_made_small_and_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tally = made_by(of_many(), monkeypatch)
    (verdict,) = tally.failures.values()
    assert verdict.case.trial in (WRONG_CALL + "words", WRONG_CALL + "wider")
    assert replace(verdict.case, trial="value") in (ToyCase(), ToyCase(rows=0)), verdict.line
    assert verdict.calls == 1, "its case fails in the call that it names"


def test_a_search_for_several_defects_finds_both(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tally = made_by(of_many(), monkeypatch, several=True)
    assert {verdict.case.trial for verdict in tally.failures.values()} == {WRONG_CALL + "words", WRONG_CALL + "wider"}


def test_a_fault_of_the_pair_is_told_with_the_wrong_call_that_showed_it(tmp_path: Path) -> None:
    """Which others a case makes depends on those before it: the case's own name would not show it again."""
    odd = WrongCall(_in_words, TypeError, "x")  # the reference names another argument
    pair = replace(of_many(), wrong_calls={"slot_0": SLOTS, "odd": odd})
    journal = Journal(tmp_path / "running")
    with InProcess(ACCEPTING) as runner, pytest.raises(HarnessError) as fault:
        check(Subject(pair, ACCEPTING), ToyCase(trial=WRONG_CALL + "slot_0"), runner, journal)
    line = journal.path.read_text().strip()
    assert '"trial":"wrong_call:odd"' in line and str(fault.value).endswith(f"; the case was {line}")
