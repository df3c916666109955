"""Time for what is said of a failure: waiting for a processor is none."""

from types import SimpleNamespace

import pytest

from kernelpair.search import allowance
from kernelpair.search.allowance import PATIENCE, Allowance


@pytest.mark.parametrize(
    ("passed", "waited", "used_up"),
    [
        (2.9, 0.0, False), (3.0, 0.0, True), (5.0, 2.5, False), (5.0, 1.5, True),
        (3.0 + 3 * PATIENCE - 0.1, 1000.0, False), (3.0 + 3 * PATIENCE, 1000.0, True),
    ],
)
def test_to_wait_for_a_processor_takes_no_time(
    passed: float, waited: float, used_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [100.0], {1: 7.0, 2: 3.0}
    monkeypatch.setattr(allowance, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(allowance, "_waits", lambda: dict(waits))
    left = Allowance(3.0)
    now[0], waits[1] = 100.0 + passed, 7.0 + waited / 2
    waits[3] = waited / 2  # it began since,
    del waits[2]  # and another one has ended
    assert left.used_up() is used_up
