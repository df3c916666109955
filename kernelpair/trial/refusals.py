"""Calls that ought to be refused, each asked of the reference first: the wrong calls of a pair, calls made wrong at random, and
arguments that share an element."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.layout import REPEATED, STRIDED
from kernelpair.call.outcome import Outcome
from kernelpair.call.place import Placement
from kernelpair.call.runner import HarnessError
from kernelpair.call.values import permutation
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import Inputs, Pair, WrongCall, named_in
from kernelpair.contract.verdict import Failure
from kernelpair.trial import judge
from kernelpair.trial.fuzz import made_wrong
from kernelpair.trial.neighbours import Neighbours
from kernelpair.trial.purity import unchanged
from kernelpair.trial.session import Session

WRONG_CALLS = 6  # of one `wrong_call` trial at least: together they cost about as much as another trial
SHARE = 6  # of a pair that has more than 36 a sixth: a minute has a dozen such trials of a pair, which make nearly all of them
CONTRACT_ERRORS = (TypeError, ValueError, IndexError)
RANDOM_CALLS = 4  # of one `fuzz` trial: each costs about as much as a call that is judged


def enough_wrong_calls(pair: Pair) -> int:
    """How many wrong calls one trial makes."""
    return max(WRONG_CALLS, len(pair.wrong_calls) // SHARE)


def make_wrong_calls(session: Session, name: str) -> None:
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


def make_random_calls(session: Session) -> None:
    """Several random wrong calls, the last of them the first that fails."""
    given = session.pair.cases.inputs(session.case)
    names = sorted(session.pair.fuzzed(session.case, given))
    tried = False
    for which in range(RANDOM_CALLS if names else 0):
        wrong, done = made_wrong(session.case.seed, given, names, which)
        try:
            placement = session.place(wrong)
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):  # an alias of what is no such tensor any more
            continue
        tried, session.verdict.noticed_by = True, session.case.trial
        _make_random_call(session, placement, given, wrong, done)
        if not session.verdict.passed:
            return
    if not tried:
        session.run_first()


def _make_random_call(session: Session, placement: Placement, given: Inputs, wrong: Inputs, done: Mapping[str, str]) -> None:
    """What the reference accepts is right: the candidate accepts it too, and writes nowhere else. Where nothing but strides
    became other, its values are judged as in any call."""
    says = " and ".join(f"{name} {what}" for name, what in done.items())
    refused = refusal_of(session, placement, says)
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


def refuses_shared(session: Session, wrong: Neighbours) -> None:
    """The call is refused, and about one of the two. Where it writes neither of them the reference is asked whether it is."""
    placement = session.place(wrong.inputs, wrong.case)
    if refusal_of(session, placement, wrong.says) is None:
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


def refusal_of(session: Session, placement: Placement, says: str) -> Exception | None:
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
