"""The trials: what is done with a case, and what must hold. Those that every pair has are here; relations are the pairs' own."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair import judge
from kernelpair.case import REJECTS, Case, to_line
from kernelpair.fuzz import spoiled
from kernelpair.pair import Bad, Inputs, Outputs, named_in
from kernelpair.place import Placed, Placement, place, settle
from kernelpair.run import HarnessError
from kernelpair.session import THREADS, Session
from kernelpair.values import permutation
from kernelpair.verdict import Failure
from kernelpair.worker import Outcome

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


def hold_trial(session: Session) -> None:
    """Carry out the case's trial."""
    name = session.case.trial
    if name.startswith(REJECTS):
        _reject_several(session, name.removeprefix(REJECTS))
        return
    if name == "fuzz":
        _fuzz(session)
        return
    session.first = session.run()
    if session.verdict.passed:
        session.verdict.noticed_by = name
    if name in BUILT_IN:
        VARIED[name](session)
    elif name != "value":
        relation = session.pair.relations[name]
        if relation.applies(session.case) and session.verdict.passed:  # wrong results need not be arguments of anything
            relation.holds(session.case, session)


def _repeat(session: Session) -> None:
    _same_again(session, session.case, BUILT_IN["repeat"])


def _poison(session: Session) -> None:
    other = replace(
        session.case,
        poison="outlier" if session.case.poison == "nan" else "nan",
        guard="start" if session.case.guard == "end" else "end",
    )
    _same_again(session, other, BUILT_IN["poison"])


def _same_again(session: Session, case: Case, says: str) -> None:
    _expect_first(session, case, session.run(case, judged=False).outputs, says)


def _expect_first(session: Session, case: Case, outputs: Outputs, says: str) -> None:
    """The first call's bits, wherever the contract writes."""
    for name, value in outputs.items():
        first = session.first.outputs.get(name)  # None if the contract has no such result, which the first call was told
        if isinstance(value, Tensor) and isinstance(first, Tensor) and name not in session.pair.scratch:
            if judge.same_bits(value, first):
                continue
            if name in session.pair.mutates and value.shape == first.shape:
                mask = session.pair.mutates[name](case, session.inputs_of(case))
                keep = torch.as_tensor(mask).expand(value.shape)
                value, first = value[keep], first[keep]
            session.expect_same(name, value, first, says, "nondeterministic")


def _threads(session: Session) -> None:
    for threads in thread_counts(os.cpu_count() or 1, session.case.seed):
        session.run(threads=threads, note=f"{threads} threads")


def _concurrent(session: Session) -> None:
    """The same call from several Python threads at once, each with memory of its own."""
    settled = settle(session.pair, session.case, session.inputs_of(session.case))
    arena = session.runner.arena
    placements = [place(session.pair, session.case, settled, arena, beside=i > 0) for i in range(CALLERS)]
    outcome = session.call(placements[0], THREADS, placements[1:])
    for placement, each in zip(placements, [outcome, *outcome.others]):
        note = f"one of {CALLERS} calls at once"
        masks = session.masks(session.case, placement)
        outputs = session.judge_call(session.case, placement, masks, each, session.first.truth, note)
        _expect_first(session, session.case, outputs, BUILT_IN["concurrent"])


def _reject_several(session: Session, name: str) -> None:
    """The wrong call `name`, and more of the pair's in an order of the case's own: of dozens, many of which need a case of
    their kind, one at a time would leave some out for thousands of cases. A failure goes to the call that had it."""
    others = [other for other in session.pair.bad if other != name]
    order = permutation(session.case.seed, "wrong calls", len(others)).tolist()
    given = session.pair.inputs(session.case)
    tried = 0
    for which in (name, *(others[i] for i in order)):
        wrong = session.pair.bad[which].spoil(session.case, dict(given))
        if wrong is None:
            continue
        _rejects(session, which, wrong)
        tried += 1
        if not session.verdict.passed:
            _blame(session, replace(session.case, trial=REJECTS + which))
        if tried == WRONG_CALLS or not session.verdict.passed:
            return
    if not tried:
        session.first = session.run()


def _blame(session: Session, case: Case) -> None:
    """Make `case`, which fails alone, the verdict's."""
    session.verdict.case, session.verdict.noticed_by = case, case.trial
    session.verdict.line = to_line(session.pair.name, session.pair.version, case)


def _rejects(session: Session, name: str, wrong: Inputs) -> None:
    """A wrong call: both sides refuse with the contract's class, name the argument, and change nothing."""
    bad = session.pair.bad[name]
    settled = settle(session.pair, session.case, wrong, keep_strides=True)
    placement = place(session.pair, session.case, settled, session.runner.arena)
    _reference_refuses(session, placement, bad, name)
    outcome = session.call(placement, THREADS)
    _judge_refusal(session, outcome, [bad.error], bad.names, name)
    session.record(judge.memory(placement, session.runner.arena, {}, ()), name)


def _judge_refusal(
    session: Session, outcome: Outcome, errors: Sequence[type[Exception]], names: Sequence[str], says: str
) -> None:
    """A wrong call must end in one of `errors`, with one of `names` in its message."""
    wanted = " or ".join(error.__name__ for error in errors)
    wanted += f" naming {' or '.join(names) if len(names) < 4 else 'an argument'}"
    if outcome.status == "ok":
        session.record([Failure("missing_error", names[0], f"{says}: a result instead of {wanted}")], "")
    elif outcome.status != "exception":
        session.record([Failure(outcome.status, names[0], f"{says}: {outcome.message}")], "")
    elif not {error.__name__ for error in errors} & set(outcome.bases) or not named_in(outcome.message, names):
        detail = f"{says}: {outcome.error}({outcome.message!r}) instead of {wanted}"
        session.record([Failure("exception", names[0], detail)], "")


def _fuzz(session: Session) -> None:
    """A random wrong call. Where the reference accepts it, it only must not crash or write where it may not."""
    given = session.pair.inputs(session.case)
    names = sorted(session.pair.fuzz(session.case, given)) if session.pair.fuzz is not None else []
    if not names:
        session.first = session.run()
        return
    wrong, says = spoiled(session.case.seed, given, names)
    arena = session.runner.arena
    try:
        placement = place(session.pair, session.case, settle(session.pair, session.case, wrong, keep_strides=True), arena)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):  # an alias of what is no such tensor any more
        session.first = session.run()
        return
    session.verdict.noticed_by = session.case.trial
    refused = _refusal(session, placement, says)
    if refused is None:
        placement.restore(arena)
    elif judge.memory(placement, arena, {}, ()):
        raise HarnessError(f"the reference of {session.pair.name} refuses {says} after it has written")
    outcome = session.call(placement, THREADS)
    if outcome.status in ("crash", "hang"):
        session.record([Failure(outcome.status, "", f"{says}: {outcome.message}")], "")
        return
    if refused is None:
        writable = {name: True for name in session.pair.mutates} if outcome.status == "ok" else {}
        session.record(judge.memory(placement, arena, writable, tuple(session.pair.scratch)), says)
        return
    _judge_refusal(session, outcome, CONTRACT_ERRORS, tuple(wrong), says)
    session.record(judge.memory(placement, arena, {}, ()), says)


def _refusal(session: Session, placement: Placement, says: str) -> Exception | None:
    """What the reference raises on a wrong call, None if it accepts it."""
    try:
        session.pair.reference(**_views(session, placement))
    except CONTRACT_ERRORS as refused:
        return refused
    except Exception as other:
        raise HarnessError(f"the reference of {session.pair.name} answers {says} with {other!r}") from other
    return None


def _views(session: Session, placement: Placement) -> Inputs:
    """The placed arguments as tensors of this process."""
    arena = session.runner.arena
    return {
        key: arena.tensor(value.dtype, value.start, value.sizes, value.strides) if isinstance(value, Placed) else value
        for key, value in placement.arguments.items()
    }


def _reference_refuses(session: Session, placement: Placement, bad: Bad, name: str) -> None:
    who, wanted = f"the reference of {session.pair.name}", bad.error.__name__
    try:
        session.pair.reference(**_views(session, placement))
    except bad.error as refused:
        if bad.named_in(str(refused)):
            return
        raise HarnessError(f"{who} refuses {name} without naming {' or '.join(bad.names)}: {refused}") from refused
    except Exception as other:
        raise HarnessError(f"{who} answers {name} with {other!r}, not {wanted}") from other
    raise HarnessError(f"{who} accepts {name}, the contract demands {wanted}")


VARIED: Mapping[str, Callable[[Session], None]] = {
    "repeat": _repeat,
    "poison": _poison,
    "threads": _threads,
    "concurrent": _concurrent,
}
"""Trials that make the first call again in another way."""
