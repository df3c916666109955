"""How far a command is that takes its steps one after another: bench rows, findings, mutants."""

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from kernelpair.report.last_line import LastLine
from kernelpair.report.live import clock_of


class Steps(LastLine):
    """`3 of 40 rows · 1:20 left`: on a terminal a last line that vanishes, in CI a line now and then, in a pipe nothing.

    It is drawn when a step begins and at no other time, so that nothing runs beside what is timed.
    """

    def __init__(
        self, console: Console, many: int, what: str, clock: Callable[[], float] | None = None, ci: bool | None = None
    ) -> None:
        super().__init__(console, clock, ci)
        self.many, self.what = many, what
        self.done = 0
        self._begun = False

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
        if self.shown is not None:
            self.shown.update(Text(f"{self.says()} · {name}", style="dim", no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self.log(lambda: f"{self.says()} · {name}")

    def says(self) -> str:
        """How many are done, and, once one is, how long the others take at the pace so far."""
        left = (self.clock() - self.started) / self.done * (self.many - self.done) if self.done else None
        return f"{self.done} of {self.many} {self.what}" + (f" · {clock_of(left)} left" if left is not None else "")
