"""`kernelpair speed`: pages of speeds, made from what `kernelpair bench --against` wrote."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelpair.cli.main import EXIT_OK, UsageError
from kernelpair.cli.select import select_suite
from kernelpair.report.files import write_whole
from kernelpair.suite import Suite
from kernelpair.timing.machines import FIGURES, PAGE, folder_of, machines_in, side_by_side
from kernelpair.timing.page import page_of
from kernelpair.timing.speeds import SpeedError, Speeds, read, write


def speed(options: argparse.Namespace) -> int:
    """Write one page and its plots, or a machine's folder and the page that compares all. UsageError for figures that cannot
    be read, or nowhere to write."""
    place = Path(options.page)
    is_page = place.suffix == ".md"
    if not (place.resolve().parent if is_page else place).is_dir():
        raise UsageError(f"{options.page} must be a folder that exists, or a file .md in one")
    _, suite = select_suite(options)
    try:
        speeds = _joined(options.json, suite)
        written = _page(speeds, suite, place, place.parent / "speed") if is_page else _machine(speeds, suite, place)
    except SpeedError as error:
        raise UsageError(str(error)) from None
    print(f"wrote {', '.join(str(path) for path in written)}")
    return EXIT_OK


def _joined(files: Sequence[str], suite: Suite) -> Speeds:
    """What the files hold, each over those before it, without rows that the bench has no more. Raises SpeedError."""
    speeds = read(Path(files[0]))
    for later in files[1:]:
        try:
            speeds.replace_rows(read(Path(later)))
        except SpeedError as error:
            raise SpeedError(f"{later} cannot take the place of rows of {files[0]}: {error}") from None
    if len(files) > 1:  # nothing would ever take the place of those
        known = {(pair.name, row.name) for pair in suite.pairs().values() for row in pair.bench.rows}
        gone = [row for row in speeds.rows if (row.pair, row.row) not in known]
        speeds.rows = [row for row in speeds.rows if row not in gone]
        for row in gone:
            print(f"left out: {row.pair} {row.row!r}, which the bench has no more")
    return speeds


def _machine(speeds: Speeds, suite: Suite, folder: Path) -> list[Path]:
    """The folder of the machine that they were measured on; those of others stay as they are."""
    machines = machines_in(folder)  # all can be read, before anything is written
    name = folder_of(speeds.environment)
    own, comparing = folder / name, folder / PAGE
    own.mkdir(exist_ok=True)
    write(speeds, own / FIGURES)
    written = _page(speeds, suite, own / PAGE, own)
    page = suite.machine.page
    write_whole(comparing, side_by_side(dict(sorted({**machines, name: speeds}.items())), page.command, page.remake))
    return [*written, own / FIGURES, comparing]


def _page(speeds: Speeds, suite: Suite, page: Path, plots: Path) -> list[Path]:
    drawn = _plots(speeds, plots, suite.machine.page.series)
    write_whole(page, page_of(speeds, {name: path.relative_to(page.parent) for name, path in drawn.items()}, suite))
    return [page, *drawn.values()]


def _plots(speeds: Speeds, folder: Path, titles: Mapping[str, str]) -> dict[str, Path]:
    """Series -> its plot."""
    series = list(dict.fromkeys(row.series for row in speeds.rows if row.series and row.ours))
    if not series:
        return {}
    try:
        from kernelpair.timing.plot import plot
    except ImportError as error:
        raise UsageError(f"plots need matplotlib, one of the dev requirements ({error}): make build") from None
    folder.mkdir(exist_ok=True)
    found = {name: folder / f"{name}.svg" for name in series}
    for name, path in found.items():
        rows = [row for row in speeds.rows if row.series == name and row.ours]
        plot(rows, path, titles.get(name, name), speeds.machine)
    return found
