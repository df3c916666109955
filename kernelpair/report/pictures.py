"""The pictures of the page, drawn with matplotlib as SVG. Colours of ink follow the page, light or dark; text stays text.

matplotlib is imported when the first picture is drawn: it belongs to the optional extra `report`.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelpair.report.exhibit import Requests
from kernelpair.report.plane import FINE, LEAST_POWER, MOST_POWER, NONFINITE, UNWRITTEN, VALUE, Plane
from kernelpair.report.recorder import CANARY, DATA, GAP, POISON, TRESPASS, WRITTEN, Strip

WIDTH = 5.6  # inches, at 72 points: on a phone the text is then still about 9 pixels high
INK, FAINT = "#010203", "#040506"  # stand for the page's own colours
VECTOR, LINE = 16, 64  # elements between thin and thick grid lines: 16 lanes of 32 bits are a vector, 64 a whole block of tiles
TILE_ROWS = 16  # rows between grid lines where rows are many: a tile's
MOST_LINES = 40
LABEL_HEIGHT = 0.14  # inches of a row's name
LEAST_COLUMNS = 12  # a narrower plane leaves room to its right
MOST_REQUESTS = 32
LEAST_NAMED = 0.75  # inches of a picture whose rows have a title
MOST_STRIPS = 14
FEW = 8  # wrong cells that get a ring of their own in a large picture
BEYOND = ("#f08c00", "#e8590c", "#d9480f", "#c92a2a", "#a51111")  # beyond the bound: up to 4, 32, 256, 4096 times, and more
STEPS = (4.0, 32.0, 256.0, 4096.0)
WITHIN = (34, 102, 170)  # RGB of elements within their bound; the nearer to it, the fuller
STRANGE, STALE = "#9c36b5", "#7d8590"
MEMORY = {
    CANARY: "#00000000", GAP: "#8d96a044", POISON: "#f2cc0c99", DATA: "#2266aa66", WRITTEN: "#2f9e44cc", TRESPASS: "#d00000",
}  # fmt: skip
MEMORY_NAMES = {
    GAP: "gap", POISON: "poison, not to be read", DATA: "data", WRITTEN: "written", TRESPASS: "changed, must not be",
}  # fmt: skip
SERIES = ("#2266aa", "#2f9e44", "#e8590c", "#9c36b5")

RGBA = npt.NDArray[np.float64]
_drawn = 0


def _picture(draw: Callable[..., Any]) -> Callable[..., str]:
    """Run a drawing function with matplotlib set up, and return its figure as inline SVG with a text alternative."""

    @wraps(draw)
    def drawn(*arguments: Any, alternative: str, **options: Any) -> str:
        global _drawn
        import matplotlib as mpl

        _drawn += 1
        style: Any = {
            "font.size": 9, "font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": str(_drawn),
            "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK, "ytick.color": INK,
            "axes.linewidth": 0.6, "figure.facecolor": "none", "axes.facecolor": "none", "path.simplify": True,
        }  # fmt: skip
        with mpl.rc_context(style):
            return _svg(draw(*arguments, **options), alternative)

    return drawn


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any, alternative: str) -> str:
    """The figure without what a page does not need: prologue, metadata, names of groups."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"font-family: [^;\"]*; ?", "", text)
    text = text.replace("stroke-linejoin: round; stroke-linecap: butt", "stroke-linejoin: round; font-family: inherit")
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text)
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)").replace(">\n", ">")
    text = re.sub(r"\s*\n\s*", " ", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alternative)}" ', 1).strip()


@_picture
def error_picture(plane: Plane) -> Any:
    """[rows, columns] of one tensor: pale within the bound, bright beyond it, with the grids of vectors, tiles and heads."""
    high, wide = plane.kinds.shape
    cell = min(0.24, (WIDTH - 0.9) / wide)
    height = min(max(high * max(min(cell, 3.6 / high), 0.045), 0.28), 4.0)
    figure, axes = _figure(height + 0.55)
    extent = (0, wide * plane.each[1], high * plane.each[0], 0)
    axes.imshow(_colours(plane), extent=extent, interpolation="none", aspect="auto")
    axes.set(xlim=(0, max(plane.columns, LEAST_COLUMNS)), ylim=(plane.rows, 0))
    wide, high = plane.columns, plane.rows
    axes.plot([0, wide, wide, 0, 0], [0, 0, high, high, 0], color=FAINT, linewidth=0.8, clip_on=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks(_ticks(plane.columns))
    for column in _lines(plane.columns, VECTOR):
        thick = column % LINE == 0
        axes.axvline(column, color=INK, alpha=0.55 if thick else 0.28, linewidth=0.9 if thick else 0.5)
    together = plane.group if 1 < plane.group < plane.rows else TILE_ROWS
    for row in _lines(plane.rows, together):
        axes.plot([0, plane.columns], [row, row], color=INK, alpha=0.5, linewidth=0.7)
    _ring(axes, plane)
    _name_rows(axes, plane, height)
    axes.set_xlabel(_columns_named(plane), loc="left")
    return figure


def _colours(plane: Plane) -> RGBA:
    from matplotlib.colors import to_rgba

    picture = np.zeros((*plane.kinds.shape, 4))
    fine = plane.kinds == FINE
    picture[fine, :3] = np.array(WITHIN) / 255
    picture[fine, 3] = 0.12 + 0.5 * np.clip(np.nan_to_num(plane.ratios[fine], nan=0.0), 0, 1)
    picture[plane.kinds == NONFINITE] = to_rgba(STRANGE)
    picture[plane.kinds == UNWRITTEN] = to_rgba(STALE)
    wrong = plane.kinds == VALUE
    shades = np.array([to_rgba(colour) for colour in BEYOND])
    picture[wrong] = shades[np.searchsorted(STEPS, np.nan_to_num(plane.ratios[wrong], nan=np.inf))]
    return picture


def _lines(size: int, step: int) -> list[int]:
    """Where grid lines lie; further apart where there would be too many."""
    while size // step > MOST_LINES:
        step *= 4
    return list(range(step, size, step))


def _ticks(columns: int) -> list[int]:
    """Whole numbers below the first column of each step: a power of two, at most 12 of them."""
    step = 1
    while columns > 12 * step:
        step *= 2
    return list(range(0, columns, step))


def _ring(axes: Any, plane: Plane) -> None:
    """A ring around each wrong cell where there are few among many."""
    where = np.argwhere(plane.kinds > FINE)
    if 0 < len(where) <= FEW and plane.kinds.size > 400:
        rows, columns = (where[:, 0] + 0.5) * plane.each[0], (where[:, 1] + 0.5) * plane.each[1]
        axes.scatter(columns, rows, s=90, facecolors="none", edgecolors=BEYOND[3], linewidths=1.4, clip_on=False)


def _name_rows(axes: Any, plane: Plane, height: float) -> None:
    """Ticks at the first row of each group, by the index of the leading dimensions: as many as fit into so many inches."""
    leading = plane.sizes[: plane.split]
    if not leading:
        axes.set_yticks([])
        return
    starts = list(range(0, plane.rows, plane.group)) if plane.group > 1 else list(range(plane.rows))
    starts = starts[:: -(-len(starts) // max(1, min(12, int(height / LABEL_HEIGHT))))]
    names = [str([int(i) for i in np.unravel_index(start, leading)][: max(len(leading) - 1, 1)]).strip("[]") for start in starts]
    axes.set_yticks([start + (plane.group / 2 if plane.group > 1 else 0.5) for start in starts], names)
    if height >= LEAST_NAMED:
        kind = f"[{', '.join(map(str, leading))}]"
        axes.set_ylabel(f"rows {kind}" if len(leading) == 1 else f"rows {kind},\n{plane.group} in a band")


def _columns_named(plane: Plane) -> str:
    trailing = ", ".join(map(str, plane.sizes[plane.split :])) or "1"
    says = f"columns [{trailing}]"
    if plane.columns > VECTOR:
        says += f"; a line each {VECTOR}" + (f" (a vector), thick each {LINE}" if plane.columns > LINE else "")
    if plane.each != (1, 1):
        says += f"\na cell is the worst of {plane.each[0]} x {plane.each[1]} elements"
    return says


@_picture
def histogram_picture(plane: Plane) -> Any:
    """How many elements are how far from the truth, in powers of two of their bound."""
    figure, axes = _figure(1.7)
    powers = list(range(LEAST_POWER, MOST_POWER + 1))
    counts = [plane.histogram.get(power, 0) for power in powers]
    axes.bar(powers, counts, width=0.86, color=[SERIES[0] if power <= 0 else BEYOND[3] for power in powers])
    axes.set_yscale("symlog", linthresh=1)
    axes.axvline(0.5, color=INK, linewidth=1)
    axes.text(0.7, 1.02, "beyond the bound", transform=axes.get_xaxis_transform(), va="bottom", fontsize=8)
    axes.set_xticks([-12, -8, -4, 0, 4, 8, 12], ["≤ 2⁻¹²", "2⁻⁸", "2⁻⁴", "1", "2⁴", "2⁸", "≥ 2¹²"])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(_few_counts(max(counts, default=1)))
    axes.set_yticklabels([f"{int(tick)}" for tick in axes.get_yticks()])
    axes.set(xlabel=f"error / bound of {plane.tensor}", ylabel="elements")
    return figure


def _few_counts(most: int) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator([0, *(10**power for power in range(0, len(str(most)) + 1) if 10**power <= most)])


@_picture
def batch_picture(requests: Requests) -> Any:
    """A bar for each request, one piece for each length; the faulty ones in the colour of a fault."""
    shown = _chosen(requests)
    figure, axes = _figure(0.62 + 0.21 * len(shown))
    for place, request in enumerate(shown):
        left = 0
        for which, length in enumerate(requests.lengths[request]):
            wrong = request in requests.faulty
            colour = BEYOND[3] if wrong else SERIES[0]
            axes.barh(place, length, left=left, height=0.66, color=colour, alpha=(0.9, 0.5, 0.28)[which % 3],
                      edgecolor=INK, linewidth=0.4)  # fmt: skip
            left += length
        numbers = " + ".join(map(str, requests.lengths[request])) + ("  ← wrong" if request in requests.faulty else "")
        axes.annotate(numbers, (left, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [f"request {request}" for request in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, max((sum(lengths) for lengths in requests.lengths), default=1) * 1.22 + 1)
    more = f" ({len(shown)} of {len(requests.lengths)} shown)" if len(shown) < len(requests.lengths) else ""
    axes.set_xlabel(" + ".join(requests.names) + more)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _chosen(requests: Requests) -> list[int]:
    """The requests that are drawn: all, or the faulty ones and the first of the others."""
    order = sorted(range(len(requests.lengths)), key=lambda request: request not in requests.faulty)
    return sorted(order[:MOST_REQUESTS])


def chosen_strips(strips: Sequence[Strip]) -> list[Strip]:
    """The buffers that are drawn: those with trespasses, then those that the call writes, then the largest."""
    order = sorted(strips, key=lambda strip: (-strip.trespasses, -int((strip.cells == WRITTEN).any()), -strip.nbytes))
    kept = order[:MOST_STRIPS]
    return [strip for strip in strips if strip in kept]


@_picture
def memory_picture(strips: Sequence[Strip]) -> Any:
    """Every argument's buffer from its first byte to its last, with canaries and the guard page around it."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    figure, axes = _figure(0.75 + 0.27 * len(strips))
    palette = np.array([to_rgba(MEMORY[kind]) for kind in sorted(MEMORY)])
    for place, strip in enumerate(strips):
        wide = len(strip.cells)
        axes.imshow(palette[strip.cells][None], extent=(0, 1, place + 0.36, place - 0.36), interpolation="none", aspect="auto")
        inside = np.flatnonzero(strip.cells != CANARY)
        first, last = (inside[0] / wide, (inside[-1] + 1) / wide) if len(inside) else (0.5, 0.5)
        edge = [place + y for y in (-0.36, -0.36, 0.36, 0.36, -0.36)]
        axes.plot([first, last, last, first, first], edge, color=INK, linewidth=0.6)
        at = last if strip.guard == "end" else first
        axes.plot([at, at], [place - 0.46, place + 0.46], color=INK, linewidth=3, solid_capstyle="butt")
    axes.set(xlim=(-0.01, 1.01), ylim=(len(strips) - 0.4, -0.6))
    axes.set_xticks([])
    if len(strips) > 1:
        axes.set_xlabel("each from its first byte to its last, not to one scale", loc="left", fontsize=8)
    names = [" + ".join(strip.arguments) for strip in strips]
    says = [f"{name}\n{strip.layout}, {_bytes(strip.nbytes)}" for name, strip in zip(names, strips)]
    axes.set_yticks(range(len(strips)), says, fontsize=7.5)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(left=False)
    seen = {int(kind) for strip in strips for kind in np.unique(strip.cells)}
    handles = [Patch(facecolor=MEMORY[kind], label=name) for kind, name in MEMORY_NAMES.items() if kind in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8, handlelength=1,
                  columnspacing=1.2)  # fmt: skip
    return figure


def _bytes(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1024:.0f} KiB"


@_picture
def lines_picture(series: Mapping[str, Sequence[float]], ticks: Sequence[str], says: str) -> Any:
    """Lines over commits: one for each name, NaN where a commit has no value."""
    figure, axes = _figure(2.0)
    for colour, (name, values) in zip(SERIES * 8, series.items()):
        axes.plot(range(len(values)), values, marker="o", markersize=3, linewidth=1.2, color=colour, label=name)
        known = [(place, value) for place, value in enumerate(values) if math.isfinite(value)]
        if known:
            axes.annotate(name, known[-1], xytext=(5, 0), textcoords="offset points", va="center", fontsize=7.5, color=colour)
    step = -(-len(ticks) // 8)
    axes.set_xticks(range(0, len(ticks), step), ticks[::step])
    axes.set_xlim(-0.3, max(len(ticks) - 1, 1) * 1.35)
    axes.set_ylabel(says)
    axes.set_ylim(bottom=0)
    return figure
