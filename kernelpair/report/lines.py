"""What a run found, for people and for machines: lines, JSON, JUnit."""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import PlaceTable, Verdict
from kernelpair.providers.provider import PREFIX, spec_and_cpu
from kernelpair.report.files import write_whole
from kernelpair.search.coverage import cells
from kernelpair.search.jobs import Ended
from kernelpair.search.tally import Shrinking

NO_CASE = "no case was tried"  # all of them unsupported, or no time
BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class FailureReport:
    """One failure as `--json` writes it."""

    kind: str
    case: str
    replay: str
    detail: str
    group: str = ""
    """The cause, where the search went on after it: kind, tensor, and the flags and edges without which the case passes."""
    found: str = ""
    """The case as it was drawn, before it was shrunk; empty for a saved one."""
    shrunk: int = 0
    """Failing cases on the way from there to the smallest."""
    shared: str = ""
    """One sentence: what cases that fail like this one have and cases that pass do not have. On a second line, where there is
    one, the usual slip that explains them."""


@dataclass
class PairResult:
    """One pair and candidate as `--json` writes it."""

    pair: str
    candidate: str
    verdict: str
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0
    failures: list[FailureReport] = field(default_factory=list)
    gaps: dict[str, tuple[int, float, str]] = field(default_factory=dict)
    """Output -> cases beyond the contract's own bound for the rounding that a provider declares, the worst ratio, its case."""
    rounding: str = ""
    """That rounding."""
    groups: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """Group of failures, also one that a ledger knows -> its cases, and the worst ratio of error and bound among them; None
    where nothing is measured, such as after a crash."""
    tightness: dict[str, float] = field(default_factory=dict)
    """Output -> largest error / bound over the run."""
    ratios: dict[str, dict[int, int]] = field(default_factory=dict)
    """Output and dtype -> exponent k -> calls whose largest error / bound was at most 2^k and above 2^(k-1)."""
    uncovered: list[str] = field(default_factory=list)
    """Named edges that no case hit."""
    edges: dict[str, int] = field(default_factory=dict)
    """Named edge -> cases that hit it."""
    crossed: dict[str, int] = field(default_factory=dict)
    """`dtype argument layout` -> cases that had both."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Field of the case -> the largest size drawn."""
    measures: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Measure -> the largest drawn, and the largest that the kernel's code branches on (0: none)."""
    looseness: dict[str, float] = field(default_factory=dict)
    """Output -> median over the run of the median bound over the output's size."""
    unhit: list[str] = field(default_factory=list)
    """Cells of the case space (`kernelpair.search.coverage`) that no case hit."""
    untaken: list[str] = field(default_factory=list)
    """Paths through the candidate's code (`Coverage.paths`) that no case took."""
    trials: dict[str, int] = field(default_factory=dict)
    unsupported: dict[str, int] = field(default_factory=dict)
    """Documented limit -> cases drawn outside of it; none of them was judged."""
    known: dict[str, str] = field(default_factory=dict)
    """Group of the ledger -> its case; they fail as they did."""
    mended: list[str] = field(default_factory=list)
    """Groups of the ledger that fail no longer."""
    run_as: str = ""
    """How it ran where the machine lacks what it needs, such as "trapped"."""
    executed: dict[str, int] = field(default_factory=dict)
    """Instructions that the calls executed, as far as they can be seen: "amx loads" -> how many."""
    fault: bool = False
    """Of a skip: harness, pair or input is at fault, and the run does not pass."""
    tables: list[PlaceTable] = field(default_factory=list)
    """Place by place: of each failing case that has such a table, or else the largest ratios over all cases of the run."""

    @property
    def shown(self) -> str:
        """The candidate's name for people, and how it ran."""
        return shown(self.candidate, self.run_as)


def shown(candidate: str, run_as: str = "") -> str:
    """A candidate's name for people: of a provider, what `--provider` was given."""
    return candidate.removeprefix(PREFIX) + (f" ({run_as})" if run_as else "")


def instructions(executed: Mapping[str, int]) -> dict[str, int]:
    """Path -> its instructions; how often they were trapped is not one of them."""
    paths: Counter[str] = Counter()
    for name, count in executed.items():
        path, _, kind = name.partition(" ")
        paths[path] += count if kind != "traps" else 0
    return dict(paths)


def replay_command(line: str, candidate: str, suite: str | None = None) -> str:
    """What to type to see a case again; `suite` is what `--suite` was given."""
    return f"kernelpair replay {shlex.quote(line)} {chosen(candidate, suite)}"


def chosen(candidate: str, suite: str | None = None) -> str:
    """The options that choose a candidate of a suite."""
    options = ["--tier", candidate]
    if candidate.startswith(PREFIX):
        spec, cpu = spec_and_cpu(candidate)
        options = ["--provider", spec, *(["--cpu", cpu] if cpu else [])]
    return shlex.join([*options, *(["--suite", suite] if suite else [])])


def command_for_pytest(test: str, pair: str, candidate: str) -> str:
    """What to type to run the whole trial under pytest; empty for a provider's kernel, and where the suite names no test."""
    if not test or candidate.startswith(PREFIX):
        return ""
    return f"pytest {shlex.quote(test.format(pair=pair, candidate=candidate))}"


def failures_of(
    verdict: Verdict, candidate: str, group: str = "", trail: Shrinking | None = None, shared: str = "", suite: str | None = None
) -> list[FailureReport]:
    """A verdict's failures with the command that replays them."""
    command = replay_command(verdict.line, candidate, suite)
    found, tried = (trail.found, trail.tried) if trail is not None else ("", 0)
    return [
        FailureReport(
            failure.kind, verdict.line, command, failure.place, group, found, tried, shared
        )
        for failure in verdict.failures
    ]


def result_of(ended: Ended, pair: Pair, suite: str | None = None) -> PairResult:
    """The report of a job that ended; `suite` is what `--suite` was given."""
    tally, branches = ended.tally, pair.coverage.branches()
    failures = [
        report
        for label, verdict in tally.failures.items()
        for report in failures_of(
            verdict, ended.job.candidate, label if ended.job.several else "", tally.shrinking.get(label),
            tally.shared.get(label, ""), suite,
        )
    ]
    again = f"kernelpair check {pair.name} {chosen(ended.job.candidate, suite)} -v"
    failures += [FailureReport(f.kind, "", again, f"{f.tensor}: {f.detail}") for f in tally.vacuous]
    return PairResult(
        pair=ended.job.pair,
        candidate=ended.job.candidate,
        run_as=ended.candidate.run_as if ended.candidate else "",
        verdict="fail" if failures else "pass" if tally.cases else "skip",
        reason="cut short by the interrupt" if ended.cut_short else "" if tally.cases else NO_CASE,
        cases=tally.cases,
        seconds=round(tally.seconds, 3),
        failures=failures,
        gaps=dict(tally.gaps),
        rounding=ended.rounding if tally.gaps else "",
        groups={name: (cases, worst if math.isfinite(worst) else None) for name, (cases, worst) in tally.groups.items()},
        tightness={name: round(value, 4) for name, value in sorted(tally.largest.items())},
        ratios={name: dict(sorted(counts.items())) for name, counts in sorted(tally.ratios.items())},
        edges={name: tally.edges[name] for name in pair.coverage.edges},
        crossed=dict(sorted(tally.crossed.items())),
        sizes=dict(sorted(tally.sizes.items())),
        measures={name: (largest, branches.get(name, 0)) for name, largest in sorted(tally.measures.items())},
        looseness={name: float(f"{median(values):.3g}") for name, values in sorted(tally.looseness.items())},
        untaken=[name for name in pair.coverage.paths(ended.job.candidate) if not tally.paths[name]],
        unhit=[name for name in cells(pair) if not tally.cells[name]],
        uncovered=[name for name in pair.coverage.edges if not tally.edges[name]],
        trials=dict(tally.trials.most_common()),
        unsupported=dict(tally.unsupported.most_common()),
        known={label: verdict.line for label, verdict in tally.known.items()},
        mended=list(tally.mended),
        executed=dict(sorted(tally.executed.items())),
        tables=[verdict.table for verdict in tally.failures.values() if verdict.table] or list(tally.tables.values()),
    )


def histogram(ratios: dict[int, int], least: int) -> str:
    """A bar for each power of two from `least` to 0, for a terminal."""
    most = max(ratios.values(), default=1)
    heights = [ratios.get(power, 0) for power in range(least, 1)]
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in heights)


def write_json(path: Path, results: Sequence[PairResult], environment: dict[str, Any]) -> None:
    """{"results": […], "environment": {…}}"""
    document = {"results": [asdict(result) for result in results], "environment": environment}
    write_whole(path, json.dumps(_of_json(document), indent=2, allow_nan=False) + "\n")


def _of_json(value: Any) -> Any:
    """With null for numbers that JSON does not have: what is beyond a bound of 0, or infinite itself, is so many times beyond."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _of_json(each) for name, each in value.items()}
    return [_of_json(each) for each in value] if isinstance(value, list | tuple) else value


def _of_xml(text: str) -> str:
    """Without the characters that XML does not allow."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", lambda found: f"\\x{ord(found[0]):02x}", text)


def write_junit(path: Path, results: Sequence[PairResult], environment: Mapping[str, Any]) -> None:
    """One test case for each pair and candidate, as CI systems read it. What stands in no log is here too: seed and machine."""
    suite = ElementTree.Element("testsuite", name="kernelpair", tests=str(len(results)))
    suite.set("failures", str(sum(result.verdict == "fail" for result in results)))
    suite.set("errors", str(sum(result.fault for result in results)))
    suite.set("skipped", str(sum(result.verdict == "skip" and not result.fault for result in results)))
    suite.set("time", f"{sum(result.seconds for result in results):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in environment.items():
        value = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        ElementTree.SubElement(properties, "property", name=name, value=_of_xml(str(value)))
    for result in results:
        entry = ElementTree.SubElement(
            suite, "testcase", classname=result.pair, name=result.shown, time=f"{result.seconds:.3f}"
        )
        if result.verdict == "skip":
            ElementTree.SubElement(entry, "error" if result.fault else "skipped", message=_of_xml(result.reason))
        for failure in result.failures:
            node = ElementTree.SubElement(entry, "failure", type=failure.kind, message=_of_xml(failure.detail))
            node.text = "\n".join(filter(None, (failure.replay, failure.shared)))
    write_whole(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True))
