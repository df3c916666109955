"""Cases as a command line gives them: lines of JSON, files that hold one a line, ids of findings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kernelpair.cli.findings import finding_by_id
from kernelpair.cli.main import UsageError
from kernelpair.contract.case import Case, CaseError
from kernelpair.contract.pair import Pair
from kernelpair.providers.findings import Finding
from kernelpair.suite import Suite
from kernelpair.trial.check import read_case

CASE = re.compile(r"""(?!\s*\{\s*"pair")\W{0,5}pair\W*:\W*\w""")  # a case begins like this without its quotes, or with others


class Given(NamedTuple):
    """One line, with the finding that it is of, and where it stands (`file:line`), if it is of one or stands in a file."""

    line: str
    finding: Finding | None = None
    place: str = ""


def lines_of(suite: Suite, argument: str) -> Iterator[Given]:
    """The lines that one argument stands for. UsageError where it is none of the three."""
    if CASE.match(argument):
        raise UsageError(f"{argument!r}: a shell has changed the quotes of this case; give it as it was printed, in quotes")
    if argument.lstrip().startswith("{"):
        yield Given(argument)
        return
    path = Path(argument)
    if not path.is_file():
        finding = finding_by_id(suite, argument)
        if finding is None:
            raise UsageError(f"{argument!r} is neither a case (JSON) nor a file nor the id of a finding")
        yield from (Given(line, finding) for line, _ in finding.cases)
        return
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {argument}: {error}") from None
    if not any(line.strip() for line in lines):
        raise UsageError(f"{argument} holds no case")
    yield from (Given(line, None, f"{argument}:{number}") for number, line in enumerate(lines, 1) if line.strip())


def read(suite: Suite, line: str, place: str = "") -> tuple[Pair, Case]:
    """The pair and the case of a line that stands at this place. UsageError says what does not fit."""
    try:
        return read_case(suite.pairs(), line)
    except CaseError as error:
        raise UsageError(f"{place}: {error}" if place else str(error)) from None
