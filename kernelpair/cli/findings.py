"""`kernelpair findings`: every defect that a page claims is run again; the page must say what the case shows."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from kernelpair.call.runner import Isolated
from kernelpair.cli.main import EXIT_FAILED, EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.pages import findings_page
from kernelpair.cli.select import cpu_obstacle, provider_named, select_suite
from kernelpair.contract.verdict import Verdict
from kernelpair.providers.findings import Finding, PageError, lines_of, read_page, untrue
from kernelpair.providers.named import ProviderError
from kernelpair.providers.provider import candidate_name, ready
from kernelpair.providers.subjects import Subjects
from kernelpair.report.steps import Steps
from kernelpair.suite import Place, Suite
from kernelpair.trial.check import check, read_case


def findings(options: argparse.Namespace) -> int:
    """Run the findings of the pages; 1 if one of them is not as the page says, 3 if none of them could be run."""
    console = Console(highlight=False)
    torch.set_num_threads(1)
    place, suite = select_suite(options, built=True)
    found = [finding for page in _pages(suite, options.pages) for finding in _read(page)]
    wrong, told = 0, []
    with Steps(console, len(found), "findings") as steps:
        for finding in found:
            steps.begin(finding.id)
            why_not = _absent(suite, finding) or unseen(suite, finding)
            if why_not:
                head = f"{finding.id} {finding.title}: not run: {why_not}"
                console.print(head, style="yellow", soft_wrap=True, markup=False)
                continue
            name = candidate_name(finding.provider, finding.cpu)
            verdicts = [(says, run(place, case, name)) for case, says in finding.cases]
            problems = [untrue(says, verdict) for says, verdict in verdicts] + [_unfair(place, case) for case, _ in finding.cases]
            problem = "; ".join(filter(None, problems))
            wrong += bool(problem)
            told.append((finding, problem, [verdict for _, verdict in verdicts]))
            head = f"{finding.id} {finding.title}: "
            console.print(head + (problem or "as the page says"), style="red" if problem else "", soft_wrap=True, markup=False)
            if options.verbose or problem:
                for line in (line for _, verdict in verdicts for line in lines_of(verdict)):
                    console.print(f"    {line}", soft_wrap=True, markup=False)
    left = f", {len(found) - len(told)} not run" if len(told) < len(found) else ""
    console.print(f"{len(found)} findings, {wrong} of them not as their page says{left}")
    if options.html:
        findings_page(console, options.html, told, suite, Subjects(place))
    return EXIT_FAILED if wrong else EXIT_OK if told else EXIT_NOTHING


def _absent(suite: Suite, finding: Finding) -> str:
    """Why the library is not here; empty where it is. UsageError if it is, in another version than the page's."""
    found = provider_named(suite, finding.provider)
    try:
        if reason := ready(found):
            return reason
    except ProviderError as error:
        raise UsageError(str(error)) from None
    version = found.module.version() if hasattr(found.module, "version") else finding.version
    if version != finding.version:
        raise UsageError(f"{finding.id} is about {finding.provider} {finding.version}, installed is {version or 'none'}")
    return ""


def unseen(suite: Suite, finding: Finding) -> str:
    """Why the finding cannot show on this machine; empty where it can."""
    if obstacle := cpu_obstacle(suite, finding.cpu):
        return f"--cpu {finding.cpu}: {obstacle}"
    found = provider_named(suite, finding.provider)
    if finding.build and finding.build != found.variant():
        return f"it is of {finding.build}, and this CPU gets {found.variant()}"
    pairs = (read_case(suite.pairs(), case)[0].name for case, _ in finding.cases)
    return next(filter(None, map(found.lacks, pairs)), "")


def run(place: Place, line: str, candidate: str) -> Verdict:
    """A case, with a candidate by name."""
    suite = place.load()
    pair, case = read_case(suite.pairs(), line)
    subject = Subjects(place)(pair.name, candidate)
    with Isolated(subject.candidate, preload=suite.preload) as runner:
        return check(subject, case, runner)


def _unfair(place: Place, line: str) -> str:
    """Our own plainest kernel must pass the case: else it shows no fault of somebody else's."""
    suite = place.load()
    pair, _ = read_case(suite.pairs(), line)
    own = suite.candidates(pair)[0].name
    return "" if run(place, line, own).passed else f"our own kernel fails the case too ({own})"


def _pages(suite: Suite, wanted: list[str]) -> list[Path]:
    pages = [Path(page) for page in wanted] or sorted(suite.findings().glob("*-*.md"))
    for page in pages:
        if not page.is_file():
            raise UsageError(f"there is no page {page}")
    return pages


def _read(page: Path) -> list[Finding]:
    try:
        return read_page(page)
    except PageError as error:
        raise UsageError(str(error)) from None


def finding_by_id(suite: Suite, name: str) -> Finding | None:
    """The finding of this id on any of the suite's pages."""
    found = [finding for page in _pages(suite, []) for finding in _read(page) if finding.id.lower() == name.lower()]
    return found[0] if found else None
