"""Kernels of torch.compile: what compiles anew within a trial gives other bits, which is no fault of the kernel."""

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.trial import check as checking
from kernelpair.trial.check import COMPILING, check
from kernelpair.trial.session import Session
from tests.kernels import kernel
from tests.selftest.toy import PAIR, ToyCase


def _tried(case: ToyCase, name: str) -> Verdict:
    candidate = kernel(name)
    with Isolated(candidate) as runner:
        return check(Subject(PAIR, candidate), case, runner)


def test_what_is_compiled_is_not_called_in_a_mode_that_would_compile_it_anew() -> None:
    verdict = _tried(ToyCase(rows=3, trial="repeat"), "compiled_outside_of_modes")
    assert verdict.passed and verdict.compilations == {1}, verdict.failures


@pytest.mark.parametrize("trial", ["value", "aftermath"])
def test_what_compiling_changes_of_the_process_is_not_the_kernels(trial: str) -> None:
    verdict = _tried(ToyCase(rows=3, trial=trial), "compiles_when_called")
    assert verdict.passed, verdict.failures


@pytest.mark.parametrize(
    ("kind", "until", "graphs", "times"),
    [
        ("nondeterministic", 3, 2, 3),  # passes once everything is compiled
        ("relation", 3, 2, 3),
        ("nondeterministic", 99, 2, COMPILING),
        ("nondeterministic", 3, 1, 1),  # nothing was compiled between the calls
        ("value", 3, 2, 1),
    ],
)
def test_a_trial_in_which_something_was_compiled_is_held_again(
    monkeypatch: pytest.MonkeyPatch, kind: str, until: int, graphs: int, times: int
) -> None:
    held = 0

    def hold(session: Session) -> None:
        nonlocal held
        held += 1
        session.verdict.compilations.update(range(graphs))
        session.verdict.failures += [Failure(kind, "out", "other bits")] if held < until else []

    monkeypatch.setattr(checking, "hold_trial", hold)
    assert _tried(ToyCase(), "good").passed == (times == until)
    assert held == times
