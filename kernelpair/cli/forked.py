"""A command that runs in a process forked from the server of its workers: torch, most of a short command's time, loads once."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from kernelpair.call.fork_server import END_SECONDS, Forked, ServerGone, adopt, fork_server
from kernelpair.call.system import here, stand
from kernelpair.cli.main import EXIT_HARNESS, EXIT_INTERRUPTED, leave
from kernelpair.interruption import handled_by, take_over

Run = Callable[[argparse.Namespace], int]
STATE = Path(".kernelpair")  # journals of running cases


def forked(run: Run, options: argparse.Namespace, preload: Sequence[str]) -> int:
    """The status of `run`, a function of a module, with the options in such a process, which writes where this one does;
    EXIT_HARNESS if that process ended before. What `preload` names is loaded before it is forked.

    Signals are handed on to it as soon as it can handle them.
    """
    process: Forked | None = None
    leader: list[int] = []
    try:
        server = fork_server([*preload, run.__module__, __name__])
        ours, theirs = Pipe()
        with ours:
            with theirs, server.channel() as channel:
                process = server.fork(f"{__name__}:{lead.__name__}", theirs.fileno(), channel.fileno())
            ours.send((dict(os.environ), here(), run.__module__, run.__qualname__, options))
            return _status_told(ours, process, options, leader)
    except (EOFError, ConnectionResetError, BrokenPipeError, ServerGone):
        if process is not None and _status_left(process) == EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED
        print(f"kernelpair {options.command}: the process that ran it ended before its time{_during(leader)}", file=sys.stderr)
        return EXIT_HARNESS
    finally:
        if process is not None:
            process.kill()


def _status_told(connection: Connection, process: Forked, options: argparse.Namespace, leader: list[int]) -> int:
    """By the process, whose number is noted and to which signals are handed on meanwhile."""
    leader.append(connection.recv())
    with handled_by(lambda number, frame: process.send(number)), _stopping(process):
        options.begun = True
        return int(connection.recv())


def _during(leader: Sequence[int]) -> str:
    """The cases that were being tried then, one of which may have ended it."""
    found = []
    for journal in (file for number in leader for file in sorted(STATE.glob(f"running-{number}-*.json"))):
        with suppress(OSError, UnicodeDecodeError):
            found.append(journal.read_text().strip())
    return f"; it was trying {' and '.join(filter(None, found))}" if any(found) else ""


def _status_left(process: Forked) -> int | None:
    """Of a process that ended without telling it."""
    with suppress(ServerGone):
        return process.wait(END_SECONDS)
    return None


@contextmanager
def _stopping(process: Forked) -> Iterator[None]:
    """In this block Ctrl-Z stops that process as well, until both go on."""

    def stop(number: int, frame: FrameType | None) -> None:
        process.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        process.send(signal.SIGCONT)

    before = signal.getsignal(signal.SIGTSTP)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def lead(descriptor: int, channel: int) -> None:
    """Run the function that comes in, and send back its status."""
    adopt(channel)
    connection: Connection = Connection(descriptor)
    environment, standing, module, function, options = connection.recv()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the server ignores
    take_over(lambda number, frame: leave(options))
    connection.send(os.getpid())  # signals are its own to handle from now on
    os.environ.clear()
    os.environ.update(environment)  # without what is the workers' alone
    stand(standing)
    run: Run = getattr(import_module(module), function)
    connection.send(run(options))
