"""One trial of one case: its calls, each judged against the truth, and what relations find out about them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelpair import judge
from kernelpair.candidate import Candidate
from kernelpair.case import REJECTS, Case, to_line
from kernelpair.fuzz import spoiled
from kernelpair.pair import Bad, Bound, Inputs, Outputs, Pair, named_in
from kernelpair.place import Placed, Placement, place, resolve, settle
from kernelpair.run import HarnessError, Runner
from kernelpair.values import permutation
from kernelpair.verdict import Failure, Verdict
from kernelpair.worker import Outcome, Request, Returned, named_results

THREADS = 2  # of a call, unless the trial varies them
CALLERS = 3  # Python threads of a `concurrent` trial
WRONG_CALLS = 4  # of one `rejects` trial: together they cost about as much as two judged calls
CONTRACT_ERRORS = (TypeError, ValueError, IndexError)
BUILT_IN = {
    "repeat": "the same call twice gives the same bits",
    "threads": "any number of threads up to twice the cores stays within the bound",
    "concurrent": "calls from several Python threads at once give the bits of one alone",
    "fuzz": "a call spoiled at random raises TypeError, ValueError or IndexError where the reference does, and changes nothing",
    "poison": "other content in unused bytes, scratch and fresh outputs, and the guard page on the other side: the same bits",
}


def thread_counts(cores: int, seed: int) -> list[int]:
    """Of 1 .. 2 cores, but for the THREADS that every call has: all if they are few, else the ends, the middle, one by chance."""
    most = max(2 * cores, 3)
    few = range(1, most + 1) if most <= 4 else {1, 3, cores, most, 1 + seed % most}
    return sorted(set(few) - {THREADS})


class Abandoned(Exception):
    """The call failed in a way that leaves nothing to compare; the failure is recorded."""


@dataclass(frozen=True)
class Expected:
    """What the contract says of a call: its outputs in float64, their bound, and the inputs in float64 as they were."""

    truth: Outputs
    inputs: Inputs
    bound: Bound


Masks = Mapping[str, Tensor | bool]
"""Mutated argument -> the elements that the contract writes."""
NOTHING_EXPECTED = Expected({}, {}, {})


@dataclass
class Result:
    """A judged call."""

    outputs: Outputs
    truth: Outputs
    bound: Bound

    def bound_of(self, name: str) -> Tensor:
        """The bound of each element of an output as a tensor: 0 where it is exact."""
        bound = self.bound.get(name)
        return bound if isinstance(bound, Tensor) else torch.zeros_like(self.truth[name], dtype=torch.float64)


class Session:
    """Runs the calls of a trial. Relations use `first`, `run`, `expect_close` and `expect_same`."""

    def __init__(self, pair: Pair, candidate: Candidate, case: Case, runner: Runner) -> None:
        self.pair = pair
        self.candidate = candidate
        self.case = case
        self.runner = runner
        self.verdict = Verdict(case, to_line(pair.name, pair.version, case))
        self.first: Result
        self._drawn: list[tuple[Case, Inputs]] = []
        self._expected: Expected | None = None

    def run(
        self, case: Case | None = None, inputs: Inputs | None = None, threads: int = THREADS, note: str = "", judged: bool = True
    ) -> Result:
        """Place, run and judge another case of the pair, or the same one with other logical inputs.

        Failures are recorded with `note`. Raises Abandoned where the candidate gave no result. With `judged=False` neither
        truth nor bound is evaluated.
        """
        case = case or self.case
        self.verdict.unsupported = self.pair.unsupported(case)
        if self.verdict.unsupported:
            raise Abandoned
        settled = settle(self.pair, case, self._inputs_of(case) if inputs is None else inputs)
        placement = place(self.pair, case, settled, self.runner.arena)
        known = inputs is None and case is self.case
        expected = self._expect(case, settled, known) if judged and self.pair.judge is None else NOTHING_EXPECTED
        truth, bound = expected.truth, expected.bound
        outcome = self._call(placement, threads)
        masks = self._masks(case, placement)
        outputs = self._judge_call(case, placement, masks, outcome, truth, note)
        if judged and self.pair.judge is not None:
            failures, self.verdict.tightness = self.pair.judge(case, settled, outputs)
            self.verdict.failures[:0] = failures  # the first, for they say why where no kernel came to run
        elif judged:
            self._judge_values(placement, masks, outputs, truth, bound, note)
            if self.pair.aggregate is not None:
                wrong = self.pair.aggregate(case, expected.inputs, truth, outputs)
                self._record([Failure("value", name, says) for name, says in wrong], note)
        return Result(outputs, truth, bound)

    def _expect(self, case: Case, settled: Inputs, known: bool) -> Expected:
        """Truth and bound of a call; of the session's own case they are evaluated once."""
        if known and self._expected is not None:
            return self._expected
        truth, inputs = truth_of(self.pair, settled)
        expected = Expected(truth, inputs, self.pair.bound(case, inputs, truth) if self.pair.bound is not None else {})
        if known:
            self._expected = expected
        return expected

    def inputs(self) -> Inputs:
        """The case's logical inputs as the first call had them: expanded arguments repeated, aliases resolved."""
        return resolve(settle(self.pair, self.case, self._inputs_of(self.case)))

    def _inputs_of(self, case: Case) -> Inputs:
        """The pair's inputs of a case, made once: nothing writes to them."""
        for known, inputs in self._drawn:
            if known is case:
                return inputs
        self._drawn.append((case, self.pair.inputs(case)))
        return self._drawn[-1][1]

    def expect_close(self, name: str, got: Tensor, expected: Tensor, tolerance: Tensor, says: str) -> None:
        """Record a failed relation unless |got - expected| <= tolerance everywhere."""
        failures, _ = judge.values(name, got, expected.to(torch.float64), tolerance)
        self._relate(failures, says)

    def expect_same(self, name: str, got: Tensor, expected: Tensor, says: str, kind: str = "relation") -> None:
        """Record a failed relation unless both hold the same bits."""
        if not judge.same_bits(got, expected):
            count = int((got != expected).sum()) if got.shape == expected.shape else got.numel()
            self.verdict.failures.append(Failure(kind, name, f"{says}: {count} of {got.numel()} elements differ in their bits"))

    def expect(self, holds: bool, name: str, says: str) -> None:
        """Record a failed relation unless `holds`."""
        if not holds:
            self.verdict.failures.append(Failure("relation", name, says))

    def _relate(self, failures: list[Failure], says: str) -> None:
        for failure in failures:
            self.verdict.failures.append(replace(failure, kind="relation", detail=f"{says}: {failure.detail}"))

    def _call(self, placement: Placement, threads: int, others: Sequence[Placement] = ()) -> Outcome:
        self.verdict.calls += 1 + len(others)
        guards = [page for each in (placement, *others) for page in each.guards]
        also = [other.arguments for other in others]
        request = Request(placement.arguments, guards, self.runner.arena.used, tuple(self.pair.results), threads, also)
        outcome = self.runner.run(request)
        if outcome.status == "harness":
            raise HarnessError(outcome.message)
        self.verdict.paths.update(outcome.paths)
        return outcome

    def _judge_call(
        self, case: Case, placement: Placement, masks: Masks, outcome: Outcome, truth: Outputs, note: str
    ) -> Outputs:
        """Everything but values: that it came back, what it left alone, what ran."""
        if outcome.status != "ok":
            kind = outcome.status
            if outcome.error == "Unsupported" and self.pair.tiers == "provider":
                self.verdict.unsupported = outcome.message
                self.verdict.calls -= 1
                raise Abandoned
            detail = outcome.message if kind != "exception" else f"{outcome.error}: {outcome.message}"
            self._record([Failure(kind, "", detail)], note)
            raise Abandoned
        self._record(judge.memory(placement, self.runner.arena, masks, tuple(self.pair.scratch)), note)
        for name in outcome.moved:
            self._record([Failure("layout", name, "the call changed the argument's sizes, strides or data pointer")], note)
        idle = outcome.ran == "" and self.pair.idle(case)
        if self.pair.tiers == "each" and outcome.ran is not None and outcome.ran != self.candidate.name and not idle:
            self._record([Failure("wrong_tier", "", f"{outcome.ran or 'no kernel'} ran instead of {self.candidate.name}")], note)
        return self._outputs(case, placement, outcome, truth, note)

    def _masks(self, case: Case, placement: Placement) -> Masks:
        return {
            name: mask(case, placement.logical)
            for name, mask in self.pair.mutates.items()
            if isinstance(placement.arguments.get(name), Placed)
        }

    def _outputs(self, case: Case, placement: Placement, outcome: Outcome, truth: Outputs, note: str) -> Outputs:
        arena = self.runner.arena
        outputs: Outputs = {}
        for name in self.pair.mutates:
            placed = placement.arguments.get(name)
            if isinstance(placed, Placed):
                outputs[name] = arena.tensor(placed.dtype, placed.start, placed.sizes, placed.strides).clone(
                    memory_format=torch.contiguous_format
                )
        for name, returned in outcome.results.items():
            if name in self.pair.mutates or (truth and name not in truth):
                self._record([Failure("layout", name, "a result where the contract has none")], note)
            elif isinstance(returned, Returned):
                self._judge_result(case, name, returned, truth, note)
                copy = returned.copy
                outputs[name] = arena.tensor(copy.dtype, copy.start, copy.sizes, copy.strides).clone()
            else:
                outputs[name] = returned
        return outputs

    def _judge_result(self, case: Case, name: str, returned: Returned, truth: Outputs, note: str) -> None:
        sizes = returned.copy.sizes
        legal = self.pair.result_layout or (lambda case, name, sizes, strides: _is_contiguous(sizes, strides))
        if not legal(case, name, sizes, returned.strides):
            self._record([Failure("layout", name, f"strides {list(returned.strides)} for sizes {list(sizes)}")], note)
        if returned.aliases:
            self._record([Failure("layout", name, f"the result shares memory with {returned.aliases}")], note)
        expected = truth.get(name)
        if isinstance(expected, Tensor):
            dtype = self._result_dtype(case, name, expected)
            wrong = judge.result_shape(name, sizes, returned.copy.dtype, expected, dtype)
            self._record(wrong, note)
            if wrong:
                raise Abandoned

    def _result_dtype(self, case: Case, name: str, truth: Tensor) -> torch.dtype:
        if self.pair.result_dtype is not None:
            return self.pair.result_dtype(case, name)
        floating = truth.dtype.is_floating_point and not self.pair.exact_reference
        return getattr(torch, case.dtype) if floating else truth.dtype

    def _judge_values(
        self, placement: Placement, masks: Masks, outputs: Outputs, truth: Outputs, bound: Bound, note: str
    ) -> None:
        for name, expected in truth.items():
            if name in self.pair.scratch:
                continue
            if name not in outputs:
                self._record([Failure("layout", name, "the call returned no such result")], note)
            elif isinstance(expected, Tensor) != isinstance(outputs[name], Tensor):
                self._record([Failure("layout", name, f"a {_type(outputs[name])}, expected a {_type(expected)}")], note)
            elif not isinstance(expected, Tensor):
                if outputs[name] != expected:
                    self._record([Failure("value", name, f"{outputs[name]!r}, expected {expected!r}")], note)
            else:
                mask = masks.get(name)
                mask = mask.expand(expected.shape) if isinstance(mask, Tensor) else None
                before = placement.logical[name] if name in self.pair.mutates else None
                failures, tightness = judge.values(name, outputs[name], expected, bound.get(name), mask, before)
                self._record(failures, note)
                if tightness is not None and not failures:
                    self.verdict.tightness[name] = tightness

    def _record(self, failures: list[Failure], note: str) -> None:
        for failure in failures:
            self.verdict.failures.append(replace(failure, detail=f"{note}: {failure.detail}") if note else failure)

    # The trials that every pair has.

    def hold_trial(self) -> None:
        """Carry out the case's trial."""
        name = self.case.trial
        if name.startswith(REJECTS):
            self._reject_several(name.removeprefix(REJECTS))
            return
        if name == "fuzz":
            self._fuzz()
            return
        self.first = self.run()
        if self.verdict.passed:
            self.verdict.noticed_by = name
        if name in BUILT_IN:
            getattr(self, f"_{name}")()
        elif name != "value":
            relation = self.pair.relations[name]
            if relation.applies(self.case) and self.verdict.passed:  # wrong results need not be arguments of anything
                relation.holds(self.case, self)

    def _repeat(self) -> None:
        self._same_again(self.case, BUILT_IN["repeat"])

    def _poison(self) -> None:
        other = replace(
            self.case,
            poison="outlier" if self.case.poison == "nan" else "nan",
            guard="start" if self.case.guard == "end" else "end",
        )
        self._same_again(other, BUILT_IN["poison"])

    def _same_again(self, case: Case, says: str) -> None:
        self._expect_first(case, self.run(case, judged=False).outputs, says)

    def _expect_first(self, case: Case, outputs: Outputs, says: str) -> None:
        """The first call's bits, wherever the contract writes."""
        masks = {name: mask(case, self._inputs_of(case)) for name, mask in self.pair.mutates.items()}
        for name, value in outputs.items():
            if isinstance(value, Tensor) and name not in self.pair.scratch:
                mask = masks.get(name, True)
                keep = mask.expand(value.shape) if isinstance(mask, Tensor) else None
                first = self.first.outputs[name]
                if keep is not None:
                    value, first = value[keep], first[keep]
                self.expect_same(name, value, first, says, "nondeterministic")

    def _threads(self) -> None:
        for threads in thread_counts(os.cpu_count() or 1, self.case.seed):
            self.run(threads=threads, note=f"{threads} threads")

    def _concurrent(self) -> None:
        """The same call from several Python threads at once, each with memory of its own."""
        settled = settle(self.pair, self.case, self._inputs_of(self.case))
        arena = self.runner.arena
        placements = [place(self.pair, self.case, settled, arena, beside=i > 0) for i in range(CALLERS)]
        outcome = self._call(placements[0], THREADS, placements[1:])
        for placement, each in zip(placements, [outcome, *outcome.others]):
            note = f"one of {CALLERS} calls at once"
            masks = self._masks(self.case, placement)
            outputs = self._judge_call(self.case, placement, masks, each, self.first.truth, note)
            self._expect_first(self.case, outputs, BUILT_IN["concurrent"])

    def _reject_several(self, name: str) -> None:
        """The wrong call `name`, and more of the pair's in an order of the case's own: of dozens, many of which need a case of
        their kind, one at a time would leave some out for thousands of cases. A failure goes to the call that had it."""
        others = [other for other in self.pair.bad if other != name]
        order = permutation(self.case.seed, "wrong calls", len(others)).tolist()
        given = self.pair.inputs(self.case)
        tried = 0
        for which in (name, *(others[i] for i in order)):
            wrong = self.pair.bad[which].spoil(self.case, dict(given))
            if wrong is None:
                continue
            self._rejects(which, wrong)
            tried += 1
            if not self.verdict.passed:
                self._blame(replace(self.case, trial=REJECTS + which))
            if tried == WRONG_CALLS or not self.verdict.passed:
                return
        if not tried:
            self.first = self.run()

    def _blame(self, case: Case) -> None:
        """Make `case`, which fails alone, the verdict's."""
        self.verdict.case, self.verdict.noticed_by = case, case.trial
        self.verdict.line = to_line(self.pair.name, self.pair.version, case)

    def _rejects(self, name: str, wrong: Inputs) -> None:
        """A wrong call: both sides refuse with the contract's class, name the argument, and change nothing."""
        bad = self.pair.bad[name]
        placement = place(self.pair, self.case, settle(self.pair, self.case, wrong, keep_strides=True), self.runner.arena)
        self._reference_refuses(placement, bad, name)
        outcome = self._call(placement, THREADS)
        self._judge_refusal(outcome, [bad.error], bad.names, name)
        self._record(judge.memory(placement, self.runner.arena, {}, ()), name)

    def _judge_refusal(self, outcome: Outcome, errors: Sequence[type[Exception]], names: Sequence[str], says: str) -> None:
        """A wrong call must end in one of `errors`, with one of `names` in its message."""
        wanted = " or ".join(error.__name__ for error in errors)
        wanted += f" naming {' or '.join(names) if len(names) < 4 else 'an argument'}"
        if outcome.status == "ok":
            self._record([Failure("missing_error", names[0], f"{says}: a result instead of {wanted}")], "")
        elif outcome.status != "exception":
            self._record([Failure(outcome.status, names[0], f"{says}: {outcome.message}")], "")
        elif not {error.__name__ for error in errors} & set(outcome.bases) or not named_in(outcome.message, names):
            detail = f"{says}: {outcome.error}({outcome.message!r}) instead of {wanted}"
            self._record([Failure("exception", names[0], detail)], "")

    def _fuzz(self) -> None:
        """A random wrong call. Where the reference accepts it, it only must not crash or write where it may not."""
        given = self.pair.inputs(self.case)
        names = sorted(self.pair.fuzz(self.case, given)) if self.pair.fuzz is not None else []
        if not names:
            self.first = self.run()
            return
        wrong, says = spoiled(self.case.seed, given, names)
        arena = self.runner.arena
        try:
            placement = place(self.pair, self.case, settle(self.pair, self.case, wrong, keep_strides=True), arena)
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):  # an alias of what is no such tensor any more
            self.first = self.run()
            return
        self.verdict.noticed_by = self.case.trial
        refused = self._refusal(placement, says)
        if refused is None:
            placement.restore(arena)
        elif judge.memory(placement, arena, {}, ()):
            raise HarnessError(f"the reference of {self.pair.name} refuses {says} after it has written")
        outcome = self._call(placement, THREADS)
        if outcome.status in ("crash", "hang"):
            self._record([Failure(outcome.status, "", f"{says}: {outcome.message}")], "")
            return
        if refused is None:
            writable = {name: True for name in self.pair.mutates} if outcome.status == "ok" else {}
            self._record(judge.memory(placement, arena, writable, tuple(self.pair.scratch)), says)
            return
        self._judge_refusal(outcome, CONTRACT_ERRORS, tuple(wrong), says)
        self._record(judge.memory(placement, arena, {}, ()), says)

    def _refusal(self, placement: Placement, says: str) -> Exception | None:
        """What the reference raises on a wrong call, None if it accepts it."""
        try:
            self.pair.reference(**self._views(placement))
        except CONTRACT_ERRORS as refused:
            return refused
        except Exception as other:
            raise HarnessError(f"the reference of {self.pair.name} answers {says} with {other!r}") from other
        return None

    def _views(self, placement: Placement) -> Inputs:
        """The placed arguments as tensors of this process."""
        arena = self.runner.arena
        return {
            key: arena.tensor(value.dtype, value.start, value.sizes, value.strides) if isinstance(value, Placed) else value
            for key, value in placement.arguments.items()
        }

    def _reference_refuses(self, placement: Placement, bad: Bad, name: str) -> None:
        who, wanted = f"the reference of {self.pair.name}", bad.error.__name__
        try:
            self.pair.reference(**self._views(placement))
        except bad.error as refused:
            if bad.named_in(str(refused)):
                return
            raise HarnessError(f"{who} refuses {name} without naming {' or '.join(bad.names)}: {refused}") from refused
        except Exception as other:
            raise HarnessError(f"{who} answers {name} with {other!r}, not {wanted}") from other
        raise HarnessError(f"{who} accepts {name}, the contract demands {wanted}")


def _type(value: object) -> str:
    return "tensor" if isinstance(value, Tensor) else type(value).__name__


def _is_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size > 1 and stride != step:
            return False
        step *= max(size, 1)
    return True


def widen(value: Any) -> Any:
    """Float tensors exactly in float64, other tensors cloned."""
    if not isinstance(value, Tensor):
        return value
    return value.to(torch.float64) if value.dtype.is_floating_point and value.dtype != torch.float64 else value.clone()


def truth_of(pair: Pair, settled: Inputs) -> tuple[Outputs, Inputs]:
    """The reference's mutated arguments and results, in float64; and the widened inputs as they were."""

    def fresh() -> Inputs:
        copies = {
            name: (value.clone() if pair.exact_reference else widen(value)) if isinstance(value, Tensor) else value
            for name, value in settled.items()
        }
        return resolve(copies)

    arguments = fresh()
    kept = dict(arguments)
    for name in (*pair.mutates, *pair.scratch):
        if isinstance(arguments.get(name), Tensor):
            kept[name] = arguments[name].clone()
    result = pair.reference(**arguments)
    truth: Outputs = {name: arguments[name] for name in pair.mutates if isinstance(arguments.get(name), Tensor)}
    truth |= named_results(result, tuple(pair.results))
    return truth, kept

