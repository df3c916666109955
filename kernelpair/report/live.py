"""Progress while a run goes on: a live table on a terminal, a line now and then in CI, nothing but results when piped."""

from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelpair.report.last_line import LastLine

MOST_FAILURES = 4  # that stay in sight below the table
WIDTH_OF_PAIR, WIDTH_OF_CANDIDATE = 26, 15
Key = tuple[str, str]


class Progress(LastLine):
    """Shows how far a run is. Use it as a context manager around the run.

    A terminal gets a table that is drawn again five times a second and vanishes at the end; CI a line every 30 s; a pipe nothing.
    """

    def __init__(
        self,
        console: Console,
        trials: int,
        seconds: float | None = None,
        clock: Callable[[], float] | None = None,
        ci: bool | None = None,
    ) -> None:
        super().__init__(console, clock, ci)
        self.trials, self.seconds = trials, seconds
        self.done = self.failed = 0
        self._finished_cases = 0
        self._running: dict[Key, tuple[int, float, int | None]] = {}
        self._failures: list[str] = []

    def live(self) -> Live:
        """The table, drawn again five times a second."""
        return Live(get_renderable=self.drawn, console=self.console, refresh_per_second=5, transient=True)

    def update(self, key: Key, cases: int, seconds: float, target: int | None = None) -> None:
        """A trial goes on."""
        self._running[key] = cases, seconds, target
        self.log(self.says)

    def ended(self, key: Key, cases: int, failures: Sequence[str] = ()) -> None:
        """A trial is over."""
        self._running.pop(key, None)
        self.done += 1
        self.failed += bool(failures)
        self._finished_cases += cases
        self._failures += failures[:1]

    @property
    def cases(self) -> int:
        """Tried so far."""
        return self._finished_cases + sum(cases for cases, _, _ in self._running.values())

    def says(self) -> str:
        """The run in one line of at most 80 columns."""
        elapsed = max(self.clock() - self.started, 1e-9)
        parts = [f"{self.done} of {self.trials} trials", f"{self.cases:,} cases", f"{self.cases / elapsed:,.0f}/s"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        left = self._left(elapsed)
        return " · ".join([*parts, *([f"{clock_of(left)} left"] if left is not None else [])])

    def _left(self, elapsed: float) -> float | None:
        """Seconds until the end: of the run's budget, or, once a trial has ended, at the pace so far."""
        paced = elapsed / self.done * (self.trials - self.done) if self.done else None
        if self.seconds is None:
            return paced
        budget = max(self.seconds - elapsed, 0.0)
        return budget if paced is None else min(budget, paced)

    def drawn(self) -> Group:
        """The table of what runs, the line of the whole, and the last failures."""
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=bool(self._running), header_style="dim", expand=False)
        table.add_column("pair", width=WIDTH_OF_PAIR, no_wrap=True, overflow="ellipsis")
        table.add_column("candidate", width=WIDTH_OF_CANDIDATE, no_wrap=True, overflow="ellipsis")
        table.add_column("cases", width=15, justify="right", no_wrap=True)
        table.add_column("rate", width=8, justify="right", no_wrap=True)
        for (pair, candidate), (cases, seconds, target) in self._running.items():
            rate = f"{cases / seconds:,.0f}/s" if seconds > 0 else ""
            table.add_row(pair, candidate, f"{cases:,}" + (f" of {target:,}" if target else ""), rate)
        lines = [Text(f"✗ {text}", style="red", no_wrap=True, overflow="ellipsis") for text in self._failures[-MOST_FAILURES:]]
        return Group(table, *lines, Text(self.says(), style="bold", no_wrap=True, overflow="ellipsis"))


def clock_of(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
