"""`kernelpair doctor`: what this machine can run, and why not the rest."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kernelpair.cli.main import EXIT_OK
from kernelpair.environment import environment
from optimized import build, selected_tier, tiers


def doctor(options: argparse.Namespace) -> int:
    """Print the report; exit status 0."""
    report = _report()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return EXIT_OK


def _report() -> dict[str, Any]:
    built = {key: value for key, value in build().items() if key not in ("tiers", "best")}
    amx = next(tier for tier in tiers() if tier.name == "amx")
    return {
        "environment": environment(),
        "tiers": [asdict(tier) for tier in tiers()],
        "selected_tier": selected_tier(),
        "amx_permission": "granted" if amx.runnable else f"not granted: {amx.reason}",
        "library": built,
    }


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    machine = report["environment"]
    console.print(f"CPU       {machine['cpu']}, {machine['cores']} cores; {' '.join(machine['cpu_flags'])}")
    console.print(f"torch     {machine['torch']}, {machine['torch_threads']} threads; Python {machine['python']}")
    console.print(f"library   {', '.join(f'{key} {value}' for key, value in report['library'].items())}")
    console.print(f"AMX       permission {report['amx_permission']}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("tier", "compiled", "runs here", "why not", "flags"):
        table.add_column(heading, overflow="fold")
    for tier in report["tiers"]:
        name = tier["name"] + (" (in use)" if tier["name"] == report["selected_tier"] else "")
        table.add_row(name, _yes(tier["compiled"]), _yes(tier["runnable"]), tier["reason"], tier["flags"])
    console.print(table)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
