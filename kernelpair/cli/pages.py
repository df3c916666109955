"""The pages of mutate, findings and premerge."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from kernelpair.cli import page
from kernelpair.contract.case import pair_of_line
from kernelpair.contract.verdict import Verdict
from kernelpair.environment import environment
from kernelpair.mutation.report import KILLED, SURVIVED, MutantResult, others, score
from kernelpair.providers.findings import Finding
from kernelpair.providers.provider import candidate_name
from kernelpair.report import words
from kernelpair.report.exhibit import Exhibit
from kernelpair.report.history import Figure
from kernelpair.report.html import ReportPage, Section
from kernelpair.report.lines import PairResult, failures_of
from kernelpair.suite import Resolve, Suite

if TYPE_CHECKING:
    from kernelpair.cli.premerge import Premerge

MOST_MUTANTS = 10  # that are drawn: a page of more would be too large


def mutate_page(
    console: Console, path: str, sentence: str, results: Sequence[MutantResult], drawn: Sequence[Exhibit], alarms: int, seed: int,
    good: bool,
) -> None:
    """The score, a table of the mutants, and of the first of them how their failures look."""
    machine = environment()
    facts = [("seed", str(seed)), ("machine", machine["cpu"]), ("false alarms", str(alarms))]
    by_pair: dict[str, list[MutantResult]] = defaultdict(list)
    for result in results:
        by_pair[result.pair].append(result)
    sections = [
        Section("Pairs", "Mutants that a trial noticed.", ["pair", "score"],
                [(pair, score(own) + others(own)) for pair, own in by_pair.items()]),
        Section("Mutants", "Each planted bug, and the trial that saw it first.",
                ["mutant", "planted bug", "class", "tier", "verdict", "noticed by", "cases", "seconds"],
                [(r.mutant, r.says, r.group, r.tier, r.verdict, r.noticed or r.reason, str(r.cases),
                  f"{r.seconds:.1f}") for r in sorted(results, key=lambda r: r.verdict == KILLED)]),
    ]  # fmt: skip
    page.write(console, path, ReportPage("kernelpair mutate", sentence, good, facts, drawn, len(drawn), [], sections))


def figures_of(results: Sequence[MutantResult]) -> list[Figure]:
    """For the history: of each pair the mutants that were noticed, in percent."""
    counted: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        if result.verdict in (KILLED, SURVIVED):
            counted[result.pair].append(result.verdict == KILLED)
    return [Figure("mutants", pair, "", "", 100 * sum(killed) / len(killed)) for pair, killed in counted.items()]


def findings_page(
    console: Console,
    path: str,
    told: Sequence[tuple[Finding, str, Sequence[Verdict]]],
    suite: Suite,
    resolve: Resolve,
) -> None:
    """Each finding with the pictures of its cases; `told` are finding, what is not as its page says, and its verdicts."""
    wrong = sum(bool(problem) for _, problem, _ in told)
    rows = [(finding.id, finding.title, problem or "as the page says") for finding, problem, _ in told]
    results = []
    for finding, _, verdicts in told:
        subject = candidate_name(finding.provider, finding.cpu)
        for verdict in (verdict for verdict in verdicts if not verdict.passed):
            pair = pair_of_line(verdict.line)[0]
            results.append(PairResult(pair, subject, "fail", failures=failures_of(verdict, subject, finding.id)))
    sentence = f"{len(told)} findings, {wrong} of them not as their page says."
    section = Section("Findings", "Each was run again.", ["finding", "what", "now"], rows)
    made = page.page_of("findings", sentence, results, page.again(suite, resolve), good=not wrong, sections=[section])
    made.results = ()
    page.write(console, path, made)


def premerge_page(console: Console, path: str, run: "Premerge", suite: Suite, resolve: Resolve, slow_fails: bool) -> None:
    """What the change touches, its failures, and how fast it is against the base."""
    ratios = [
        (r.pair, r.row, f"{r.median:.2f}", f"{r.low:.2f} to {r.high:.2f}", run.verdict(r))
        for r in run.ratios
    ] + [(name, "", "", "", "new") for name in run.new]
    changed = [c for c in run.counts if c.now != c.base]
    executed = [(c.pair, c.row, c.instruction, f"{c.now:,}", f"{c.base:,}", "more" if c.raised else "") for c in changed]
    sections = [
        Section("Speed against the base", "Time over that of the base's build: median and quartiles.",
                ["pair", "row", "time / base", "quartiles", ""], ratios),
        Section("Affected pairs", "And the files because of which they are.", ["pair", "files"],
                [(pair, ", ".join(files)) for pair, files in run.touched.files.items()]),
    ]  # fmt: skip
    if run.counts:
        headings, says = ["pair", "row", "instruction", "now", "base", ""], f"{len(changed)} of {len(run.counts)} counts differ."
        sections.append(Section("Instructions against the base", says, headings, executed))
    sentence = words.proven(run.results, run.interrupted)
    worse = run.slower or run.raised
    good = not run.failed and not run.errors and not run.interrupted and not (slow_fails and worse)
    facts = [("base", run.base[:10]), ("files changed", str(len(run.files))), *(("note", note) for note in run.remarks)]
    facts += [("load", run.load.says)] if run.load is not None and run.busy else []
    facts += [("harness fault", error) for error in run.errors]
    how = page.again(suite, resolve)
    page.write(console, path, page.page_of("premerge", sentence, run.results, how, good=good, facts=facts, sections=sections))
