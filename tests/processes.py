"""Whole runs of the command line as processes of their own: what they start, and what is left of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MARK = "KERNELPAIR_RUN_OF_A_TEST"  # in the environment of a run, and of all that it starts
COMMAND = ("-m", "kernelpair")
STARTED_WITHIN, ENDED_WITHIN, GONE_WITHIN = 300.0, 300.0, 30.0  # on a machine with much else to do


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    """What the condition says as soon as it holds, or at the end of the time."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


class Run:
    """A command that runs in a folder of its own, or `where` it is told to, in a session of its own.

    `python` are options of the interpreter, `before` is called in the new process, and None removes a variable.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        where: Path | None = None,
        python: Sequence[str] = (),
        before: Callable[[], object] = lambda: None,
        **environment: str | None,
    ) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._mark = f"{folder}-{os.getpid()}"
        variables = {**os.environ, MARK: self._mark, "TMPDIR": str(self.temporary), **environment}
        self.process = subprocess.Popen(
            [sys.executable, *python, *COMMAND, *arguments],
            cwd=where or folder,
            env={name: value for name, value in variables.items() if value is not None},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: (heed_signals(), before()),
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def handles_signals(self) -> bool:
        """Whether it has come so far; before, a signal ends it like any program."""
        return wait_for(lambda: _catches(self.pid, signal.SIGTERM) or self.process.poll() is not None, STARTED_WITHIN)

    def end(self) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        return self.process.communicate(timeout=ENDED_WITHIN)

    def processes(self, name: str = "") -> list[int]:
        """What it has started and is still there, of all or of one name; zombies have no environment any more."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                marked = entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0")
                if marked and (entry / "comm").read_text().startswith(name[:15]):
                    found.append(int(entry.name))
        return found

    def left(self) -> list[str]:
        """Processes and temporary files that outlived it."""
        wait_for(lambda: not self.processes() and not os.listdir(self.temporary), GONE_WITHIN)
        return [*map(str, self.processes()), *os.listdir(self.temporary), *(path.name for path in self.folder.glob("*.part"))]


@contextmanager
def run(folder: Path, *arguments: str, **how: Any) -> Iterator[Run]:
    """A run that is over at the end of the block, however the test ends."""
    started = Run(folder, *arguments, **how)
    try:
        yield started
    finally:
        for pid in started.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.process.communicate()


def _catches(pid: int, number: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def heed_signals() -> None:
    """Whoever started pytest may have ignored them, as a shell does for what runs in the background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
