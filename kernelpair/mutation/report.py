"""What a run of mutants found: one result a mutant, as a table for the documentation and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from kernelpair.contract.pair import Pair
from kernelpair.mutation.mutant import Mutant
from kernelpair.names import count
from kernelpair.report.files import write_whole
from kernelpair.search.jobs import Ended

KILLED, SURVIVED, EQUIVALENT, SKIPPED, ERROR = "killed", "survived", "equivalent", "skipped", "error"


@dataclass
class MutantResult:
    """How one mutant fared."""

    mutant: str
    tier: str
    says: str
    group: str
    line: int | None
    subtle: bool
    verdict: str
    reason: str = ""
    """Why it was skipped, is equivalent, or could not be planted."""
    noticed_by: str = ""
    """The trial that saw it first: `value` is the judgement of a single call."""
    kind: str = ""
    cases: int = 0
    seconds: float = 0.0
    """Time until it was noticed, or in all, without the time for building it and for shrinking."""
    case: str = ""
    """The smallest case that was found."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What the case is measured by -> how much it has (`Cases.sizes`)."""
    large: str = ""
    """What it has too much of for a shrunk case, in words; empty if nothing."""

    @property
    def pair(self) -> str:
        return self.mutant.partition("/")[0]

    @property
    def noticed(self) -> str:
        """The kind of failure and the trial that saw it; empty for a mutant that nothing noticed."""
        return f"{self.kind} (trial {self.noticed_by})" if self.kind else ""


def result_of(mutant: Mutant, tier: str, ended: Ended, pair: Pair) -> MutantResult:
    """The result of a mutant's trial."""
    result = MutantResult(mutant.name, tier, mutant.says, mutant.group, mutant.line, mutant.subtle, SURVIVED)
    tally, first = ended.tally, ended.tally.first
    if ended.error:
        result.verdict, result.reason = ERROR, ended.error
    elif first is not None:
        result.verdict, result.noticed_by, result.kind = KILLED, first.noticed_by, first.kind
        result.cases, result.seconds = first.cases, round(first.seconds, 2)
        smallest = min(tally.failures.values(), key=lambda verdict: len(verdict.line))
        result.case = smallest.line
        result.sizes = {name: measured(smallest.case) for name, (_, measured) in pair.cases.sizes.items()}
        beyond = [f"{result.sizes[name]} {name}, at most {most}" for name, (most, _) in pair.cases.sizes.items()
                  if result.sizes[name] > most]  # fmt: skip
        result.large = "; ".join(beyond)
        if mutant.equivalent and not mutant.elsewhere:
            result.verdict, result.reason = ERROR, f"declared equivalent ({mutant.equivalent}), but it was noticed"
    else:
        result.cases, result.seconds = tally.cases, round(tally.seconds, 2)
        if mutant.equivalent:
            result.verdict, result.reason = EQUIVALENT, mutant.equivalent
    return result


def others(results: Sequence[MutantResult]) -> str:
    """How many results are neither killed nor survivors, such as ", 1 equivalent"."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in (EQUIVALENT, SKIPPED, ERROR)}
    return "".join(f", {count} {verdict}" for verdict, count in counts.items() if count)


def skipped(mutant: Mutant, tier: str, reason: str) -> MutantResult:
    """The result of a mutant whose tier cannot run here."""
    return MutantResult(mutant.name, tier, mutant.says, mutant.group, mutant.line, mutant.subtle, SKIPPED, reason)


def score(results: Sequence[MutantResult]) -> str:
    """One line: killed of counted, and how long that took."""
    counted = [result for result in results if result.verdict in (KILLED, SURVIVED)]
    killed = [result for result in counted if result.verdict == KILLED]
    line = f"{len(killed)} of {len(counted)} mutants killed"
    if killed:
        seconds = [result.seconds for result in killed]
        cases = [result.cases for result in killed]
        line += f"; median {count(round(median(cases)), 'case')} and {median(seconds):.1f} s"
        line += f", most {count(max(cases), 'case')} and {max(seconds):.1f} s"
        line += shrunk(killed)
    return line


def shrunk(killed: Sequence[MutantResult]) -> str:
    """How large the largest of the smallest cases is, where the pair measures them, such as "; shrunk to at most 2
    requests"."""
    names = dict.fromkeys(name for result in killed for name in result.sizes)
    most = [f"{max(result.sizes.get(name, 0) for result in killed)} {name}" for name in names]
    return f"; shrunk to at most {' and '.join(most)}" if most else ""


def write_json(
    path: Path, results: Sequence[MutantResult], healthy: Sequence[dict[str, Any]], environment: dict[str, Any]
) -> None:
    """{"mutants": […], "unmutated": […], "environment": {…}}"""
    document = {"mutants": [asdict(result) for result in results], "unmutated": list(healthy), "environment": environment}
    write_whole(path, json.dumps(document, indent=2) + "\n")


def markdown(
    results: Sequence[MutantResult], seed: int, seconds: float, environment: dict[str, Any], stopped: str = ""
) -> str:
    """The table of a run, as the documentation shows it; `stopped` says that the run was interrupted."""
    lines = [
        f"{environment['cpu']}, torch {environment['torch']}, seed {seed}, at most {seconds:g} s a mutant.",
        "",
        f"{stopped}{score(results)}.",
        "",
    ]
    for pair in dict.fromkeys(result.pair for result in results):
        lines += [f"### {pair}", "", *_rows([result for result in results if result.pair == pair]), ""]
    return "\n".join(lines)


def _rows(results: Sequence[MutantResult]) -> list[str]:
    lines = ["| mutant | planted bug | class | tier | trial: failure | cases | seconds |", "|---|---|---|---|---|---|---|"]
    for result in results:
        name = result.mutant.partition("/")[2] + (f" ({result.line})" if result.line else "")
        who = f"`{result.noticed_by}`: {result.kind}"
        if result.verdict != KILLED:
            who = f"**{result.verdict}** {result.reason}".strip()
        group = result.group + (", subtle" if result.subtle else "")
        says = result.says.replace("|", "\\|")
        lines.append(f"| {name} | {says} | {group} | {result.tier} | {who} | {result.cases} | {result.seconds:.1f} |")
    return lines
