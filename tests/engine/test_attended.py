"""The process that is asked in a bench: it runs while it is asked, and at no other time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from kernelpair.timing.attended import Attended
from kernelpair.timing.interleaved import Lost
from tests.processes import GONE_WITHIN, wait_for

LEADER = """
import os, signal
from kernelpair.timing.attended import Attended
from tests.engine.test_attended import Spinner
if __name__ == "__main__":
    asked = Attended(Spinner)
    asked.start()
    print(asked.ask(Spinner.number), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Spinner:
    """As a library whose threads wait in a loop for their next work."""

    def __init__(self) -> None:
        self.rounds = 0
        Thread(target=self._spin, daemon=True).start()

    def _spin(self) -> None:
        while True:
            self.rounds += 1

    def number(self) -> int:
        return os.getpid()

    def spun(self) -> int:
        return self.rounds

    def fail(self) -> None:
        raise ValueError("not this one")


def _status(pid: int) -> list[str]:
    """From the process's state on: the third field of proc(5)'s stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _gone(pid: int) -> bool:
    try:
        return _status(pid)[0] == "Z"  # it has ended, and its parent has not looked yet
    except OSError:
        return True


@pytest.fixture
def spinner() -> Attended:
    asked = Attended(Spinner)
    asked.start()
    return asked


def test_it_takes_no_time_of_others(spinner: Attended) -> None:
    pid = spinner.ask(Spinner.number)
    with pytest.raises(Lost, match="not this one"):
        spinner.ask(Spinner.fail)
    wait_for(lambda: _status(pid)[0] == "T", GONE_WITHIN)
    before = _status(pid)[11:13]  # ticks in the process and in the system
    time.sleep(0.1)
    assert _status(pid)[11:13] == before
    spun = spinner.ask(Spinner.spun)
    assert spinner.ask(Spinner.spun) >= spun > 0
    spinner.close()
    wait_for(lambda: _gone(pid), GONE_WITHIN)
    assert _gone(pid)


def test_it_goes_with_the_one_that_asks() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", LEADER], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_for(lambda: _gone(int(done.stdout)), GONE_WITHIN)
    assert _gone(int(done.stdout))
