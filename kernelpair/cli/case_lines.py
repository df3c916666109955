"""Cases as a command line gives them: lines of JSON, files that hold one a line, ids of findings."""

from collections.abc import Iterator
from pathlib import Path

from kernelpair.cli.findings import finding_by_id
from kernelpair.cli.main import UsageError
from kernelpair.contract.case import Case, CaseError
from kernelpair.contract.pair import Pair
from kernelpair.providers.findings import Finding
from kernelpair.suite import Suite
from kernelpair.trial.check import read_case


def lines_of(suite: Suite, argument: str) -> Iterator[tuple[str, Finding | None]]:
    """The lines that one argument stands for, each with the finding that it is of. UsageError where it is none of the three."""
    if argument.lstrip().startswith("{"):
        yield argument, None
        return
    path = Path(argument)
    if not path.is_file():
        finding = finding_by_id(suite, argument)
        if finding is None:
            raise UsageError(f"{argument!r} is neither a case (JSON) nor a file nor the id of a finding")
        yield from ((line, finding) for line, _ in finding.cases)
        return
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {argument}: {error}") from None
    if not lines:
        raise UsageError(f"{argument} holds no case")
    yield from ((line, None) for line in lines)


def read(suite: Suite, line: str) -> tuple[Pair, Case]:
    """The pair and the case of a line. UsageError says what does not fit."""
    try:
        return read_case(suite.pairs(), line)
    except CaseError as error:
        raise UsageError(str(error)) from None
