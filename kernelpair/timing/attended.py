"""A process that does single tasks for a bench: a crash or hang in it ends only this process.

It is stopped while it has no task, with all its threads: threads of some libraries spin for a fifth of a second after a call,
and would take the processors from the competitor that has the next turn.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from kernelpair.call.system import die_with, signal_name
from kernelpair.timing.interleaved import Lost

ANSWER_SECONDS = 120.0  # to make a row ready, or for a sample: the longest take some seconds
END_SECONDS = 5.0  # for a process whose connection has closed to be seen ended


class Attended:
    """The asking side: a process that is started when it is needed, and again after it has died."""

    patience = ANSWER_SECONDS

    def __init__(self, attendant: Callable[..., Any], *given: Any) -> None:
        """`attendant(*given)` is made in the process; its methods do what is asked."""
        self._start_with = attendant, given
        self._process: Any = None
        self._connection: Any = None
        self._why_gone = ""

    def start(self) -> None:
        """Have a process, a new one after a death."""
        if self._process is not None:
            return
        context = get_context("spawn")  # as a user's process: without what a server of workers sets for trials
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._start_with), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, what: Callable[..., Any], *arguments: Any, forever: bool = False) -> Any:
        """What a method of the attendant answers. Raises Lost where the process has ended, the method raises, or, unless that
        may take `forever`, does not answer in time."""
        if self._process is None:
            raise Lost(self._why_gone)
        try:
            self._signal(signal.SIGCONT)
            self._connection.send((what.__name__, arguments))
            if not self._connection.poll(None if forever else self.patience):
                self.close()
                self._lose(f"no answer within {self.patience:g} s")
            answer = self._connection.recv()
            self._signal(signal.SIGSTOP)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            self.close()
            self._lose(f"crash: {signal_name(-code)}" if code and code < 0 else f"crash: it ended its process, status {code}")
        if isinstance(answer, Lost):
            raise answer
        return answer

    def _signal(self, number: int) -> None:
        if self._process.is_alive():  # or nobody has the number any more, or another one
            os.kill(self._process.pid, number)

    def _lose(self, why: str) -> None:
        self._why_gone = why
        raise Lost(why)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join(END_SECONDS)
            self._process = None


def said(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _serve(connection: Connection, attendant: Callable[..., Any], given: Sequence[Any]) -> None:
    """Answer until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the leader to handle
    leader = parent_process()
    assert leader is not None and leader.pid is not None
    die_with(leader.pid)  # a stopped process does not see that the connection has closed
    server, broken = None, ""
    try:
        server = attendant(*given)
    except Exception as error:  # noqa: BLE001 - the other side says it, row by row
        broken = f"it does not load: {said(error)}"
    with suppress(EOFError):
        while True:
            name, arguments = connection.recv()
            connection.send(_answer(server, name, arguments) if server is not None else Lost(broken))


def _answer(server: Any, name: str, arguments: Sequence[Any]) -> Any:
    try:
        return getattr(server, name)(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is its answer
        return Lost(said(error))
