"""What every display of progress does: on a terminal it is live and vanishes, in CI a line now and then, in a pipe nothing."""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.live import Live

CI_SECONDS = 30.0  # between two lines of progress in a log
Argument = TypeVar("Argument")


def in_ci() -> bool:
    """Runs under a continuous integration system, by the variable that all of them set."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


class LastLine:
    """A context manager around what takes long. What it shows is `live()`'s to say, and when, its user's."""

    def __init__(self, console: Console, clock: Callable[[], float] | None, ci: bool | None) -> None:
        self.console = console
        self.clock = clock or time.monotonic
        self.ci = in_ci() if ci is None else ci
        self.shown: Live | None = None
        self.started = self._said = self.clock()

    def live(self) -> Live:
        """The display of a terminal, not yet begun."""
        return Live(console=self.console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self.started = self._said = self.clock()
        if self.console.is_terminal and not self.ci:
            self.shown = self.live()
            self.shown.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown is not None:
            self.shown.__exit__(kind, value, trace)
            self.shown = None

    def alone(self, act: Callable[[Argument], None]) -> Callable[[Argument], None]:
        """The function with nothing drawn meanwhile. What it prints is put above what stands there, whose height rich asks first;
        drawn just then by rich's own thread, and lower, it would have the line above wiped out."""

        def call(argument: Argument) -> None:
            with self.shown._lock if self.shown is not None else nullcontext():
                act(argument)

        return call

    def log(self, says: Callable[[], str]) -> None:
        """In CI a line, unless there was one a moment ago."""
        if self.ci and self.clock() - self._said >= CI_SECONDS:
            self._said = self.clock()
            self.console.print(f"… {says()}", soft_wrap=True, markup=False)
