"""The figures of runs, commit after commit, in a small SQLite file: it shows a slow drift that no single run shows."""

import math
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelpair.environment import cpu_model
from kernelpair.report.last_line import in_ci
from kernelpair.report.lines import PairResult

if TYPE_CHECKING:
    from kernelpair.report.html import Series

VARIABLE = "KERNELPAIR_HISTORY"  # 1 or 0: keep a history, also in CI, or keep none; or the file that it goes to
FILE = Path(".kernelpair") / "history.sqlite"
MOST_COMMITS = 40  # of a plot
MOST_LINES = 6  # of a plot: the pairs that changed most
WAIT_SECONDS = 10.0  # for another run that writes at the same time
WHAT = {
    "rate": "cases a second",
    "cases": "cases",
    "tightness": "largest error / bound",
    "mutants": "killed mutants in percent",
    "bench": "milliseconds of a call",
}
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, revision TEXT NOT NULL, command TEXT NOT NULL, cpu TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS figures (
    run INTEGER NOT NULL REFERENCES runs(id), what TEXT NOT NULL, pair TEXT NOT NULL, candidate TEXT NOT NULL,
    name TEXT NOT NULL, value REAL NOT NULL);
CREATE INDEX IF NOT EXISTS figures_of ON figures (what, pair, candidate, name);
"""


@dataclass(frozen=True)
class Figure:
    """One number of a run: of a kind (`WHAT`), a pair, a candidate, and where there are several a name."""

    what: str
    pair: str
    candidate: str
    name: str
    value: float


@dataclass(frozen=True)
class RunFigure:
    """A figure with the run that it comes from."""

    at: float
    revision: str
    command: str
    cpu: str
    figure: Figure


class History:
    """The file. Nothing is created before something is appended."""

    def __init__(self, path: Path, root: Path = Path()) -> None:
        self.path, self.root = path, root

    @classmethod
    def usual(cls, root: Path) -> "History | None":
        """The history of runs in this folder: none in CI, and none where KERNELPAIR_HISTORY is 0."""
        asked = os.environ.get(VARIABLE, "")
        if asked.lower() in ("0", "off", "no", "false") or (not asked and in_ci()):
            return None
        return cls(FILE if asked.lower() in ("", "1", "on", "yes", "true") else Path(asked), root)

    def append(self, command: str, results: Iterable[PairResult], more: Iterable[Figure] = ()) -> None:
        """Take up a run. A history that cannot be written is no reason to end one: it is left as it is."""
        figures = [*(figure for result in results for figure in _figures(result)), *more]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._open()) as file, file:
                cursor = file.execute(
                    "INSERT INTO runs (at, revision, command, cpu) VALUES (?, ?, ?, ?)",
                    (time.time(), revision(self.root), command, cpu_model()),
                )
                known = [figure for figure in figures if math.isfinite(figure.value)]
                rows = [(cursor.lastrowid, f.what, f.pair, f.candidate, f.name, f.value) for f in known]
                file.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?)", rows)
        except (OSError, sqlite3.Error):
            return

    def rows(self, pairs: Sequence[str] = (), what: str = "") -> list[RunFigure]:
        """All figures, the oldest first. Raises ValueError for a file that is no history."""
        if not self.path.is_file() or not self.path.stat().st_size:  # on a full disk one that was begun stays empty
            return []
        query = "SELECT at, revision, command, cpu, what, pair, candidate, name, value FROM figures JOIN runs ON runs.id = run"
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=WAIT_SECONDS)) as file:
                found = file.execute(f"{query} ORDER BY at, runs.id")
                rows = [RunFigure(at, commit, command, cpu, Figure(*figure)) for at, commit, command, cpu, *figure in found]
        except sqlite3.Error as error:
            raise ValueError(f"{self.path} is no history: {error}; move it away and a new one begins") from None
        return [row for row in rows if (not pairs or row.figure.pair in pairs) and what in ("", row.figure.what)]

    def series(self, pairs: Sequence[str] = ()) -> "list[Series]":
        """A plot for each kind of figure that at least two commits have, of this machine's CPU."""
        from kernelpair.report.html import Series

        here = [row for row in self.rows(list(dict.fromkeys(pairs))) if row.cpu == cpu_model()]
        found = []
        for what, says in WHAT.items():
            own = [row for row in here if row.figure.what == what]
            commits = list(dict.fromkeys(row.revision for row in own))[-MOST_COMMITS:]
            if len(commits) > 1:
                found.append(Series(_titled(what), says, commits, _lines(own, commits)))
        return found

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=WAIT_SECONDS)
        file.executescript(SCHEMA)
        return file


def _titled(what: str) -> str:
    return {"rate": "Speed of trials", "cases": "Cases", "tightness": "Tightness", "mutants": "Mutants", "bench": "Speed"}[what]


def _lines(rows: Sequence[RunFigure], commits: Sequence[str]) -> dict[str, list[float]]:
    """Name -> the last value of each commit; of many those that changed most."""
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        figure = row.figure
        name = " ".join(filter(None, (figure.pair, figure.candidate, figure.name)))
        values.setdefault(name, {})[row.revision] = figure.value
    order = sorted(values, key=lambda name: -_change(list(values[name].values())))[:MOST_LINES]
    return {name: [values[name].get(commit, math.nan) for commit in commits] for name in order}


def _change(values: Sequence[float]) -> float:
    """The largest value over the smallest."""
    return max(values) / max(min(values), 1e-12) if len(values) > 1 else 0.0


def _figures(result: PairResult) -> Iterable[Figure]:
    candidate = result.shown
    if result.cases:
        yield Figure("cases", result.pair, candidate, "", result.cases)
    if result.cases and result.seconds:
        yield Figure("rate", result.pair, candidate, "", result.cases / result.seconds)
    for name, largest in result.tightness.items():
        yield Figure("tightness", result.pair, candidate, name, largest)


def revision(root: Path) -> str:
    """The commit, with a + where files differ from it; without git the word `unversioned`."""
    asked = ["git", "-C", str(root or "."), "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return "unversioned"
    return done.stdout.strip() or "unversioned"
