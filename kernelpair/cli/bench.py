"""`kernelpair bench`: tiers and torch on the rows that each pair declares."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelpair.cli.main import EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import select_candidates, select_pairs, select_tiers
from kernelpair.environment import environment
from kernelpair.pair import BenchRow, Pair
from kernelpair.place import resolve
from kernelpair.timing import Timing, interleave
from optimized import selected_tier, set_tier
from properties.candidates import PYTHON

EMULATED = "amx_emulated"  # a thousand times slower; timed only when asked for by name


def bench(options: argparse.Namespace) -> int:
    """Time and print row by row; 3 if no row fits the selection."""
    if options.json and not Path(options.json).resolve().parent.is_dir():
        raise UsageError(f"--json: the folder of {options.json} does not exist")
    console = Console(highlight=False)
    tiers = select_tiers(options.tier)
    measured: list[dict[str, Any]] = []
    try:
        for pair in select_pairs(options.pairs):
            names = [name for name, reason in select_candidates(pair, tiers) if not reason]
            names = [name for name in names if name != EMULATED or EMULATED in tiers]
            for row in pair.bench:
                if not options.row or options.row in row.name:
                    timings = _time(pair, row, names, options.seconds)
                    measured.append(_figures(pair, row, timings))
                    _show(console, measured[-1])
    finally:
        if options.json:
            document = {"rows": measured, "environment": environment()}
            Path(options.json).write_text(json.dumps(document, indent=2) + "\n")
    if not measured:
        console.print("no row fits the selection")
        return EXIT_NOTHING
    return EXIT_OK


def _time(pair: Pair, row: BenchRow, names: list[str], seconds: float) -> dict[str, Timing]:
    arguments = resolve(row.arguments())
    prepared = pair.prepare_bench(arguments) if pair.prepare_bench is not None else lambda: pair.optimized(**arguments)
    competitors: dict[str, Callable[[], object]] = dict.fromkeys(names, prepared)
    competitors |= {name: prepare(arguments) for name, prepare in row.peers.items()}
    usual = selected_tier()
    try:
        return interleave(competitors, seconds, lambda name: set_tier(name) if name in names and name != PYTHON else None)
    finally:
        set_tier(usual)


def _figures(pair: Pair, row: BenchRow, timings: dict[str, Timing]) -> dict[str, Any]:
    best = min(timing.median for timing in timings.values())
    rate, unit = (row.flops / 1e12, "TFLOP/s") if row.flops else (row.bytes / 1e9, "GB/s")
    competitors = [
        {
            "name": name,
            "milliseconds": timing.median * 1e3,
            "quartiles": [timing.low * 1e3, timing.high * 1e3],
            "rate": rate / timing.median,
            "ratio_to_best": timing.median / best,
            "samples": timing.samples,
        }
        for name, timing in timings.items()
    ]
    return {"pair": pair.name, "row": row.name, "unit": unit, "competitors": competitors}


def _show(console: Console, figures: dict[str, Any]) -> None:
    console.print(Text(f"{figures['pair']}  {figures['row']}", style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("", "median ms", "quartiles", figures["unit"], "time / best"):
        table.add_column(heading, justify="left" if not heading else "right")
    for entry in figures["competitors"]:
        low, high = entry["quartiles"]
        rate = f"{entry['rate']:.3g}" if entry["rate"] else "-"
        numbers = (f"{entry['milliseconds']:.4g}", f"{low:.4g} … {high:.4g}", rate, f"{entry['ratio_to_best']:.2f}")
        table.add_row(entry["name"], *numbers)
    console.print(table)
