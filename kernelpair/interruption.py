"""Ctrl-C, SIGTERM and SIGHUP: a run that gets one of them ends soon, with what is known."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]
AGAIN_SECONDS = 0.02  # after which an interrupt that went nowhere is raised again


def take_over(handler: Handler) -> dict[int, Any]:
    """Give SIGNALS to the handler, and return what handled them before. A signal that this process was started to ignore
    (`nohup`) stays ignored. Outside of the main thread no signal can be taken over."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    return {number: signal.signal(number, handler) for number in SIGNALS if before[number] not in (signal.SIG_IGN, None)}


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """In this block SIGNALS are the handler's."""
    before = take_over(handler)
    try:
        yield
    finally:
        for number, handling in before.items():
            signal.signal(number, handling)


@contextmanager
def until_interrupted(patience: float | None = None) -> Iterator[Callable[[], bool]]:
    """Tells whether such a signal came, instead of interrupting what runs in this process.

    With `patience`, whatever still runs so many seconds later is interrupted.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came and patience is not None:
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, patience)
        came = True

    with handled_by(note):
        try:
            yield lambda: came
        finally:
            if came and patience is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in a block of Python that takes longer, again every second if it goes on in spite of that. Only the
    main thread can be interrupted, and only by one timer: elsewhere, and where an interrupt is under way, nothing happens."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"it did not return within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is late:  # else an interrupt came in between, whose timer it is
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def ignore_signals() -> None:
    """Let SIGNALS change nothing for the rest of this process, of which only the end is left."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the main thread, wherever it is; more signals change nothing until the end of the block."""
    for each in SIGNALS:
        if signal.getsignal(each) is interrupt:
            signal.signal(each, signal.SIG_IGN)
    raise_until_caught(interrupt)


def raise_until_caught(handler: Handler) -> NoReturn:
    """Raise KeyboardInterrupt; where Python drops it, as in a callback of the garbage collector, have the handler called again.

    Hypothesis has such a callback: one interrupt in twelve would be lost in it, and only a traceback would show it.
    """
    sys.unraisablehook = partial(_again, handler)
    raise KeyboardInterrupt


def _again(handler: Handler, dropped: Any) -> None:
    if dropped.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
