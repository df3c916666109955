"""How far a command is that takes its steps one after another: bench rows, findings, mutants."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kernelpair.report.live import CI_SECONDS, clock_of, in_ci


class Steps:
    """`3 of 40 rows · 1:20 left`: on a terminal a last line that vanishes, in CI a line now and then, in a pipe nothing.

    It is drawn when a step begins and at no other time, so that nothing runs beside what is timed.
    """

    def __init__(
        self, console: Console, many: int, what: str, clock: Callable[[], float] = time.monotonic, ci: bool | None = None
    ) -> None:
        self.console, self.many, self.what = console, many, what
        self.done = 0
        self._clock, self._ci = clock, in_ci() if ci is None else ci
        self._started = self._said = clock()
        self._begun = False
        self._live: Live | None = None

    def __enter__(self) -> "Steps":
        if self.console.is_terminal and not self._ci:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, value, trace)
            self._live = None

    def begin(self, name: str) -> None:
        """The next step begins, and with it the last one is done."""
        self.done += self._begun
        self._begun = True
        self._tell(name)

    def ended(self, name: str) -> None:
        """A step is done, of some that run at the same time."""
        self.done += 1
        self._tell(name)

    def _tell(self, name: str) -> None:
        if self._live is not None:
            self._live.update(Text(f"{self.says()} · {name}", style="dim", no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._ci and self._clock() - self._said >= CI_SECONDS:
            self._said = self._clock()
            self.console.print(f"… {self.says()} · {name}", soft_wrap=True, markup=False)

    def says(self) -> str:
        """How many are done, and, once one is, how long the others take at the pace so far."""
        left = (self._clock() - self._started) / self.done * (self.many - self.done) if self.done else None
        return f"{self.done} of {self.many} {self.what}" + (f" · {clock_of(left)} left" if left is not None else "")
