"""A command that runs in a process forked from the server of its workers: torch, most of a short command's time, loads once."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from kernelpair.call.fork_server import adopt, fork_server
from kernelpair.call.system import here, stand
from kernelpair.interruption import handled_by, interrupt

Run = Callable[[argparse.Namespace], int]


def forked(run: Run, options: argparse.Namespace, preload: Sequence[str], unfinished: int) -> int:
    """The status of `run`, a function of a module, with the options in such a process, which writes where this one does;
    `unfinished` if that process ended before. What `preload` names is loaded before it is forked.

    KeyboardInterrupt ends both.
    """
    server = fork_server([*preload, run.__module__, __name__])
    ours, theirs = Pipe()
    with theirs, server.channel() as channel:
        process = server.fork(f"{__name__}:{answer.__name__}", theirs.fileno(), channel.fileno())
    try:
        with handled_by(interrupt), ours:
            ours.send((here(), run.__module__, run.__qualname__, options))
            return int(ours.recv())
    except (EOFError, ConnectionResetError, BrokenPipeError):
        print(f"kernelpair {options.command}: the process that ran it ended before its time", file=sys.stderr)
        return unfinished
    finally:
        process.kill()


def answer(descriptor: int, channel: int) -> None:
    """Run the function that comes in, and send back its status."""
    adopt(channel)
    connection: Connection = Connection(descriptor)
    standing, module, function, options = connection.recv()
    stand(standing)
    run: Run = getattr(import_module(module), function)
    connection.send(run(options))
