"""Plots of the page of speeds: time over length, with the roofline, as SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kernelpair.timing.speeds import SpeedRow, Timed

STYLE: dict[Any, Any] = {"svg.hashsalt": "kernelpair", "svg.fonttype": "none", "font.size": 9}  # same data, same bytes
OURS = ("#c1121f", "#d97706", "#7b2cbf")  # by tier: strong colours, for lines that lie on top
OTHERS = ("#2a6f97", "#588157", "#6c757d", "#8d6e63", "#5e60ce", "#4d908e")
FAINT = "#555555"
BEHIND, MIDDLE, FRONT = 1, 2, 3
BAND = 0.2  # opacity
BELOW = -0.23  # of the axes: where the legend begins


def plot(rows: Sequence[SpeedRow], path: Path, title: str, machine: str) -> None:
    """One series: milliseconds over size, both logarithmic. A line through the medians of each tier, which lies in front, and of
    each peer, in a band between their quartiles; dashed, the roofline of each tier."""
    rows = sorted((row for row in rows if row.ours), key=lambda row: row.size)
    tiers = list(dict.fromkeys(row.tier for row in rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4))
        axes = figure.subplots()
        for name, colour in zip(tiers, OURS * len(tiers)):
            own = [row for row in rows if row.tier == name]
            _line(axes, f"{name} (ours)", {row.size: row.ours for row in own if row.ours}, colour, FRONT)
            limits = {row.size: row.limit for row in own if row.limit}
            if limits:
                says = f"roofline of {name}"
                axes.plot(*zip(*limits.items()), color=colour, linestyle="--", linewidth=0.8, label=says, zorder=BEHIND)
        peers = _peers(rows)
        for (name, points), colour in zip(peers.items(), OTHERS * len(peers)):
            _line(axes, name, points, colour, MIDDLE)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = list(dict.fromkeys(row.size for row in rows))
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
        axes.set_xlabel("tokens")
        axes.set_ylabel("milliseconds: median, quartiles")
        axes.grid(True, which="major", linewidth=0.3)
        axes.set_title(title, fontsize=9, loc="left", pad=18)
        axes.text(0.0, 1.02, machine, fontsize=7.5, color=FAINT, transform=axes.transAxes)
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0.0, BELOW), ncols=2, borderaxespad=0.0)
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def _peers(rows: Sequence[SpeedRow]) -> dict[str, dict[int, Timed]]:
    """The points of each peer, once each: the same peer is timed beside every tier."""
    found: dict[str, dict[int, Timed]] = {}
    for row in rows:
        for peer in row.peers:
            found.setdefault(peer.name, {}).setdefault(row.size, peer)
    return found


def _line(axes: Any, name: str, points: Mapping[int, Timed], colour: str, order: int) -> None:
    """Through the medians, in a band between the quartiles."""
    low, high = zip(*(timed.quartiles for timed in points.values()))
    axes.fill_between(list(points), low, high, color=colour, alpha=BAND, linewidth=0, zorder=order)
    medians = [timed.milliseconds for timed in points.values()]
    width = 1.8 if order == FRONT else 1.0
    axes.plot(list(points), medians, marker="o", markersize=3, linewidth=width, color=colour, label=name, zorder=order)
