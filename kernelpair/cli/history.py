"""`kernelpair history`: the figures of runs, commit after commit."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernelpair.cli.main import EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import select_pairs, select_suite
from kernelpair.report.files import write_whole
from kernelpair.report.history import FILE, WHAT, History, RunFigure
from kernelpair.report.html import ReportPage, write_page

SHOWN = 6  # commits of a line


def history(options: argparse.Namespace) -> int:
    """Print, plot or export the figures of earlier runs; 3 if there are none."""
    _, suite = select_suite(options)
    pairs = [pair.name for pair in select_pairs(suite, options.pairs)] if options.pairs else []
    kept = History.usual(suite.root) or History(FILE, suite.root)
    try:
        rows = kept.rows(pairs, options.what or "")
    except ValueError as error:
        raise UsageError(str(error)) from None
    console = Console(highlight=False)
    if not rows:
        console.print(f"nothing is kept in {kept.path} yet: each `kernelpair check` outside of CI adds to it", soft_wrap=True)
        return EXIT_NOTHING
    if options.json:
        runs = [{"at": row.at, "revision": row.revision, "command": row.command, "cpu": row.cpu} for row in rows]
        document = [run | asdict(row.figure) for run, row in zip(runs, rows)]
        write_whole(Path(options.json), json.dumps(document, indent=1) + "\n")
    _show(console, rows)
    if options.html:
        series = [each for each in kept.series(pairs) if not options.what or each.says == WHAT[options.what]]
        commits = len({row.revision for row in rows})
        sentence = f"{len(rows):,} figures of {commits} commits" if series else "One commit is kept: lines need two."
        write_page(Path(options.html), ReportPage("kernelpair history", sentence, True, histories=series))
        console.print(f"wrote {options.html}", soft_wrap=True)
    return EXIT_OK


def _show(console: Console, rows: list[RunFigure]) -> None:
    """One line for each figure: its values over the last commits."""
    commits = list(dict.fromkeys(row.revision for row in rows))[-SHOWN:]
    newest = time.strftime("%Y-%m-%d %H:%M", time.localtime(rows[-1].at))
    console.print(f"{len(rows)} figures, the newest of {newest}", style="dim")
    values: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for row in rows:
        figure = row.figure
        values.setdefault((figure.what, figure.pair, figure.candidate, figure.name), {})[row.revision] = figure.value
    for what in dict.fromkeys(key[0] for key in values):
        table = Table(box=None, padding=(0, 1, 0, 0), title=WHAT.get(what, what), title_justify="left", title_style="bold")
        table.add_column("pair", no_wrap=True)
        table.add_column("", no_wrap=True)
        for commit in commits:
            table.add_column(commit[:10], justify="right", no_wrap=True)
        for (kind, pair, candidate, name), known in values.items():
            if kind == what:
                table.add_row(pair, f"{candidate} {name}".strip(), *(_number(known.get(commit)) for commit in commits))
        console.print(table, soft_wrap=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
