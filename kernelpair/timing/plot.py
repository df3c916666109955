"""Plots of the page of speeds: time over length, with the roofline, as SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kernelpair.timing.speeds import SpeedRow

STYLE: dict[Any, Any] = {"svg.hashsalt": "kernelpair", "svg.fonttype": "none", "font.size": 9}  # same data, same bytes


def plot(rows: Sequence[SpeedRow], path: Path) -> None:
    """One series: milliseconds over size, both logarithmic; a line for each tier, each peer, and the roofline of each tier."""
    lines: dict[str, list[tuple[int, float]]] = {}
    limits: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        if row.ours is None:
            continue
        lines.setdefault(row.tier, []).append((row.size, row.ours.milliseconds))
        for peer in row.peers:
            points = lines.setdefault(peer.name, [])
            if not points or points[-1][0] != row.size:  # the same peer is timed beside every tier
                points.append((row.size, peer.milliseconds))
        if row.limit:
            limits.setdefault(f"roofline of {row.tier}", []).append((row.size, row.limit))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4))
        axes = figure.subplots()
        for name, points in lines.items():
            axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1.2, label=name)
        for name, points in limits.items():
            axes.plot(*zip(*points), color="black", linestyle="--", linewidth=1, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([row.size for row in rows], [f"{row.size:,}" for row in rows], rotation=45)
        axes.set_xlabel("tokens")
        axes.set_ylabel("milliseconds")
        axes.grid(True, which="major", linewidth=0.3)
        axes.legend(fontsize=8, frameon=False)
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
