"""Where a worker is that does not answer: asked by two signals, of which the second ends it.

The first lets Python print the frames of its threads. The second is noted as a fault is (`kernelpair.call.fault`), which prints
the frames of compiled code. Both go to the worker's log.
"""

import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from kernelpair.call.fault import ASKED, TOLD, kernels_of, noted
from kernelpair.call.fork_server import ServerGone
from kernelpair.call.memory import Arena
from kernelpair.contract.mistakes import ENGINE, of_the_user, short

FRAMES = signal.SIGRTMAX  # of Python; a kernel has no use for it
SAID_SECONDS = 0.5  # for the frames of all threads to be written
ENDED_SECONDS = 2.0  # for the process to note where it is, and to end
PAUSE = 0.02
MOST_BYTES = 1 << 20  # of what is printed meanwhile, from either end, where the frames are looked for
FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
STANDARD = Path(sysconfig.get_paths()["stdlib"])


def answer_signals() -> None:
    """Answer the first signal from now on, on standard error."""
    faulthandler.register(FRAMES, file=2, all_threads=True)


def asked(process: int, arena: Arena, log: int, ended: Callable[[float], object]) -> str:
    """Where the process is, such as `, in add (add.c:7), called from run (add.py:12)`; empty where it cannot say. Ends it.

    `ended` waits for so many seconds until it has ended. What it prints for this is not left in its log.
    """
    begin = os.fstat(log).st_size
    try:
        os.kill(process, FRAMES)
        _written(log, begin)
        os.kill(process, ASKED)
        ended(ENDED_SECONDS)
    except (ProcessLookupError, ServerGone):  # the call may have ended its server too
        pass
    end = os.fstat(log).st_size  # that of a call that writes without an end may lie far away
    parts = {(begin, min(begin + MOST_BYTES, end)), (max(begin, end - MOST_BYTES), end)}
    said = "\n".join(os.pread(log, last - first, first).decode(errors="replace") for first, last in sorted(parts))
    os.ftruncate(log, begin)
    fault = noted(arena, said)
    places = [str(frame) for frame in kernels_of(fault.frames)] if fault is not None else []
    places = [*places[: TOLD - 1], *_python(said)]
    return f", in {', called from '.join(places)}" if places else ""


def _written(log: int, begin: int) -> None:
    """Wait until something was written to the log behind `begin`, and nothing more for a moment."""
    until, before, now = time.monotonic() + SAID_SECONDS, -1, begin
    while time.monotonic() < until and (now == begin or now != before):
        time.sleep(PAUSE)
        before, now = now, os.fstat(log).st_size


def _python(said: str) -> list[str]:
    """The innermost frame that is the user's, or where none is among those that Python prints (the 100 innermost), a
    library's; none or one."""
    found = [match for match in map(FRAME.match, said.splitlines()) if match and not match["file"].startswith("<")]
    others = [match for match in found if ENGINE not in (file := Path(match["file"])).parents
              and (STANDARD not in file.parents or "site-packages" in file.parts)]  # fmt: skip
    theirs = [match for match in others if of_the_user(match["file"])]
    return [f"{match['name']} ({short(match['file'])}:{match['line']})" for match in (theirs or others)[:1]]
