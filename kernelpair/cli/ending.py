"""The end of a run that has results of trials: what it says, the files it writes, its exit status."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kernelpair.cli import page
from kernelpair.cli.main import EXIT_FAILED, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from kernelpair.environment import environment
from kernelpair.report import words
from kernelpair.report.history import History
from kernelpair.report.lines import PairResult, write_json
from kernelpair.suite import Resolve, Suite


def end(
    console: Console,
    options: argparse.Namespace,
    suite: Suite,
    resolve: Resolve,
    results: Sequence[PairResult],
    *,
    interrupted: bool = False,
    faults: Sequence[str] = (),
    notes: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
) -> int:
    """Say what was proven, then the failures, the shortest first; write `--json`, the history and `--html`; return the status.

    `faults` are of the harness, `notes` the last lines.
    """
    sentence, missing = words.proven(results, interrupted), words.not_tried(results)
    lines = [sentence, *([missing] if missing else []), *faults]
    for result in words.shortest_first(results):
        for failure in result.failures:
            lines += [f"FAIL {result.pair}[{result.candidate}] {failure.kind}: {failure.detail}", f"  {failure.replay}"]
    console.print("\n".join([*lines, *notes]), soft_wrap=True, markup=False)
    tried = any(result.cases for result in results)
    failed = any(result.verdict == "fail" for result in results)
    if options.json:
        write_json(Path(options.json), results, environment() | dict(facts))
    history = History.usual(suite.root)
    if history is not None and tried:
        history.append(options.command, results)
    if options.html:
        told = [*([("not tried", missing.removeprefix("Not tried: "))] if missing else []), *facts]
        good = tried and not failed and not interrupted and not faults
        series = page.histories(console, history, results)
        how = page.again(suite, resolve)
        made = page.page_of(options.command, sentence, results, how, good=good, facts=told, histories=series)
        page.write(console, options.html, made)
    if interrupted:
        return EXIT_INTERRUPTED
    if failed:
        return EXIT_FAILED
    return EXIT_HARNESS if faults else EXIT_OK if tried else EXIT_NOTHING
