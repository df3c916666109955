"""The calls of one case, each judged against the truth, and what relations find out about them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelpair.call.fault import told
from kernelpair.call.memory import Placed
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.place import Placement, place, resolve, settle
from kernelpair.call.runner import HarnessError, Runner
from kernelpair.call.series import Repeats
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Bound, Inputs, Outputs, Stepwise, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure
from kernelpair.trial import judge
from kernelpair.trial.judging import Abandoned, Judging
from kernelpair.trial.purity import unchanged
from kernelpair.trial.truth import NOTHING_EXPECTED, Expected, bound_of, settled_by, truth_of, widened
from kernelpair.trial.truths import Truths

THREADS = 2  # of a call, unless the trial varies them


@dataclass
class JudgedCall:
    """A judged call."""

    outputs: Outputs
    truth: Outputs
    bound: Bound

    def bound_of(self, name: str) -> Tensor:
        """The bound of each element of an output as a tensor: 0 where it is exact."""
        bound = self.bound.get(name)
        return bound if isinstance(bound, Tensor) else torch.zeros_like(self.truth[name], dtype=torch.float64)


class Session(Judging):
    """Makes and judges the calls of one case. Relations use `first`, `run`, `run_moved` and what begins with `expect`."""

    def __init__(self, subject: Subject, case: Case, runner: Runner) -> None:
        super().__init__(subject, case, runner)
        self.made: Counter[str] = Counter()
        """How often earlier cases made which wrong call."""
        self.truths = Truths()
        """What is expected of cases that were tried before, of other candidates too."""
        self.line, self.note = "", lambda line: None
        """What is being tried, and who is told of it."""
        self.first: JudgedCall
        self._drawn: list[tuple[Case, Inputs]] = []
        self._expected: Expected | None = None
        self._own: tuple[int, Inputs, Placement] | None = None
        self._passed: Outputs | None = None

    def begin(self, case: Case) -> None:
        """Note what is tried from now on: the session's case, or one like it that names what fails here."""
        self.line = self.pair.line(case)
        self.note(self.line)

    def run_first(self) -> JudgedCall:
        """Run and judge the case itself: the call that everything later is compared with."""
        self.first = self.run(fakes=bool(self.case.layout))  # of dense tensors a fake implementation hardly errs
        return self.first

    def run(
        self, case: Case | None = None, inputs: Inputs | None = None, threads: int = THREADS, note: str = "",
        *, judged: bool = True, fakes: bool = False, keep_strides: bool = False,
    ) -> JudgedCall:
        """Place, run and judge another case of the pair, or the same one with other logical inputs.

        Failures are recorded with `note`. Raises Abandoned where the candidate gave no result. With `judged=False` neither
        truth nor bound is evaluated; with `fakes` what the candidate says of itself is compared, too; with `keep_strides`
        the inputs are placed with just the strides that they have.
        """
        case = case or self.case
        self.verdict.unsupported = self.subject.unsupported(case)
        if self.verdict.unsupported:
            raise Abandoned
        known = inputs is None and case is self.case
        settled, placement = self._placed_again() if known else self._placed(case, inputs, keep_strides)
        way = self.subject.judged_by if judged else None
        expected = NOTHING_EXPECTED if way is None or isinstance(way, Stepwise) else self._expect(case, settled, known)
        outcome = self.call(placement, threads, fakes=fakes)
        masks = self.masks(case, placement)
        outputs = self.judge_call(case, placement, masks, outcome, expected.truth, note)
        judged_by, masks = settled_by(self.pair, way, case, expected, outputs, masks)
        truth, bound = judged_by.truth, judged_by.bound
        if isinstance(way, Stepwise):
            with unchanged(self.pair.name, "judge", {"inputs": settled, "outputs": outputs}):
                judged_run = way.judge(case, settled, outputs)
            self.verdict.failures[:0] = judged_run.failures  # the first, for they say why where no kernel came to run
            self.verdict.tightness = judged_run.tightness
            if judged_run.table is not None:
                self.verdict.table = replace(judged_run.table, line=self.verdict.line)
        elif way is not None and not (known and self._passed is not None and judge.same(outputs, self._passed)):
            self.judge_values(placement, masks, outputs, truth, bound, note)
            self.record(self.judge_whole(way, case, expected.inputs, truth, outputs), note)
            if self.subject.rounding and self.verdict.passed:
                self.note_gaps(case, expected, masks, outputs)
            if known and self.verdict.passed:
                self._passed = outputs
        return JudgedCall(outputs, truth, bound)

    def place(self, wrong: Inputs | None = None, case: Case | None = None, *, beside: bool = False) -> Placement:
        """Place the case's inputs, or wrong ones with just the strides that they have; `beside` earlier ones, or alone.

        `case`: whose layouts they take, where these are not the session's own.
        """
        case = self.case if case is None else case
        given = self.inputs_of(case) if wrong is None else wrong
        settled = settle(self.pair, case, given, keep_strides=wrong is not None)
        return place(self.pair, case, settled, self.runner.arena, beside)

    def restore(self, placement: Placement) -> None:
        """Give every byte of what was placed the value that it had before the call."""
        placement.restore(self.runner.arena)

    def changed(self, placement: Placement, written: Iterable[str] = (), scratch: Iterable[str] = ()) -> list[Failure]:
        """What a call changed, but for all of these arguments."""
        return judge.memory(placement, self.runner.arena, dict.fromkeys(written, True), tuple(scratch))

    def ask_reference(self, placement: Placement) -> None:
        """Call the reference on what was placed, in the arguments' own dtypes. Raises whatever it raises."""
        view = self.runner.arena.view
        self.pair.reference(
            **{name: view(value) if isinstance(value, Placed) else value for name, value in placement.arguments.items()}
        )

    def _placed(self, case: Case, inputs: Inputs | None, keep_strides: bool = False) -> tuple[Inputs, Placement]:
        settled = settle(self.pair, case, self.inputs_of(case) if inputs is None else inputs, keep_strides)
        return settled, place(self.pair, case, settled, self.runner.arena)

    def _placed_again(self) -> tuple[Inputs, Placement]:
        """The session's own case, placed once: a further call finds every byte as the first did."""
        arena = self.runner.arena
        if self._own is not None and self._own[0] == arena.resets:  # nothing else was placed in between
            self._own[2].restore(arena)
        else:
            settled, placement = self._placed(self.case, None)
            self._own = arena.resets, settled, placement
        return self._own[1:]

    def _expect(self, case: Case, settled: Inputs, known: bool) -> Expected:
        """Truth and bound of a call; of the session's own case they are evaluated once."""
        if known and self._expected is not None:
            return self._expected
        way, line = self.subject.judged_by, self.verdict.line
        if known and (kept := self.truths.find(self.pair, way, line)) is not None:
            self._expected = Expected(kept[0], widened(self.pair, settled), kept[1])
            return self._expected
        truth, inputs = truth_of(self.pair, settled)
        bound = bound_of(self.pair, way, case, inputs, truth) if isinstance(way, Within) and way.settle is None else {}
        expected = Expected(truth, inputs, bound)
        if known:
            self._expected = expected
            self.truths.keep(self.pair, way, line, truth, bound)
        return expected

    def inputs(self) -> Inputs:
        """The case's logical inputs as the first call had them: expanded arguments repeated, aliases resolved."""
        return resolve(settle(self.pair, self.case, self.inputs_of(self.case)))

    def inputs_of(self, case: Case) -> Inputs:
        """The pair's inputs of a case, made once: nothing writes to them."""
        for known, inputs in self._drawn:
            if known is case:
                return inputs
        self._drawn.append((case, self.pair.cases.inputs(case)))
        return self._drawn[-1][1]

    def expect_close(self, name: str, got: Tensor, expected: Tensor, tolerance: Tensor, says: str) -> None:
        """Record a failed relation unless |got - expected| <= tolerance everywhere."""
        compared = judge.Compared(name, got, expected.to(torch.float64), tolerance, note=says)
        self.witness(compared)
        for failure in judge.judged(compared):
            self.verdict.failures.append(replace(failure, kind="relation", detail=f"{says}: {failure.detail}"))

    def expect_same(self, name: str, got: Tensor, expected: Tensor, says: str, kind: str = "relation") -> None:
        """Record a failed relation unless both hold the same bits; of somebody else's kernel the sign of a zero is not asked."""
        if self.subject.foreign and not self.pair.exact:
            got, expected = judge.unsigned_zeros(got), judge.unsigned_zeros(expected)
        self.witness(judge.Compared(name, got, expected, None, note=says))
        if not judge.same_bits(got, expected):
            count = judge.different_bits(got, expected)
            self.verdict.failures.append(Failure(kind, name, f"{says}: {count} of {got.numel()} elements differ in their bits"))

    def run_moved(self, case: Case, inputs: Inputs) -> JudgedCall:
        """A call that computes numbers of the first one in another place: beside other rows, in another layout, form or table.
        Of somebody else's kernel the bound is all that it owes."""
        return self.run(case, inputs, judged=self.subject.foreign)

    def first_as(self, case: Case) -> JudgedCall:
        """The first call; of somebody else's kernel, whose bits may depend on the layout, one with the layout of `case`."""
        return self.run(case, self.inputs(), judged=False) if self.subject.foreign and case != self.case else self.first

    def expect_moved(self, name: str, got: Tensor, expected: Tensor, says: str) -> None:
        """Record a failed relation unless a call of `run_moved` gave the same bits, where the kernel owes them."""
        if not self.subject.foreign:
            self.expect_same(name, got, expected, says)

    def expect(self, holds: bool, name: str, says: str) -> None:
        """Record a failed relation unless `holds` is true."""
        if not holds:
            self.verdict.failures.append(Failure("relation", name, says))

    def call(
        self,
        placement: Placement,
        threads: int = THREADS,
        others: Sequence[Placement] = (),
        *,
        keep: bool = False,
        deep: bool = False,
        weigh: bool = False,
        collect: bool = False,
        again: Repeats | None = None,
        fakes: bool = False,
    ) -> Outcome:
        """Call the candidate on what was placed; on `others` too, from Python threads of their own at the same time."""
        self.verdict.calls += 1 + len(others)
        guards = [page for each in (placement, *others) for page in each.guards]
        fresh = self.verdict.calls == 1 + len(others)
        request = CallRequest(
            placement.arguments, guards, self.runner.arena.used, tuple(self.pair.signature.results), threads,
            [other.arguments for other in others], keep, deep, weigh, collect, again, fakes, fresh,
        )
        outcome = self.runner.run(request)
        if outcome.from_outside or outcome.around or (outcome.growth and not outcome.spoiled):
            for each in (placement, *others):
                self.restore(each)
            second = self.runner.run(request)  # what comes but once is chance, or serves later calls
            second.side_effects += () if outcome.from_outside or outcome.spoiled else second.growth
            if second.status == "ok" or not outcome.around:  # else the first call wrote over what the second needs
                outcome = second
        if outcome.status == "harness":
            raise HarnessError(outcome.message)
        if outcome.fault is not None:
            extents = [extent for each in (placement, *others) for extent in each.extents()]
            says = told(outcome.fault, extents, self.case.guard, self.runner.arena.limit)
            outcome.message = says + outcome.message.removeprefix(outcome.error)
        self.verdict.paths.update(outcome.paths)
        self.verdict.executed.update(outcome.executed or {})
        self.verdict.compilations.add(outcome.compilations)
        self.note_effects(outcome)
        return outcome

    def outputs_of(self, placement: Placement, outcome: Outcome, note: str, case: Case | None = None) -> Outputs:
        """The outputs of a further call, of the case itself or of another; all but their values is judged. Raises Abandoned."""
        of, truth = (self.case, self.first.truth) if case is None else (case, {})
        return self.judge_call(of, placement, self.masks(of, placement), outcome, truth, note)

    def blame(self, case: Case) -> None:
        """Make `case`, which fails alone, the verdict's."""
        self.verdict.case, self.verdict.noticed_by = case, case.trial
        self.verdict.line = self.pair.line(case)
