"""`kernelpair bench`: tiers and torch on the rows that each pair declares, or with `--against` a contest with others' kernels."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelpair.cli.against import Contest, contest_tiers, peers_named, prepared
from kernelpair.cli.against_show import show_errors, show_skipped, show_summary
from kernelpair.cli.main import EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import select_candidates, select_pairs, select_tiers
from kernelpair.environment import environment
from kernelpair.pair import BenchRow, Pair
from kernelpair.place import resolve
from kernelpair.run import not_on_trial
from kernelpair.timing import Timing, interleave
from optimized import selected_tier, set_tier
from optimized._library import load
from properties.candidates import PYTHON

EMULATED = "amx_emulated"  # a thousand times slower; timed only when asked for by name
WIDTH = 140  # where there is no terminal
ONLY_AGAINST = ("one_thread", "errors")


def bench(options: argparse.Namespace) -> int:
    """Time and print row by row; 3 if no row fits the selection."""
    if options.json and not Path(options.json).resolve().parent.is_dir():
        raise UsageError(f"--json: the folder of {options.json} does not exist")
    for name in ONLY_AGAINST:
        if getattr(options, name) and options.against is None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --against")
    cores = torch.get_num_threads()
    if options.threads and options.threads > cores:
        raise UsageError(f"--threads: there are {cores} cores, got {options.threads}")
    with not_on_trial():
        load()
    torch.set_num_threads(options.threads or cores)
    try:
        return _plain(options) if options.against is None else _contest(options)
    finally:
        torch.set_num_threads(cores)


def _rows(options: argparse.Namespace, pair: Pair) -> list[BenchRow]:
    return [row for row in pair.bench if (not options.row or options.row in row.name) and (not row.series or options.series)]


def _contest(options: argparse.Namespace) -> int:
    select_tiers(options.tier)  # names one that is unknown or cannot run
    pairs = select_pairs(options.pairs)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    with not_on_trial():
        peers = peers_named(options.against)
    tiers = contest_tiers(options.tier)
    contest = Contest(peers, [name for name, _ in tiers], options.seconds, torch.get_num_threads(), options.one_thread, console)
    contest.speeds.skipped_tiers = {name: reason for name, reason in tiers if reason}
    show_skipped(console, contest.speeds)
    try:
        for pair in pairs:
            if options.errors and pair.bench_case is not None:
                show_errors(console, contest.compare_errors(pair, candidates_of(pair, tiers)))
        chosen = [(pair, row) for pair in pairs for row in _rows(options, pair)]
        for pair, row in sorted(chosen, key=lambda one: bool(one[1].series)):  # the long ones last
            contest.row(pair, row, candidates_of(pair, tiers))
            contest.write(options.json)  # a crash of somebody's kernel ends this process
    except KeyboardInterrupt:
        contest.speeds.interrupted = True
        raise
    finally:
        contest.write(options.json)
    if not contest.speeds.rows:
        console.print("no row fits the selection")
        return EXIT_NOTHING
    show_summary(console, contest.speeds)
    return EXIT_OK


def candidates_of(pair: Pair, tiers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The tiers of a contest, or the one candidate of a pair that is not put on trial by tier."""
    return [(PYTHON, "")] if pair.tiers == PYTHON else tiers


def _plain(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    tiers = select_tiers(options.tier)
    measured: list[dict[str, Any]] = []
    try:
        for pair in select_pairs(options.pairs):
            names = [name for name, reason in select_candidates(pair, tiers) if not reason]
            names = [name for name in names if name != EMULATED or EMULATED in tiers]
            for row in _rows(options, pair):
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
    competitors: dict[str, Callable[[], object]] = dict.fromkeys(names, prepared(pair, row, arguments))
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
