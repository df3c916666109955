"""The whole loop for one case: place, run reference and candidate, judge."""

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

from torch import Tensor

from kernelpair.call.layout import FUSED
from kernelpair.call.memory import PAGE
from kernelpair.call.place import resolve, settle
from kernelpair.call.runner import HarnessError, Runner
from kernelpair.contract.case import WRONG_CALL, Case, CaseError, from_values, pair_of_line
from kernelpair.contract.mistakes import with_place
from kernelpair.contract.pair import Inputs, Pair, Stepwise
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.names import unknown
from kernelpair.trial.judging import Abandoned
from kernelpair.trial.modes import BUILT_IN, hold_trial
from kernelpair.trial.session import Session
from kernelpair.trial.truths import Truths

BUILD_BYTES = 1 << 30  # that building a saved case may take: far above what any strategy draws, far below a small machine
COMPILING = 4  # times that a trial is held at most in which torch.compile compiles anew
TORCH_ALLOCATOR = "DefaultCPUAllocator: "  # in torch's message when memory does not suffice; its class is RuntimeError


class Journal:
    """The line of the case that is running, on disk before its first call: it survives whatever the case does.

    In a folder that cannot be written it is kept in memory, and a case that ends the harness is lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError:
            self._file = os.memfd_create(path.name)

    def note(self, line: str) -> None:
        """Write the line over the last one."""
        data = line.encode() + b"\n"
        with suppress(OSError):  # a full disk
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        """It is needed no more."""
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def check(
    subject: Subject,
    case: Case,
    runner: Runner,
    journal: Journal | None = None,
    session_type: Callable[[Subject, Case, Runner], Session] = Session,
    made: Counter[str] | None = None,
    truths: Truths | None = None,
) -> Verdict:
    """Put the subject on trial on one case. Raises HarnessError, with the case, where harness, pair or reference is at fault.

    `made`: how often which wrong call was made before; those that were made least often come first. `truths`: what is expected
    of cases that other candidates were given.
    """
    if misplaced := _misplaced(subject.pair, case):
        says = "the strategy draws what the signature does not know"
        raise HarnessError(f"{says}: {misplaced}; the case was {subject.pair.line(case)}")
    for _ in range(COMPILING):
        session = session_type(subject, case, runner)
        session.made = made or session.made
        session.truths = session.truths if truths is None else truths
        session.note = session.note if journal is None else journal.note
        session.begin(case)
        try:
            with suppress(Abandoned):
                hold_trial(session)
        except Exception as error:
            says = str(error) if isinstance(error, HarnessError) else with_place(error)
            raise HarnessError(f"{says}; the case was {session.line}") from error
        session.verdict.failures += session.effects
        if not session.verdict.of_two_compilations:  # else once more, with what is compiled by now
            break
    return session.verdict


def known_trials(pair: Pair) -> list[str]:
    """Every trial that a case of the pair may name."""
    built_in = [name for name in BUILT_IN if pair.has_trial(name)]
    return ["value", *built_in, *pair.relations, *(WRONG_CALL + name for name in pair.wrong_calls)]


def read_case(pairs: Mapping[str, Pair], line: str) -> tuple[Pair, Case]:
    """The pair and the case of a line of JSON. Raises CaseError, saying what does not fit."""
    name, version, values = pair_of_line(line)
    if name not in pairs:
        raise CaseError(unknown("pair", name, sorted(pairs)))
    pair = pairs[name]
    case = from_values(pair.cases.type, name, pair.cases.version, version, values)
    if case.trial not in known_trials(pair):
        raise CaseError(f"{name}: trial: {unknown('trial', case.trial, known_trials(pair))}")
    if pair.signature.dtypes and case.dtype not in pair.signature.dtypes:
        raise CaseError(f"{name}: dtype: {unknown('dtype', case.dtype, pair.signature.dtypes)}")
    try:
        with _limited_memory(BUILD_BYTES):
            inputs = pair.cases.inputs(case)
    except Exception as error:
        if isinstance(error, MemoryError) or TORCH_ALLOCATOR in str(error):
            raise CaseError(f"{name}: {_too_large(case)}") from error
        raise CaseError(f"{name}: this case cannot be built ({_own_fields(case)}): {error or type(error).__name__}") from error
    _check_placement(pair, case, inputs)
    _check_contract(pair, case, inputs)
    return pair, case


def _check_contract(pair: Pair, case: Case, inputs: Inputs) -> None:
    """Raises CaseError where the reference refuses the inputs: no strategy draws such a case. Whole runs are not made."""
    if isinstance(pair.truth, Stepwise):
        return
    try:
        pair.reference(**resolve(settle(pair, case, inputs)))
    except (TypeError, ValueError, IndexError) as refused:
        raise CaseError(f"{pair.name}: no case of the contract ({_own_fields(case)}): {refused}") from None


def _check_placement(pair: Pair, case: Case, inputs: Inputs) -> None:
    """Raises CaseError for a layout or an index dtype that the contract does not know, and for tensors that are too large."""
    for argument in case.layout:
        # A pair of several operators knows more arguments than one call has.
        if argument not in inputs and argument not in pair.signature.layouts:
            raise CaseError(f"{pair.name}: layout: no argument {argument!r}; the arguments are {', '.join(inputs)}")
    if misplaced := _misplaced(pair, case):
        raise CaseError(misplaced)
    sizes = {argument: value.numel() * value.element_size() for argument, value in inputs.items() if isinstance(value, Tensor)}
    if sum(sizes.values()) > BUILD_BYTES:
        largest = max(sizes, key=lambda argument: sizes[argument])
        raise CaseError(f"{pair.name}: {_too_large(case)}: {largest} alone takes {sizes[largest] >> 20} MiB")


def _misplaced(pair: Pair, case: Case) -> str:
    """The layout or the index argument of the case that the signature does not know; empty if there is none."""
    for argument, layout in case.layout.items():
        known = ["dense", *pair.signature.layouts.get(argument, ()), *([FUSED] if argument in dict(pair.signature.fused) else [])]
        if layout not in known:
            return f"{pair.name}: layout.{argument}: {unknown('layout', layout, known)}"
    for argument in case.int32:
        if argument not in pair.signature.indices:
            known = list(pair.signature.indices)
            return f"{pair.name}: int32: no index argument {argument!r}; known are {', '.join(known) or 'none'}"
    return ""


def _too_large(case: Case) -> str:
    return f"this case takes more than {BUILD_BYTES >> 30} GiB ({_own_fields(case)})"


def _own_fields(case: Case) -> str:
    """Sizes and flags of the case that are not at their defaults, for a message."""
    common = {spec.name for spec in fields(Case)}
    shown = [spec.name for spec in fields(case) if spec.name not in common and getattr(case, spec.name) != spec.default]
    return ", ".join(f"{name} = {getattr(case, name)!r}" for name in shown) or "all sizes at their defaults"


@contextmanager
def _limited_memory(nbytes: int) -> Iterator[None]:
    """Let the block allocate no more than about `nbytes`: a size that is far too large is then an error, and does not exhaust
    the machine's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    ceiling = min(limit for limit in (used + nbytes, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
