"""The page of a run (`--html`): what every command that has results says about itself, and the failures run again for it."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kernelpair.cli.select import select_candidates
from kernelpair.environment import environment
from kernelpair.providers.provider import PREFIX, provider, spec_and_cpu
from kernelpair.report.exhibit import Again, exhibits
from kernelpair.report.history import History
from kernelpair.report.html import SHOWN_GROUPS, ReportPage, Section, Series, write_page
from kernelpair.report.lines import PairResult
from kernelpair.suite import Resolve, Suite


def histories(console: Console, history: History | None, results: Sequence[PairResult]) -> list[Series]:
    """The plots of the figures of earlier runs. If the file is no history, this is said, and the page has no plots."""
    try:
        return history.series([result.pair for result in results]) if history is not None else []
    except ValueError as error:
        console.print(str(error), style="yellow", soft_wrap=True, markup=False)
        return []


def again(suite: Suite, resolve: Resolve) -> Again:
    """How to run the failures of a command again."""

    def load(candidate: str) -> str:
        if candidate.startswith(PREFIX):
            return str(getattr(provider(spec_and_cpu(candidate)[0]).module, "SCRIPT", ""))
        return suite.script

    return Again(resolve, suite.preload, lambda pair: select_candidates(suite, pair, ()), load)


def page_of(
    command: str,
    sentence: str,
    results: Sequence[PairResult],
    how: Again,
    *,
    good: bool,
    facts: Sequence[tuple[str, str]] = (),
    sections: Sequence[Section] = (),
    histories: Sequence[Series] = (),
    next_steps: Sequence[str] = (),
    most: int = SHOWN_GROUPS,
) -> ReportPage:
    """The page of a run; `most` of its failures, the shortest, are run again."""
    shown, groups = exhibits(results, how, most)
    machine = environment()
    about = [("machine", f"{machine['cpu']}, {machine['cores']} cores"), ("torch", str(machine["torch"]))]
    title = f"kernelpair {command} · {os.path.basename(os.getcwd())}"
    return ReportPage(title, sentence, good, [*facts, *about], shown, groups, results, sections, histories, list(next_steps))


def write(console: Console, path: str, page: ReportPage) -> None:
    """Write the page and say where it is."""
    write_page(Path(path), page)
    console.print(f"wrote {path}", soft_wrap=True, markup=False)
