"""`kernelpair bench`: tiers and torch on the rows that each pair declares, or with `--against` a contest with others' kernels."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelpair.cli.case_lines import lines_of, read
from kernelpair.cli.counts import count
from kernelpair.cli.main import EXIT_FAILED, EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.select import provider_named, select_candidates, select_pairs, select_suite, select_tiers
from kernelpair.contract.pair import BenchRow, Pair
from kernelpair.environment import environment
from kernelpair.providers.named import known
from kernelpair.providers.provider import ready
from kernelpair.report.files import write_whole
from kernelpair.report.steps import Steps
from kernelpair.suite import Place, Suite
from kernelpair.timing.cases import row_of
from kernelpair.timing.compare import prepared
from kernelpair.timing.contest import TORCH, Contest, Peers, contest_tiers
from kernelpair.timing.first_calls import FirstCalls
from kernelpair.timing.interleaved import Timing, interleave, keep_freed_memory
from kernelpair.timing.load import Load, look
from kernelpair.timing.peers import arguments_of
from kernelpair.timing.show import show_absent, show_errors, show_failed, show_load, show_next, show_skipped, show_summary

WIDTH = 140  # where there is no terminal
ONLY_AGAINST = ("one_thread", "errors")
WITHOUT_CASE = ("pairs", "row", "series", "tiles", "errors")


def bench(options: argparse.Namespace) -> int:
    """Time and print row by row; 3 if no row fits the selection."""
    for name in () if options.tiles else ONLY_AGAINST:
        if getattr(options, name) and options.against is None:
            raise UsageError(f"--{name.replace('_', '-')} needs --against")
    for name in WITHOUT_CASE if options.case else ():
        if getattr(options, name):
            raise UsageError(f"--case names what is timed: {'PAIR' if name == 'pairs' else f'--{name}'} does not go with it")
    keep_freed_memory()
    cores = torch.get_num_threads()
    if options.threads and options.threads > cores:
        raise UsageError(f"--threads: there are {cores} cores, got {options.threads}")
    place, suite = select_suite(options, built=True)
    torch.set_num_threads(options.threads or cores)
    try:
        if options.tiles:
            return count(options, suite)
        return _plain(options, place, suite) if options.against is None else _contest(options, place, suite)
    finally:
        torch.set_num_threads(cores)


def _rows(options: argparse.Namespace, suite: Suite) -> list[tuple[Pair, BenchRow]]:
    """What is timed: the rows that the pairs declare, or the cases that are given. UsageError for one that is no case."""
    if not options.case:
        declared = [(pair, row) for pair in select_pairs(suite, options.pairs) for row in pair.bench.rows]
        return [(pair, row) for pair, row in declared if _wanted(options, row)]
    found = []
    for argument in options.case:
        for given in lines_of(suite, argument):
            pair, case = read(suite, given.line, given.place)
            try:
                found.append((pair, row_of(pair, case)))
            except ValueError as error:
                raise UsageError(f"--case: {pair.name}: {error}") from None
    return found


def _wanted(options: argparse.Namespace, row: BenchRow) -> bool:
    return (not options.row or options.row in row.name) and (not row.series or options.series)


def _contest(options: argparse.Namespace, place: Place, suite: Suite) -> int:
    select_tiers(suite, options.tier, timed=True)  # names one that is unknown or cannot run
    rows, pairs = _rows(options, suite), select_pairs(suite, options.pairs) if options.errors else []
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    peers = peers_named(suite, options.against)
    tiers = contest_tiers(suite, options.tier)
    contest = Contest(place, peers, options.seconds, torch.get_num_threads(), options.one_thread, console)
    contest.speeds.skipped_tiers = {name: reason for name, reason in tiers if reason}
    show_skipped(console, contest.speeds)
    show_absent(console, peers.absent)
    loads = contest.speeds.load
    options.begun = True  # the file says what is known by then
    try:
        loads.append(show_load(console, look()))
        for pair in pairs:
            if pair.bench.case is not None:
                show_errors(console, contest.compare_errors(pair, candidates_of(suite, pair, tiers)))
        with Steps(console, len(rows), "rows") as steps:
            for pair, row in sorted(rows, key=lambda one: bool(one[1].series)):  # the long ones last
                steps.begin(f"{pair.name} {row.name}")
                contest.row(pair, row, candidates_of(suite, pair, tiers))
                contest.write(options.json)  # what is known by now, however the process ends
        loads.append(show_load(console, look(), loads))
    except KeyboardInterrupt:
        contest.speeds.interrupted = True
        raise
    finally:
        contest.close()
        contest.write(options.json)
    if not contest.speeds.rows:
        console.print("no row fits the selection")
        return EXIT_NOTHING
    show_summary(console, contest.speeds, suite.machine.floors)
    return EXIT_FAILED if any(row.failed for row in contest.speeds.rows) else EXIT_OK


def candidates_of(suite: Suite, pair: Pair, tiers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Of a pair that is put on trial by tier the tiers of the contest, else its candidates."""
    names = [candidate.name for candidate in suite.candidates(pair)]
    return [(name, reason) for name, reason in tiers if name in names] or [(name, "") for name in names]


def peers_named(suite: Suite, text: str) -> Peers:
    """The peers of `--against A,B`, by name. UsageError for one that is unknown, and if none can be used here."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--against: name at least one peer: torch, a provider, or a provider's file .py")
    peers = Peers(names)
    for name in names:
        if name == TORCH:
            continue
        if not name.endswith(".py") and name not in known():
            names_known = ", ".join([TORCH, *sorted(known())])
            raise UsageError(f"--against: unknown peer {name!r}; known are {names_known}, or give a file .py")
        found = provider_named(suite, name)
        reason = ready(found)
        if reason:
            peers.absent[name] = reason
        else:
            peers.providers[name] = found
    if len(peers.absent) == len(names):
        raise UsageError("--against: " + "; ".join(f"{name} cannot be used here: {why}" for name, why in peers.absent.items()))
    return peers


def _plain(options: argparse.Namespace, place: Place, suite: Suite) -> int:
    console = Console(highlight=False)
    tiers = select_tiers(suite, options.tier, timed=True)
    measured: list[dict[str, Any]] = []
    rows, loads, first_calls = _rows(options, suite), list[Load](), FirstCalls(place)
    options.begun = True  # the file says what is known by then
    try:
        loads += [show_load(console, look())] if rows else []
        with Steps(console, len(rows), "rows") as steps:
            for pair, row in rows:
                steps.begin(f"{pair.name} {row.name}")
                names = [name for name, reason in select_candidates(suite, pair, tiers, timed=True) if not reason]
                names = [name for name in names if name not in suite.machine.untimed or name in tiers]
                lost = first_calls.lost(pair, row, names)
                first_calls.settle()
                timings = _time(suite, pair, row, [name for name in names if name not in lost], options.seconds)
                measured.append(_figures(pair, row, timings) | {"failed": lost})
                _show(console, measured[-1])
        loads += [show_load(console, look(), loads)] if rows else []
    finally:
        first_calls.close()
        if options.json:
            document = {"rows": measured, "load": [asdict(load) for load in loads], "environment": environment()}
            write_whole(Path(options.json), json.dumps(document, indent=2) + "\n")
    if not measured:
        console.print("no row fits the selection")
        return EXIT_NOTHING
    failed = [(row["pair"], name) for row in measured for name in row["failed"]]
    show_next(console, failed)
    return EXIT_FAILED if failed else EXIT_OK


def _time(suite: Suite, pair: Pair, row: BenchRow, names: list[str], seconds: float) -> dict[str, Timing]:
    arguments = arguments_of(row)
    candidates = {candidate.name: candidate for candidate in suite.candidates(pair) if candidate.name in names}
    competitors = {name: prepared(pair, row, arguments, candidate) for name, candidate in candidates.items()}
    competitors |= {name: prepare(arguments) for name, prepare in row.peers.items()}

    def enter(name: str) -> None:
        if name in candidates:
            candidates[name].enter()

    with suite.machine.use(suite.machine.usual()):
        return interleave(competitors, seconds, enter)


def _figures(pair: Pair, row: BenchRow, timings: dict[str, Timing]) -> dict[str, Any]:
    best = min((timing.median for timing in timings.values()), default=0.0)
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
    console.print(Text(f"{figures['pair']}  {figures['row']}", style="bold"), soft_wrap=True)
    show_failed(console, figures["failed"])
    if not figures["competitors"]:
        return
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("", "median ms", "quartiles", figures["unit"], "time / best"):
        table.add_column(heading, justify="left" if not heading else "right")
    for entry in figures["competitors"]:
        low, high = entry["quartiles"]
        rate = f"{entry['rate']:.3g}" if entry["rate"] else "-"
        numbers = (f"{entry['milliseconds']:.4g}", f"{low:.4g} … {high:.4g}", rate, f"{entry['ratio_to_best']:.2f}")
        table.add_row(entry["name"], *numbers)
    console.print(table)
