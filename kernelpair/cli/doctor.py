"""`kernelpair doctor`: what this machine can run, and why not the rest."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from kernelpair.cli.main import EXIT_OK
from kernelpair.cli.remembered import remembered
from kernelpair.cli.select import select_suite
from kernelpair.environment import environment
from kernelpair.suite import Place, Suite, Tier, run_as


def doctor(options: argparse.Namespace) -> int:
    """Print the report; exit status 0."""
    place, suite = select_suite(options)
    report = remembered(place, suite, "doctor", lambda: _report(suite))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report, place, options.verbose)
    return EXIT_OK


def _report(suite: Suite) -> dict[str, Any]:
    return {"environment": environment(), "tiers": [_described(tier) for tier in suite.tiers()], **suite.facts()}


def _described(tier: Tier) -> dict[str, Any]:
    """What the suite says of a tier, all of it where it is a dataclass."""
    known: dict[str, Any] = asdict(tier) if is_dataclass(tier) and not isinstance(tier, type) else {}
    return known | {"name": tier.name, "runnable": tier.runnable, "reason": tier.reason, "run_as": run_as(tier)}


def _show(report: dict[str, Any], place: Place, verbose: bool) -> None:
    console = Console(highlight=False)
    machine = report["environment"]
    console.print(f"CPU       {machine['cpu']}, {machine['cores']} cores; {' '.join(machine['cpu_flags'])}")
    console.print(f"torch     {machine['torch']}, {machine['torch_threads']} threads; Python {machine['python']}")
    console.print(f"suite     {place.module}{f' in {place.folder}' if place.folder else ''}", soft_wrap=True, markup=False)
    for name, value in report.items():
        if name in ("environment", "tiers"):
            continue
        says = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, Mapping) else str(value)
        console.print(f"{name.replace('_', ' '):9} {says}", soft_wrap=True, markup=False)
    if report["tiers"]:
        told = [{key: each for key, each in tier.items() if key != "flags"} for tier in report["tiers"]]
        console.print(_table(told, str(report.get("selected_tier", ""))))
        for tier in report["tiers"] if verbose else ():
            console.print(f"{tier['name']}: {tier.get('flags', '')}", soft_wrap=True, markup=False)


def _table(tiers: list[dict[str, Any]], selected: str) -> Table:
    others = [key for key in tiers[0] if key not in ("name", "runnable", "reason", "run_as")]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("tier", "runs here", "why not", *others):
        table.add_column(heading, overflow="fold")
    for tier in tiers:
        name = tier["name"] + (" (in use)" if tier["name"] == selected else "")
        table.add_row(name, tier["run_as"] or _said(tier["runnable"]), tier["reason"], *(_said(tier[key]) for key in others))
    return table


def _said(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
