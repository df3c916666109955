"""An interrupt ends what runs, wherever it comes."""

import gc
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from kernelpair.interruption import handled_by, interrupt

SECONDS = 20.0  # that an interrupt which was lost would take to be seen


@pytest.fixture
def as_before() -> Iterator[None]:
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    yield
    sys.unraisablehook = hook
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.usefixtures("as_before")
def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    came = []

    def collected(phase: str, details: dict[str, int]) -> None:
        if not came:
            came.append(phase)
            signal.raise_signal(signal.SIGTERM)

    def run() -> None:
        gc.collect()
        assert came
        time.sleep(SECONDS)

    gc.callbacks.append(collected)
    try:
        with handled_by(interrupt), pytest.raises(KeyboardInterrupt):
            run()
    finally:
        gc.callbacks.remove(collected)
    assert not capsys.readouterr().err


class Finalized:
    """What raises at its end."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.mark.usefixtures("as_before")
def test_other_errors_that_python_drops_are_still_told(capsys: pytest.CaptureFixture[str]) -> None:
    with handled_by(interrupt):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        Finalized(ValueError("a finalizer's own"))
    assert "ValueError: a finalizer's own" in capsys.readouterr().err
