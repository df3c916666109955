"""The trials: what is done with a case, and what must hold. Those that every pair has are here; relations are the pairs'
own."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.heap import LEAST_LEAK, kept_by_each
from kernelpair.call.layout import REPEATED, STRIDED
from kernelpair.call.place import Placement
from kernelpair.call.runner import HarnessError
from kernelpair.call.series import Repeats, Stretch
from kernelpair.call.surroundings import NAMES
from kernelpair.call.values import permutation
from kernelpair.call.worker import Outcome
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import Inputs, Outputs, Pair, WrongCall, named_in
from kernelpair.contract.verdict import Failure
from kernelpair.trial import judge
from kernelpair.trial.fuzz import made_wrong
from kernelpair.trial.neighbours import Neighbours, neighbours
from kernelpair.trial.purity import unchanged
from kernelpair.trial.session import THREADS, Session

CALLERS = 3  # Python threads of a `concurrent` trial
WRONG_CALLS = 6  # of one `wrong_call` trial at least: together they cost about as much as another trial
SHARE = 6  # of a pair that has more than 36 a sixth: a minute has a dozen such trials of a pair, which make nearly all of them
EQUAL_CALLS, WARMING_CALLS = 9, 5  # of an `aftermath` trial; the first may fill caches, and come round to a buffer of a ring
CONFIRMING_CALLS = 12  # more, where each has kept memory: an allocator that settles takes a few calls, a leak goes on
SERIES_CALLS, SERIES_SECONDS = 1200, 0.1  # of a `series` trial at most; small calls of 10 us take a fifth of that time
HEAP = "heap"
OF_TENSORS = ("overwritten", "result_form", "argument_form")
SIDE_EFFECTS = (*NAMES, HEAP, *OF_TENSORS)  # the names that failures give them, of the last ones their kinds
CONTRACT_ERRORS = (TypeError, ValueError, IndexError)
BUILT_IN = {
    "repeat": "the same call twice gives the same bits; fake implementations and defaults say what the contract says",
    "threads": "with other numbers of threads, more than there are cores too, the result stays within the bound",
    "concurrent": "calls with data of their own from several Python threads at once give the bits of each alone",
    "fuzz": "a call made wrong at random raises TypeError, ValueError or IndexError where the reference does, and only there; "
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
    chance. One of 5 .. 9 on any machine: work that is cut for the threads is cut otherwise for many."""
    most = max(2 * cores, 3)
    few = range(1, most + 1) if most <= 4 else {1, 3, cores, most, 1 + seed % most}
    return sorted({*few, 5 + seed % 5} - {THREADS})


def hold_trial(session: Session) -> None:
    """Carry out the case's trial."""
    name = session.case.trial
    if name.startswith(WRONG_CALL):
        _make_wrong_calls(session, name.removeprefix(WRONG_CALL))
        return
    if name == "fuzz":
        _fuzz(session)
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
    _same_again(session, session.case, "the same call twice gives the same bits", fakes=True)


def _poison(session: Session) -> None:
    other = replace(
        session.case,
        poison="outlier" if session.case.poison == "nan" else "nan",
        guard="start" if session.case.guard == "end" else "end",
    )
    _same_again(session, other, BUILT_IN["poison"])


def _same_again(session: Session, case: Case, says: str, fakes: bool = False) -> None:
    _expect_first(session, case, session.run(case, judged=False, fakes=fakes).outputs, says)


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
    """The call again and again without anything between: what is wrong at the thousandth call, or once in a thousand."""
    if not session.verdict.passed or session.effects:
        return
    placement, scratch = session.place(), set(session.pair.signature.scratch)
    stretches = [
        Stretch(" and ".join(buffer.arguments), first, last, not scratch & set(buffer.arguments))
        for buffer in placement.buffers
        for first, last in buffer.pieces
    ]
    outcome = session.call(placement, again=Repeats(SERIES_CALLS, SERIES_SECONDS, stretches, scratch))
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
    for threads in thread_counts(os.cpu_count() or 1, session.case.seed):
        session.run(threads=threads, note=f"{threads} threads")


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


def enough_wrong_calls(pair: Pair) -> int:
    """How many wrong calls one trial makes."""
    return max(WRONG_CALLS, len(pair.wrong_calls) // SHARE)


def _make_wrong_calls(session: Session, name: str) -> None:
    """Make several wrong calls: first `name`, then those that earlier cases made least often, in an order that the seed gives.

    A pair has dozens of them, and many need a case of a certain kind: if a trial made one, some would not be made in
    thousands of cases. The first that fails becomes the trial of the verdict's case and ends this one.
    """
    others = [other for other in session.pair.wrong_calls if other != name]
    order = [others[i] for i in permutation(session.case.seed, "wrong calls", len(others)).tolist()]
    order.sort(key=lambda other: session.made[other])
    given = session.pair.cases.inputs(session.case)
    enough, refused = enough_wrong_calls(session.pair), session.verdict.wrong_calls
    for which in (name, *order):
        session.begin(own := replace(session.case, trial=WRONG_CALL + which))
        with unchanged(session.pair.name, f"wrong call {which}", {"inputs": given}):
            wrong = session.pair.wrong_calls[which].make(session.case, dict(given))
        if wrong is None:
            continue
        _make_wrong_call(session, which, wrong, given)
        if not session.verdict.passed:
            session.blame(own)
            return
        refused.append(which)
        if len(refused) == enough:
            return
    if not refused:
        session.run_first()


def _make_wrong_call(session: Session, name: str, wrong: Inputs, given: Inputs) -> None:
    """A wrong call: both sides refuse with the contract's class, name the argument, and change nothing."""
    wrong_call = session.pair.wrong_calls[name]
    placement = session.place(wrong, _laid_out(session, wrong, given))
    _reference_refuses(session, placement, wrong_call, name)
    outcome = session.call(placement)
    _judge_refusal(session, outcome, [wrong_call.error], wrong_call.names, wrong_call.names[0], name)
    session.record(judge.left(outcome), name)
    session.record(session.changed(placement), name)


def _laid_out(session: Session, wrong: Inputs, given: Inputs) -> Case:
    """The case with what a wrong call changes not expanded: the first row would stand for the one that is wrong. Half of the
    cases lay it out with strides where they may: a check reads entries that lie apart by a loop of its own."""
    case, allowed = session.case, session.pair.signature.layouts
    changed = [name for name, value in wrong.items() if value is not given.get(name)]
    layout = {name: kind for name, kind in case.layout.items() if kind not in REPEATED or name not in changed}
    if case.seed // 2 % 2:
        layout |= {name: STRIDED for name in changed if name not in layout and STRIDED in allowed.get(name, ())}
    return replace(case, layout=layout)


def _judge_refusal(
    session: Session, outcome: Outcome, errors: Sequence[type[Exception]], names: Sequence[str], wrong: str, says: str
) -> None:
    """A wrong call must end in one of `errors`, with one of `names` in its message. A failure is about what is `wrong`."""
    wanted = " or ".join(error.__name__ for error in errors)
    wanted += f" naming {' or '.join(names) if len(names) < 4 else 'an argument'}"
    if outcome.status == "ok":
        session.record([Failure("missing_error", wrong, f"{says}: a result instead of {wanted}")])
    elif outcome.status != "exception":
        session.record([Failure(outcome.status, wrong, f"{says}: {outcome.message}")])
    elif not {error.__name__ for error in errors} & set(outcome.bases) or not named_in(outcome.message, names):
        detail = f"{says}: {outcome.error}({outcome.message!r}) instead of {wanted}"
        session.record([Failure("exception", wrong, detail)])


def _fuzz(session: Session) -> None:
    """A random wrong call. What the reference accepts is right: the candidate accepts it too, and writes nowhere else. Where
    nothing but strides became other, its values are judged as in any call."""
    given = session.pair.cases.inputs(session.case)
    names = sorted(session.pair.fuzzed(session.case, given))
    if not names:
        session.run_first()
        return
    wrong, done = made_wrong(session.case.seed, given, names)
    says = " and ".join(f"{name} {what}" for name, what in done.items())
    try:
        placement = session.place(wrong)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):  # an alias of what is no such tensor any more
        session.run_first()
        return
    session.verdict.noticed_by = session.case.trial
    refused = _refusal(session, placement, says)
    if refused is None:
        session.restore(placement)
    elif session.changed(placement):
        raise HarnessError(f"the reference of {session.pair.name} refuses {says} after it has written")
    same_numbers = all(_has_numbers_of(wrong[name], given[name]) for name in done)
    if refused is None and same_numbers and session.pair.signature.result_layout is None:  # which goes by the case's layouts
        session.run(inputs=wrong, note=says, keep_strides=True)
        return
    outcome = session.call(placement)
    session.record(judge.left(outcome), says)
    if outcome.status in ("crash", "hang", "kills_parent"):
        session.record([Failure(outcome.status, "", f"{says}: {outcome.message}")])
        return
    if refused is None:
        if outcome.status == "exception" and not _in_float64(wrong, done):
            detail = f"{says}, which the reference accepts: {outcome.error}({outcome.message!r}) instead of a result"
            session.record([Failure("exception", " and ".join(done), detail)])
        signature = session.pair.signature
        session.record(session.changed(placement, signature.written if outcome.status == "ok" else (), signature.scratch), says)
        return
    _judge_refusal(session, outcome, CONTRACT_ERRORS, tuple(wrong), " and ".join(done), says)
    session.record(session.changed(placement), says)


def _neighbours(session: Session) -> None:
    """Two arguments in one storage: accepted with the bits of a call whose arguments lie apart, or, where they share an element,
    refused."""
    for each in neighbours(session.pair, session.case, session.inputs_of(session.case)):
        if each.shared:
            _refuses_shared(session, each)
        else:
            if (refused := _refusal(session, session.place(each.inputs, each.case), each.says)) is not None:
                raise HarnessError(f"the reference of {session.pair.name} refuses that {each.says}: {refused}")
            apart = session.run(each.case, each.apart, note=f"before {each.says}", judged=False).outputs
            beside = session.run(each.case, each.inputs, note=each.says, judged=False, keep_strides=True).outputs
            _expect_bits(session, each.case, beside, apart, each.says)
        if not session.verdict.passed:
            return


def _refuses_shared(session: Session, wrong: Neighbours) -> None:
    """The call is refused, and about one of the two. Where it writes neither of them the reference is asked whether it is."""
    placement = session.place(wrong.inputs, wrong.case)
    if _refusal(session, placement, wrong.says) is None:
        if wrong.surely:
            raise HarnessError(f"the reference of {session.pair.name} accepts that {wrong.says}, of which one is written")
        return
    if session.changed(placement):
        raise HarnessError(f"the reference of {session.pair.name} refuses that {wrong.says} after it has written")
    outcome = session.call(placement)
    about = next(name for name in wrong.names if name in (*session.pair.signature.written, *session.pair.signature.scratch))
    _judge_refusal(session, outcome, CONTRACT_ERRORS, wrong.names, about, wrong.says)
    session.record([*judge.left(outcome), *session.changed(placement)], wrong.says)


def _has_numbers_of(wrong: object, given: object) -> bool:
    """Whether the bound that judges what was given judges this too; of other numbers it may be untrue, of exact sums for one."""
    if not isinstance(wrong, Tensor) or not isinstance(given, Tensor):
        return False
    return (wrong.dtype, wrong.shape) == (given.dtype, given.shape) and judge.same_bits(wrong, given)


def _in_float64(wrong: Inputs, names: Iterable[str]) -> bool:
    """Whether any of these is a tensor of float64, in which references are evaluated whatever their contract says."""
    return any(isinstance(wrong[name], Tensor) and wrong[name].dtype == torch.float64 for name in names)


def _refusal(session: Session, placement: Placement, says: str) -> Exception | None:
    """What the reference raises on a wrong call, None if it accepts it."""
    try:
        session.ask_reference(placement)
    except CONTRACT_ERRORS as refused:
        return refused
    except NotImplementedError:  # of a pair that is not finished
        raise
    except Exception as other:
        raise HarnessError(f"the reference of {session.pair.name} answers {says} with {other!r}") from other
    return None


def _reference_refuses(session: Session, placement: Placement, wrong_call: WrongCall, name: str) -> None:
    who, wanted = f"the reference of {session.pair.name}", wrong_call.error.__name__
    try:
        session.ask_reference(placement)
    except wrong_call.error as refused:
        if wrong_call.named_in(str(refused)):
            return
        raise HarnessError(f"{who} refuses {name} without naming {' or '.join(wrong_call.names)}: {refused}") from refused
    except NotImplementedError:  # of a pair that is not finished
        raise
    except Exception as other:
        raise HarnessError(f"{who} answers {name} with {other!r}, not {wanted}") from other
    raise HarnessError(f"{who} accepts {name}, the contract demands {wanted}")


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
