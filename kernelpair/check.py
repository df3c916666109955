"""The whole loop for one case: place, run reference and candidate, judge."""

import os
from contextlib import suppress
from pathlib import Path

from kernelpair.candidate import Candidate
from kernelpair.case import REJECTS, Case, CaseError, from_values, pair_of_line
from kernelpair.pair import Pair
from kernelpair.run import Runner
from kernelpair.session import BUILT_IN, Abandoned, Session
from kernelpair.verdict import Verdict


class Journal:
    """The line of the case that is running, on disk before its first call: it survives whatever the case does."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def note(self, line: str) -> None:
        """Write the line over the last one."""
        data = line.encode() + b"\n"
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def close(self) -> None:
        os.close(self._file)


def check(pair: Pair, candidate: Candidate, case: Case, runner: Runner, journal: Journal | None = None) -> Verdict:
    """Put `candidate` on trial on one case. Raises HarnessError where the harness, the pair or the reference is at fault."""
    session = Session(pair, candidate, case, runner)
    if journal is not None:
        journal.note(session.verdict.line)
    with suppress(Abandoned):
        session.hold_trial()
    return session.verdict


def known_trials(pair: Pair) -> list[str]:
    """Every trial that a case of the pair may name."""
    return ["value", *BUILT_IN, *pair.relations, *(REJECTS + name for name in pair.bad)]


def read_case(pairs: dict[str, Pair], line: str) -> tuple[Pair, Case]:
    """The pair and the case of a line of JSON. Raises CaseError, saying what does not fit."""
    name, version, values = pair_of_line(line)
    if name not in pairs:
        raise CaseError(f"unknown pair {name!r}; known are {', '.join(sorted(pairs))}")
    pair = pairs[name]
    case = from_values(pair.case, name, pair.version, version, values)
    if case.trial not in known_trials(pair):
        raise CaseError(f"{name}: trial: unknown trial {case.trial!r}; known are {', '.join(known_trials(pair))}")
    try:
        pair.inputs(case)
    except Exception as error:
        raise CaseError(f"{name}: this case cannot be built: {error}") from error
    return pair, case



