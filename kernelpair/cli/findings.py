"""`kernelpair findings`: every defect that a page claims is run again; the page must say what the case shows."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

import properties
from kernelpair.check import check, read_case
from kernelpair.cli.main import EXIT_FAILED, EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import PRELOAD, select_provider
from kernelpair.findings import Finding, PageError, lines_of, read_page, untrue
from kernelpair.provider import PREFIX
from kernelpair.run import Isolated
from kernelpair.verdict import Verdict
from properties.candidates import PYTHON, resolve

FOLDER = "docs/findings"


def findings(options: argparse.Namespace) -> int:
    """Run the findings of the pages; 1 if one of them is not as the page says, 3 if there are none."""
    console = Console(highlight=False)
    torch.set_num_threads(1)
    found = [finding for page in _pages(options.pages) for finding in _read(page)]
    wrong = 0
    for finding in found:
        _check_version(finding)
        verdicts = [(says, run(case, PREFIX + finding.provider)) for case, says in finding.cases]
        problems = [untrue(says, verdict) for says, verdict in verdicts] + [_unfair(case) for case, _ in finding.cases]
        problem = "; ".join(filter(None, problems))
        wrong += bool(problem)
        head = f"{finding.id} {finding.title}: "
        console.print(head + (problem or "as the page says"), style="red" if problem else "", soft_wrap=True, markup=False)
        if options.verbose or problem:
            for line in (line for _, verdict in verdicts for line in lines_of(verdict)):
                console.print(f"    {line}", soft_wrap=True, markup=False)
    console.print(f"{len(found)} findings, {wrong} of them not as their page says")
    return EXIT_FAILED if wrong else EXIT_OK if found else EXIT_NOTHING


def run(line: str, candidate: str) -> Verdict:
    """A case, with a candidate by name."""
    pair, case = read_case(properties.pairs(), line)
    judged, subject = resolve(pair.name, candidate)
    with Isolated(subject, preload=PRELOAD) as runner:
        return check(judged, subject, case, runner)


def _unfair(line: str) -> str:
    """Our own plainest kernel must pass the case: else it shows no fault of somebody else's."""
    pair, _ = read_case(properties.pairs(), line)
    own = PYTHON if pair.tiers == PYTHON else "scalar"
    return "" if run(line, own).passed else f"our own kernel fails the case too ({own})"


def _check_version(finding: Finding) -> None:
    module = select_provider(finding.provider, ()).module
    version = module.version() if hasattr(module, "version") else finding.version
    if version != finding.version:
        raise UsageError(f"{finding.id} is about {finding.provider} {finding.version}, installed is {version or 'none'}")


def _pages(wanted: list[str]) -> list[Path]:
    pages = [Path(page) for page in wanted] or sorted((properties.ROOT / FOLDER).glob("*-*.md"))
    for page in pages:
        if not page.is_file():
            raise UsageError(f"there is no page {page}")
    return pages


def _read(page: Path) -> list[Finding]:
    try:
        return read_page(page)
    except PageError as error:
        raise UsageError(str(error)) from None


def finding_by_id(name: str) -> Finding | None:
    """The finding of this id on any of our pages."""
    found = [finding for page in _pages([]) for finding in _read(page) if finding.id.lower() == name.lower()]
    return found[0] if found else None
