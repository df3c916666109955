"""`kernelpair speed`: the page of speeds, made from what `kernelpair bench --against` wrote."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from kernelpair.cli.main import EXIT_OK, UsageError
from kernelpair.cli.select import select_suite
from kernelpair.report.files import write_whole
from kernelpair.timing.page import page_of
from kernelpair.timing.speeds import SpeedError, Speeds, read


def speed(options: argparse.Namespace) -> int:
    """Write the page and its plots. UsageError for a file that holds no speeds, or nowhere to write."""
    page = Path(options.page)
    if page.suffix != ".md" or not page.resolve().parent.is_dir():
        raise UsageError(f"{options.page} must be a file .md in a folder that exists")
    try:
        speeds = read(Path(options.json))
    except SpeedError as error:
        raise UsageError(str(error)) from None
    _, suite = select_suite(options)
    plots = _plots(speeds, page, suite.machine.page.series)
    write_whole(page, page_of(speeds, plots, suite))
    print(f"wrote {', '.join(str(path) for path in (page, *plots.values()))}")
    return EXIT_OK


def _plots(speeds: Speeds, page: Path, titles: Mapping[str, str]) -> dict[str, Path]:
    """Series -> its plot, in a folder `speed` beside the page."""
    series = list(dict.fromkeys(row.series for row in speeds.rows if row.series and row.ours))
    if not series:
        return {}
    try:
        from kernelpair.timing.plot import plot
    except ImportError as error:
        raise UsageError(f"plots need matplotlib, one of the dev requirements ({error}): make build") from None
    folder = page.parent / "speed"
    folder.mkdir(exist_ok=True)
    found = {name: folder / f"{name}.svg" for name in series}
    for name, path in found.items():
        rows = [row for row in speeds.rows if row.series == name and row.ours]
        plot(rows, path, titles.get(name, name), speeds.machine)
    return found
