"""What is put on trial: a candidate under a pair's contract, with what belongs to the candidate and not to the contract."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL
from kernelpair.contract.pair import Pair, Truth, Within


@dataclass(frozen=True)
class Subject:
    """A pair and a candidate, and what is known of the candidate alone."""

    pair: Pair
    candidate: Candidate
    limits: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """A documented limit -> (case) -> does it lie outside of the limit. Such cases are counted, not judged."""
    fit: Callable[[Any], Any] = lambda case: case
    """A case outside of the limits -> one like it within them, which is tried in its place."""
    skipped_trials: Collection[str] = ()
    """Trials that the candidate is not put to: relations, built-in ones, `WRONG_CALLS`."""
    rounding: str = ""
    """One of the truth's `roundings`, which the candidate is known to do: the bound that judges it is derived with this
    rounding."""
    claimed: Callable[[Any], bool] = lambda case: True
    """The cases in which the candidate takes the path that it claims (`Candidate.claims`)."""
    side_effects: Mapping[str, str] = field(default_factory=dict)
    """Known side effects of its calls, which are not judged: name, as a failure names it, or kind, where it has none -> why."""
    foreign: bool = False
    """Somebody else's kernel: it may say `Unsupported`, and no tier is asked for."""

    @cached_property
    def judged_by(self) -> Truth:
        """The pair's truth: derived anew with the rounding that the candidate is known to do, or with what more is asked of a
        suite's own kernels."""
        way = self.pair.truth
        if not isinstance(way, Within):
            return way
        if self.rounding:
            return way.roundings[self.rounding]
        return way if self.foreign else replace(way, bound=way.ours or way.bound, settle=way.settle_ours or way.settle)

    def unsupported(self, case: Any) -> str:
        """The documented limit that keeps the candidate from this case; empty if there is none."""
        return next((says for says, outside in self.limits.items() if outside(case)), "")

    def asked_for(self, trial: str) -> bool:
        """Whether the candidate is asked for a trial of this name."""
        if trial.startswith(WRONG_CALL):
            return WRONG_CALLS not in self.skipped_trials
        return trial not in self.skipped_trials and self.pair.has_trial(trial)


WRONG_CALLS = "wrong_calls"
"""In `Subject.skipped_trials`: all wrong calls of the pair."""
