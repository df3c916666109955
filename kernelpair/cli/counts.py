"""`kernelpair bench --tiles`: what each row executes, counted and not timed."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kernelpair.cli.main import EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import select_pairs
from kernelpair.environment import environment
from kernelpair.suite import Suite
from kernelpair.timing.machine import Uncounted

TIMED_ONLY = ("against", "tier", "one_thread", "errors")
SMALL = 100.0  # figures below have decimals


def count(options: argparse.Namespace, suite: Suite) -> int:
    """Count and print row by row; 3 if nothing can be counted."""
    for name in TIMED_ONLY:
        if getattr(options, name):
            raise UsageError(f"--tiles counts and times nothing: --{name.replace('_', '-')} does not go with it")
    console, rows = Console(highlight=False), []
    for pair in select_pairs(suite, options.pairs):
        for row in pair.bench.rows:
            if (options.row and options.row not in row.name) or (row.series and not options.series):
                continue
            try:
                figures = suite.machine.counted(pair, row, bool(options.row))
            except Uncounted as reason:
                console.print(f"{pair.name}  {row.name}: not counted: {reason}", style="dim", soft_wrap=True, markup=False)
                continue
            rows.append({"pair": pair.name, "row": row.name, "counts": dict(figures)})
            _show(console, rows[-1])
    if options.json:
        Path(options.json).write_text(json.dumps({"counts": rows, "environment": environment()}, indent=2) + "\n")
    return EXIT_OK if rows else EXIT_NOTHING


def _show(console: Console, row: dict[str, Any]) -> None:
    console.print(Text(f"{row['pair']}  {row['row']}", style="bold"))
    figures = (f"{name} {figure:.3g}" if figure < SMALL else f"{name} {figure:,.0f}" for name, figure in row["counts"].items())
    console.print("  " + "; ".join(figures), soft_wrap=True, markup=False)
