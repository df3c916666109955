"""What is wrong with one call, recorded in the verdict of its case: how it ended, what it left alone, what it returned."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.memory import Placed
from kernelpair.call.outcome import Outcome
from kernelpair.call.place import Placement
from kernelpair.call.results import Returned
from kernelpair.call.runner import Runner
from kernelpair.call.values import INDEX_POISON
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Bound, Inputs, Outputs, Truth, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.trial import judge
from kernelpair.trial.purity import unchanged
from kernelpair.trial.truth import Expected, Masks, bound_of, mark, mask_of, result_dtype, settled_by


class Abandoned(Exception):
    """The call failed in a way that leaves nothing to compare; the failure is recorded."""


class Judging:
    """Judges the calls of one case, and keeps its verdict."""

    def __init__(self, subject: Subject, case: Case, runner: Runner) -> None:
        self.subject = subject
        self.pair = subject.pair
        self.case = case
        self.runner = runner
        self.verdict = Verdict(case, self.pair.line(case))
        self.effects: list[Failure] = []
        """Side effects of the calls, each by its name once."""

    def record(self, failures: list[Failure], note: str = "") -> None:
        """Add failures to the verdict, each with the note in front, except kinds that are known of the candidate."""
        for failure in failures:
            if failure.kind not in self.subject.side_effects:
                self.verdict.failures.append(replace(failure, detail=f"{note}: {failure.detail}") if note else failure)

    def witness(self, compared: judge.Compared) -> None:
        """Called with all that is compared; the session that draws it keeps it (`report.recorder`)."""

    def note_effects(self, outcome: Outcome) -> None:
        """What the call changed in its process: each change once, after everything else that is wrong."""
        for effect in outcome.side_effects:
            failure = Failure(effect.kind, effect.name, effect.says)
            if effect.name not in self.subject.side_effects and failure.tensor not in {known.tensor for known in self.effects}:
                self.effects.append(failure)

    def judge_call(
        self, case: Case, placement: Placement, masks: Masks, outcome: Outcome, truth: Outputs, note: str
    ) -> Outputs:
        """Everything but values: that it came back, what it left alone, what ran."""
        if outcome.status != "ok":
            kind = outcome.status
            if outcome.error == "Unsupported" and self.subject.foreign:
                self.verdict.unsupported = outcome.message
                self.verdict.calls -= 1
                raise Abandoned
            detail = outcome.message if kind != "exception" else f"{outcome.error}: {outcome.message}"
            detail += _poison(outcome.message, placement.logical) if kind == "exception" else ""
            self.record([Failure(kind, "", f"{detail} ({outcome.at})" if outcome.at else detail)], note)
            raise Abandoned
        self.record(judge.memory(placement, self.runner.arena, masks, tuple(self.pair.signature.scratch)), note)
        self.record(judge.left(outcome), note)
        self.record(judge.declared(self.pair.reference, outcome), note)
        self._judge_path(case, outcome, note)
        idle, name = outcome.ran == "" and self.pair.cases.idle(case), self.subject.candidate.name
        by_tier = self.pair.tiers == "each" and not self.subject.foreign
        if by_tier and outcome.ran is not None and outcome.ran != name and not idle:
            self.record([Failure("wrong_tier", "", f"{outcome.ran or 'no kernel'} ran instead of {name}")], note)
        return self._outputs(case, placement, outcome, truth, note)

    def _judge_path(self, case: Case, outcome: Outcome, note: str) -> None:
        """The call executed some instruction of the path that the candidate claims, where that can be seen."""
        path = self.subject.candidate.claims
        if not path or outcome.executed is None or self.pair.cases.idle(case) or not self.subject.claimed(case):
            return
        if not any(count for name, count in outcome.executed.items() if name.split()[0] == path):
            self.record([Failure("wrong_path", "", f"the call executed no instruction of {path}, which is claimed")], note)

    def masks(self, case: Case, placement: Placement) -> Masks:
        """What the contract writes of the placed arguments."""
        return {
            name: mark(self.pair, case, name, placement.logical)
            for name in self.pair.signature.written
            if isinstance(placement.arguments.get(name), Placed)
        }

    def _outputs(self, case: Case, placement: Placement, outcome: Outcome, truth: Outputs, note: str) -> Outputs:
        arena = self.runner.arena
        outputs: Outputs = {}
        for name in self.pair.signature.written:
            placed = placement.arguments.get(name)
            if isinstance(placed, Placed):
                outputs[name] = arena.view(placed).clone(memory_format=torch.contiguous_format)
        for name, returned in outcome.results.items():
            if name in self.pair.signature.written or (truth and name not in truth):
                self.record([Failure("layout", name, "a result where the contract has none")], note)
            elif isinstance(returned, Returned):
                self._judge_result(case, name, returned, truth, note)
                outputs[name] = arena.view(returned.copy).clone()
            else:
                outputs[name] = returned
        return outputs

    def _judge_result(self, case: Case, name: str, returned: Returned, truth: Outputs, note: str) -> None:
        sizes = returned.copy.sizes
        legal = self.pair.signature.result_layout or (lambda case, name, sizes, strides: judge.is_contiguous(sizes, strides))
        if not legal(case, name, sizes, returned.strides):
            self.record([Failure("layout", name, f"strides {list(returned.strides)} for sizes {list(sizes)}")], note)
        if returned.around:
            self.record([Failure("untouched", name, returned.around)], note)
        if returned.form:
            self.record([Failure("result_form", name, f"the result {returned.form}")], note)
        if returned.aliases:
            self.record([Failure("layout", name, f"the result shares memory with {returned.aliases}")], note)
        expected = truth.get(name)
        if isinstance(expected, Tensor):
            dtype = result_dtype(self.pair, case, name, expected)
            wrong = judge.result_shape(name, sizes, returned.copy.dtype, expected, dtype)
            self.record(wrong, note)
            if wrong:
                raise Abandoned

    def judge_values(
        self, placement: Placement, masks: Masks, outputs: Outputs, truth: Outputs, bound: Bound, note: str
    ) -> None:
        for name, expected in truth.items():
            if name in self.pair.signature.scratch:
                continue
            if name not in outputs:
                self.record([Failure("layout", name, "the call returned no such result")], note)
            elif isinstance(expected, Tensor) != isinstance(outputs[name], Tensor):
                self.record([Failure("layout", name, f"{judge.shown(outputs, name)}, expected {judge.shown(truth, name)}")], note)
            elif not isinstance(expected, Tensor):
                if not judge.same_plain(outputs[name], expected):
                    self.record([Failure("value", name, f"{outputs[name]!r}, expected {expected!r}")], note)
            else:
                mask = mask_of(masks, name, expected)
                before = placement.logical[name] if name in self.pair.signature.written else None
                compared = judge.Compared(name, outputs[name], expected, bound.get(name), mask, before, note, self.pair.any_nan)
                self.witness(compared)
                failures, tightness = judge.judged(compared), judge.tightness_of(compared)
                self.record(failures, note)
                if tightness is not None and not failures:
                    self.verdict.tightness[name] = tightness

    def judge_whole(self, way: Truth, case: Case, inputs: Inputs, truth: Outputs, outputs: Outputs) -> list[Failure]:
        """What is wrong with whole outputs, where all are what they should be."""
        if not isinstance(way, Within) or way.aggregate is None or any(f.kind == "layout" for f in self.verdict.failures):
            return []
        with unchanged(self.pair.name, "aggregate", {"inputs": inputs, "truth": truth, "outputs": outputs}):
            wrong = way.aggregate(case, inputs, truth, outputs)
        return [Failure("value", name, says, ratio=ratio) for name, says, ratio in wrong]

    def note_gaps(self, case: Case, expected: Expected, masks: Masks, outputs: Outputs) -> None:
        """How far outputs are beyond the contract's own bound."""
        way = self.pair.truth
        assert isinstance(way, Within)
        bound = bound_of(self.pair, way, case, expected.inputs, expected.truth) if way.settle is None else {}
        own, masks = settled_by(self.pair, way, case, replace(expected, bound=bound), outputs, masks)
        truth = own.truth
        failures = self.judge_whole(way, case, expected.inputs, truth, outputs)
        for name in own.bound if way.settle is None else truth:
            mask = mask_of(masks, name, truth[name])
            failures += judge.judged(judge.Compared(name, outputs[name], truth[name], own.bound.get(name), mask))
        for failure in failures:
            self.verdict.gaps[failure.tensor] = max(self.verdict.gaps.get(failure.tensor, 0.0), failure.worst)


def _poison(message: str, given: Inputs) -> str:
    """Where an error's number that is no index of anything comes from: the entry should not have been read."""
    for number in (number for number in INDEX_POISON if str(number) in message):
        for name, value in given.items():
            if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64) and bool((value == number).any()):
                place = (value == number).nonzero()[0].tolist()
                return f"; {name}{place} holds that number, which is no index of anything, and is not to be read"
    return ""
