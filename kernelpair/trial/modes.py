"""The trials: what is done with a case, and what must hold. Those that every pair has are here; relations are the pairs'
own."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.heap import LEAST_LEAK, kept_by_each
from kernelpair.call.outcome import Outcome
from kernelpair.call.place import Placement
from kernelpair.call.runner import HarnessError
from kernelpair.call.series import Repeats, Stretch
from kernelpair.call.surroundings import NAMES
from kernelpair.call.system import lets_start
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import Outputs
from kernelpair.contract.verdict import Failure
from kernelpair.trial import judge
from kernelpair.trial.neighbours import neighbours
from kernelpair.trial.refusals import make_random_calls, make_wrong_calls, refusal_of, refuses_shared
from kernelpair.trial.session import THREADS, Session

MANY = 40  # threads, as a server has them
CALLERS = 3  # Python threads of a `concurrent` trial
EQUAL_CALLS, WARMING_CALLS = 9, 5  # of an `aftermath` trial; the first may fill caches, and come round to a buffer of a ring
CONFIRMING_CALLS = 12  # more, where each has kept memory: an allocator that settles takes a few calls, a leak goes on
SERIES_CALLS, SERIES_SECONDS = 1200, 0.1  # of a `series` trial at most; small calls of 10 us take a fifth of that time
BRIEF_CALLS, BRIEF_SECONDS = 400, 0.03  # at the end of an `aftermath`: enough to see that each keeps a few bytes
HEAP = "heap"
OF_TENSORS = ("overwritten", "result_form", "argument_form")
SIDE_EFFECTS = (*NAMES, HEAP, *OF_TENSORS)  # the names that failures give them, of the last ones their kinds
BUILT_IN = {
    "repeat": "the same call twice gives the same bits; defaults and fake implementations say what the contract says",
    "threads": "with other numbers of threads, more than there are cores too, the result stays within the bound",
    "concurrent": "calls with data of their own from several Python threads at once give the bits of each alone",
    "fuzz": "calls made wrong at random raise TypeError, ValueError or IndexError where the reference does, and only there; "
    "with other strides its values are right; nothing else changes",
    "neighbours": "arguments of which one is written may lie side by side in one storage, with the same bits; where they share "
    "an element the call is refused, and nothing changes",
    "aftermath": "a call leaves its process as it was and keeps no memory; other data at the same addresses gives its own "
    "result, and that of the first is not written to",
    "series": "the same call a thousand times in one process gives the same bits each time",
    "poison": "other content in unused bytes, scratch and fresh outputs, and the guard page on the other side: the same bits",
}


def thread_counts(cores: int, seed: int) -> list[int]:
    """Of 1 .. 2 cores, but for the THREADS that every call has: all if they are few, else the ends, the middle, one by
    chance. One of 5 .. 9 on any machine, or MANY of them: work that is cut for the threads is cut otherwise for many."""
    most = max(2 * cores, 3)
    few = range(1, most + 1) if most <= 4 else {1, 3, cores, most, 1 + seed % most}
    return sorted({*few, MANY if seed % 8 == 7 else 5 + seed % 5} - {THREADS})


def hold_trial(session: Session) -> None:
    """Carry out the case's trial."""
    name = session.case.trial
    if name.startswith(WRONG_CALL):
        make_wrong_calls(session, name.removeprefix(WRONG_CALL))
        return
    if name == "fuzz":
        make_random_calls(session)
        return
    session.run_first()
    if session.verdict.passed:
        session.verdict.noticed_by = name
    if name in BUILT_IN:
        VARIED[name](session)
    elif name != "value":
        relation = session.pair.relations[name]
        if relation.applies(session.case) and session.verdict.passed:  # wrong results need not be arguments of anything
            relation.holds(session.case, session)


def _repeat(session: Session) -> None:
    _same_again(session, session.case, "the same call twice gives the same bits")


def _poison(session: Session) -> None:
    other = replace(session.case, poison="outlier" if session.case.poison == "nan" else "nan")
    moved = replace(other, guard="start" if other.guard == "end" else "end")
    if session.subject.foreign and not session.pair.exact:  # its sums may begin elsewhere at another alignment
        _same_again(session, other, "other content in unused bytes, scratch and fresh outputs: the same bits")
        session.run(moved, note="with the guard page on the other side")
    else:
        _same_again(session, moved, BUILT_IN["poison"])


def _same_again(session: Session, case: Case, says: str) -> None:
    _expect_first(session, case, session.run(case, judged=False, fakes=True).outputs, says)


def _expect_first(session: Session, case: Case, outputs: Outputs, says: str) -> None:
    """The first call's bits, wherever the contract writes."""
    _expect_bits(session, case, outputs, session.first.outputs, says)


def _expect_bits(session: Session, case: Case, outputs: Outputs, expected: Outputs, says: str) -> None:
    """The bits of another call with the same arguments, wherever the contract writes."""
    for name in expected | outputs:
        value, first = outputs.get(name), expected.get(name)
        if name in session.pair.signature.scratch:
            continue
        if not isinstance(value, Tensor) or not isinstance(first, Tensor):
            if repr(value) != repr(first):  # as in a series: NaN equals nothing
                detail = f"{says}: {judge.shown(outputs, name)} instead of {judge.shown(expected, name)}"
                session.record([Failure("nondeterministic", name, detail)])
        elif not judge.same_bits(value, first):
            if name in session.pair.signature.written and value.shape == first.shape:
                mask = session.pair.signature.written[name](case, session.inputs_of(case))
                keep = torch.as_tensor(mask).expand(value.shape)
                value, first = value[keep], first[keep]
            session.expect_same(name, value, first, says, "nondeterministic")


def _aftermath(session: Session) -> None:
    """Keep the results of a call, make one with other data at the same addresses, then that one again and again, looking at
    all that it leaves: what is written to the first results is not what they hold."""
    if not session.verdict.passed:
        return
    placement, other = session.place(), _with_other_data(session.case, 1)
    _came_back(session, placement, session.call(placement, keep=True))
    session.run(other, note="with other data at the same addresses")
    placement = session.place(case=other)
    held = [_weighed(session, placement, deep=last) for last in [False] * (EQUAL_CALLS - 1) + [True]][WARMING_CALLS:]
    if kept_by_each(held) >= LEAST_LEAK and HEAP not in session.subject.side_effects:
        held = [_weighed(session, placement, collect=True) for _ in range(CONFIRMING_CALLS)]  # what cycles hold is no leak
        grown = kept_by_each(held)
        if grown >= LEAST_LEAK:
            _note_leak(session, len(held) - 1, grown)
            return
    if session.subject.asked_for("series"):
        _make_series(session, BRIEF_CALLS, BRIEF_SECONDS)


def _weighed(session: Session, placement: Placement, deep: bool = False, collect: bool = False) -> tuple[int, int]:
    """What the process holds after a call that was made before."""
    session.restore(placement)
    outcome = session.call(placement, deep=deep, weigh=True, collect=collect)
    _came_back(session, placement, outcome)
    if session.verdict.passed:
        session.record(judge.left(outcome), "the same call again and again")
    return outcome.held


def _came_back(session: Session, placement: Placement, outcome: Outcome) -> None:
    """Raises Abandoned, with the failure recorded, where a call that was made before has no result."""
    if outcome.status != "ok":
        session.outputs_of(placement, outcome, "the same call again")


def _note_leak(session: Session, calls: int, grown: int) -> None:
    """To be said last, after a call that was looked at for what else it leaves: a thread takes memory too."""
    session.effects.append(Failure("leak", HEAP, f"each of {calls} equal calls keeps {grown} bytes or more"))


def _series(session: Session) -> None:
    """What is wrong at the thousandth call, or once in a thousand."""
    _make_series(session, SERIES_CALLS, SERIES_SECONDS)


def _make_series(session: Session, calls: int, seconds: float) -> None:
    """The call again and again without anything between, so many times or as often as the seconds allow."""
    if not session.verdict.passed or session.effects:
        return
    placement, scratch = session.place(), set(session.pair.signature.scratch)
    stretches = [
        Stretch(" and ".join(buffer.arguments), first, last, not scratch & set(buffer.arguments))
        for buffer in placement.buffers
        for first, last in buffer.pieces
    ]
    outcome = session.call(placement, again=Repeats(calls, seconds, stretches, scratch))
    if outcome.series is not None:
        session.verdict.calls += outcome.series.calls - 1
        if outcome.series.says:
            detail = f"call {outcome.series.calls} of a series gives something else than the first: {outcome.series.says}"
            session.record([Failure("nondeterministic", outcome.series.where, detail)])
        elif outcome.series.keeps and HEAP not in session.subject.side_effects:
            session.restore(placement)
            session.call(placement, deep=True)
            _note_leak(session, outcome.series.calls, outcome.series.keeps)
            return
    _expect_first(session, session.case, session.outputs_of(placement, outcome, "a series"), BUILT_IN["series"])


def _threads(session: Session) -> None:
    for threads in filter(lets_start, thread_counts(os.cpu_count() or 1, session.case.seed)):
        session.run(threads=threads, note=f"{threads} threads", fakes=True)


def _concurrent(session: Session) -> None:
    """The call from several Python threads at once, each with data and memory of its own; where it is known that a later call
    writes to the result of an earlier one, all with the same data."""
    alike = "overwritten" in session.subject.side_effects
    others = [_with_other_data(session.case, 0 if alike else i) for i in range(1, CALLERS)]
    alone = [session.first.outputs, *(session.run(other, judged=False).outputs for other in others)]
    cases = [session.case, *others]
    placements = [session.place(case=case, beside=i > 0) for i, case in enumerate(cases)]
    outcome = session.call(placements[0], others=placements[1:])
    for case, placement, each, expected in zip(cases, placements, [outcome, *outcome.others], alone):
        outputs = session.outputs_of(placement, each, f"one of {CALLERS} calls at once", case)
        _expect_bits(session, case, outputs, expected, BUILT_IN["concurrent"])


def _with_other_data(case: Case, which: int) -> Case:
    """A case of the same shapes and layouts."""
    return replace(case, seed=case.seed ^ which)


def _neighbours(session: Session) -> None:
    """Two arguments in one storage: accepted with the bits of a call whose arguments lie apart, or, where they share an element,
    refused."""
    for each in neighbours(session.pair, session.case, session.inputs_of(session.case)):
        if each.shared:
            refuses_shared(session, each)
        else:
            if (refused := refusal_of(session, session.place(each.inputs, each.case), each.says)) is not None:
                raise HarnessError(f"the reference of {session.pair.name} refuses that {each.says}: {refused}")
            apart = session.run(each.case, each.apart, note=f"before {each.says}", judged=False).outputs
            beside = session.run(each.case, each.inputs, note=each.says, judged=False, keep_strides=True).outputs
            _expect_bits(session, each.case, beside, apart, each.says)
        if not session.verdict.passed:
            return


VARIED: Mapping[str, Callable[[Session], None]] = {
    "repeat": _repeat,
    "poison": _poison,
    "aftermath": _aftermath,
    "neighbours": _neighbours,
    "series": _series,
    "threads": _threads,
    "concurrent": _concurrent,
}
"""Trials that make the first call again in another way."""
