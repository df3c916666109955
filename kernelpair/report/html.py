"""The report as one page that opens offline: verdict first, then each group of failures with its pictures, then coverage.

jinja2 and matplotlib make it, the optional extra `report`; nothing else of the engine needs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from kernelpair.names import count
from kernelpair.report import pictures
from kernelpair.report.exhibit import Exhibit, View
from kernelpair.report.files import write_whole
from kernelpair.report.lines import PairResult
from kernelpair.report.packages import missing
from kernelpair.report.plane import FINE
from kernelpair.report.plane import Plane as PlaneType
from kernelpair.search.tally import LEAST

MOST_PLANES = 3  # of one call: the ones with the most wrong elements
SHOWN_GROUPS = 10
WORDS = {"pass": "pass", "fail": "fail", "skip": "skipped"}


class ReportError(RuntimeError):
    """The page cannot be made: the message says what is missing."""


@dataclass(frozen=True)
class Section:
    """A table of its own, such as a mutation score."""

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """Values over commits: one line for each name."""

    title: str
    says: str
    """What the values are, with their unit."""
    commits: Sequence[str]
    lines: Mapping[str, Sequence[float]]


@dataclass
class ReportPage:
    """Everything that the page says."""

    title: str
    sentence: str
    """What was proven, or what failed."""
    good: bool
    facts: Sequence[tuple[str, str]] = ()
    exhibits: Sequence[Exhibit] = ()
    groups: int = 0
    """Of failures in all; the page shows the first."""
    results: Sequence[PairResult] = ()
    sections: Sequence[Section] = ()
    histories: Sequence[Series] = ()
    next_steps: Sequence[str] = field(default_factory=list)


def write_page(path: Path, page: ReportPage) -> None:
    """Write the page. Raises ReportError where a library is missing."""
    if missing():
        raise ReportError(missing())
    write_whole(path, rendered(page))


def rendered(page: ReportPage) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["counted"] = count
    source = resources.files("kernelpair.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    template = environment.from_string(source)
    text = template.render(
        page=page,
        groups=[_group(exhibit) for exhibit in page.exhibits],
        coverage=_coverage(page.results),
        crossed=_crossed(page.results),
        bounds=_bounds(page.results),
        histories=[_history(series) for series in page.histories],
        words=WORDS,
    )
    return "\n".join(line.strip() if "<pre" not in line else line for line in text.splitlines() if line.strip())


@dataclass(frozen=True)
class _Shown:
    """A picture with its words."""

    svg: str
    says: str
    title: str


@dataclass(frozen=True)
class _Group:
    """An exhibit with its pictures drawn."""

    exhibit: Exhibit
    errors: list[_Shown]
    batch: list[_Shown]
    histograms: list[_Shown]
    differences: list[tuple[str, ...]]


def _group(exhibit: Exhibit) -> _Group:
    views = [(view, title) for view, title in ((exhibit.found, "as it was found"), (exhibit.small, "at its smallest")) if view]
    first = views[0][0] if views else None
    errors = [_error(plane, title, view) for view, title in views for plane in _planes(view)]
    histograms = [
        _Shown(pictures.histogram_picture(plane, alternative=_histogram_says(plane)), _histogram_says(plane), "How far off")
        for plane in (_planes(first)[:1] if first else [])
        if not plane.exact
    ]
    return _Group(exhibit, errors, _batch(first), histograms, _differences(exhibit.small) if exhibit.small else [])


def _planes(view: View) -> list[PlaneType]:
    wrong = [plane for plane in view.planes if plane.wrong]
    return (wrong or view.planes)[:MOST_PLANES]


def _error(plane: PlaneType, title: str, view: View) -> _Shown:
    note = f" ({plane.note})" if plane.note else ""
    return _Shown(pictures.error_picture(plane, alternative=plane.says), plane.says + note, f"{plane.tensor}, {title}")


def _batch(view: View | None) -> list[_Shown]:
    if view is None:
        return []
    found = []
    if view.requests is not None:
        says = view.requests.says
        found.append(_Shown(pictures.batch_picture(view.requests, alternative=says), says, "Requests and lengths"))
    strips = pictures.chosen_strips(view.strips)
    if strips:
        wrong = sum(strip.trespasses for strip in view.strips)
        says = "Each argument's buffer, with canaries around it and the guard page as a thick bar; "
        says += f"{count(wrong, 'byte')} changed that must not." if wrong else "nothing changed that must not."
        alternative = ". ".join(strip.alternative for strip in strips)
        found.append(_Shown(pictures.memory_picture(strips, alternative=alternative), says, "Memory of the call"))
    return found


def _histogram_says(plane: PlaneType) -> str:
    beyond = sum(count for power, count in plane.histogram.items() if power > 0)
    return f"error / bound of {plane.tensor}: {beyond} of {plane.judged} elements beyond their bound."


def _differences(view: View) -> list[tuple[str, ...]]:
    """The worst elements: tensor, index, expected, got, bound, ratio."""
    rows: list[tuple[str, ...]] = []
    for failure in view.failures:
        for each in failure.differences[:6]:
            rows.append((failure.tensor, str(list(each.index)), *each.told(), f"{each.bound:.6g}", f"{each.ratio:.6g}"))
    return rows


def _coverage(results: Sequence[PairResult]) -> list[dict[str, Any]]:
    """For each pair a table of edges by candidates, the cells never hit, and the largest sizes."""
    tables = []
    for pair in dict.fromkeys(result.pair for result in results):
        ran = [result for result in results if result.pair == pair and result.cases]
        if ran:
            edges = dict.fromkeys(edge for result in ran for edge in result.edges)
            sizes = dict.fromkeys(name for result in ran for name in result.sizes)
            tables.append(
                {
                    "pair": pair,
                    "candidates": [result.shown for result in ran],
                    "rows": [(edge, [result.edges.get(edge, 0) for result in ran]) for edge in edges],
                    "missed": sum(not result.edges.get(edge, 0) for edge in edges for result in ran),
                    "unhit": [(result.shown, result.unhit) for result in ran if result.unhit],
                    "untaken": [(result.shown, result.untaken) for result in ran if result.untaken],
                    "sizes": [(name, max(result.sizes.get(name, 0) for result in ran)) for name in sizes],
                }
            )
    return tables


def _crossed(results: Sequence[PairResult]) -> list[dict[str, Any]]:
    """For each pair dtypes by layouts: cases of all candidates."""
    tables = []
    for pair in dict.fromkeys(result.pair for result in results):
        counts: dict[tuple[str, str], int] = {}
        for result in (result for result in results if result.pair == pair):
            for name, cases in result.crossed.items():
                dtype, _, layout = name.partition(" ")
                counts[dtype, layout] = counts.get((dtype, layout), 0) + cases
        if counts:
            dtypes = list(dict.fromkeys(dtype for dtype, _ in counts))
            layouts = sorted({layout for _, layout in counts})
            rows = [(layout, [counts.get((dtype, layout), 0) for dtype in dtypes]) for layout in layouts]
            tables.append({"pair": pair, "dtypes": dtypes, "rows": rows})
    return tables


def _bounds(results: Sequence[PairResult]) -> list[dict[str, Any]]:
    """One row for each output: the largest error over its bound, how loose the bound is, and how the calls are spread."""
    rows = []
    for result in results:
        for name, largest in result.tightness.items():
            spread: dict[int, int] = {}
            for key, powers in result.ratios.items():
                if key.rpartition(" ")[0] == name:
                    for power, count in powers.items():
                        spread[int(power)] = spread.get(int(power), 0) + count
            most = max(spread.values(), default=1)
            rows.append(
                {
                    "pair": result.pair,
                    "candidate": result.shown,
                    "output": name,
                    "largest": f"{largest:.3g}",
                    "looseness": f"{result.looseness[name]:.2g}" if name in result.looseness else "",
                    "bars": [(power, spread.get(power, 0), spread.get(power, 0) / most) for power in range(LEAST, 1)],
                }
            )
    return rows


def _history(series: Series) -> _Shown:
    ends = [f"{name} {values[-1]:.4g}" for name, values in series.lines.items() if values and values[-1] == values[-1]]
    says = f"{series.says} over {len(series.commits)} commits; the last: {', '.join(ends) or 'none'}."
    return _Shown(pictures.lines_picture(series.lines, series.commits, series.says, alternative=says), says, series.title)


__all__ = ["FINE", "ReportError", "ReportPage", "Section", "Series", "missing", "rendered", "write_page"]
