"""Speeds of several machines side by side: a folder for each, and the page that compares them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelpair.timing.speeds import SpeedRow, Speeds, read

FIGURES = "speeds.json"  # of a machine, in its folder: from these the comparing page is made again
PAGE = "README.md"
INTRODUCTION = """\
This page and those that it links to are generated. On a machine of yours, in a checkout:

    {command}
    {remake}

A row shows the best peer's time over that of our fastest tier on that machine, and that tier; both from one interleaved run, on
all cores. A ratio below 1 is set in bold."""


def folder_of(environment: Mapping[str, Any]) -> str:
    """The name of a machine's folder: its CPU, by family and model where the system tells, and its cores."""
    kind = environment.get("cpu_kind", "")
    words = f"{environment.get('cpu', 'unknown')} {kind} {environment.get('cores', 'unknown')} cores"
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", "", words.lower())))


def machines_in(folder: Path) -> dict[str, Speeds]:
    """Name of a machine's folder -> what was measured on it. Raises SpeedError for figures that cannot be read."""
    return {path.parent.name: read(path) for path in sorted(folder.glob(f"*/{FIGURES}"))}


def fastest(rows: Sequence[SpeedRow]) -> dict[tuple[str, str], SpeedRow]:
    """Pair and row -> the row on the tier that is fastest there."""
    tried: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for number, row in enumerate(rows):
        if row.ours:
            tried.setdefault((row.pair, row.row), []).append((row.ours.milliseconds, number))
    return {key: rows[min(times)[1]] for key, times in tried.items()}


def side_by_side(machines: Mapping[str, Speeds], command: str, remake: str) -> str:
    """The comparing page as Markdown."""
    parts = ["# Speed, machine by machine", INTRODUCTION.format(command=command, remake=remake), _overview(machines)]
    found = {name: fastest(speeds.rows) for name, speeds in machines.items()}
    keys = dict.fromkeys(key for rows in found.values() for key, row in rows.items() if row.ratio)
    for pair in dict.fromkeys(pair for pair, _ in keys):
        lines = [f"| {pair} | " + " | ".join(machines) + " |", "|---|" + "--:|" * len(machines)]
        lines += [
            f"| {row} | " + " | ".join(_ratio(rows.get((pair, row))) for rows in found.values()) + " |"
            for of, row in keys if of == pair
        ]  # fmt: skip
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _overview(machines: Mapping[str, Speeds]) -> str:
    lines = ["| machine | CPU | cores | tiers | peers | geometric mean | rows below 1 |", "|---|---|--:|---|---|--:|--:|"]
    for name, speeds in machines.items():
        known, best = speeds.environment, fastest(speeds.rows).values()
        ratios = [row.ratio for row in best if row.ratio]
        cells = [
            f"[{name}]({name}/{PAGE})",
            str(known.get("cpu", "unknown")),
            str(known.get("cores", "unknown")),
            ", ".join(dict.fromkeys(row.tier for row in speeds.rows if row.ours)),
            ", ".join(f"{peer} {version}" for peer, version in {"torch": known.get("torch", ""), **speeds.versions}.items()),
            f"{geometric_mean(ratios):.2f}" if ratios else "",
            f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(row: SpeedRow | None) -> str:
    if row is None or not row.ratio:
        return ""
    says = f"{row.ratio:.2f}"
    return f"{says if float(says) >= 1 else f'**{says}**'} {row.tier}"
