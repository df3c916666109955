"""Processes of a run that something stops: a kernel that sends SIGSTOP to the leader or to a judge would hold it for ever."""

import os
import signal
import sys
import time
from collections.abc import Collection

from kernelpair.call.system import is_stopped, told

STOPPED_SECONDS = 1.0  # who stops all processes of a run, as a batch system does, has stopped the server too by then


class Stopped:
    """Of the processes that a server has forked those that are stopped, but for what their owner has asked to be."""

    def __init__(self, wakes: bool) -> None:
        """Only with `wakes` any of them is made to go on."""
        self._wakes = wakes
        self._held: set[int] = set()
        self._since: dict[int, float] = {}

    def sent(self, pid: int, number: int) -> None:
        """Its owner sends it this signal: Ctrl-Z of the command is to stop the leader."""
        if number == signal.SIGSTOP:
            self._held.add(pid)
        elif number == signal.SIGCONT:
            self._held.discard(pid)

    def note(self, pid: int) -> None:
        """It has been stopped."""
        if self._wakes and pid not in self._held:
            self._since.setdefault(pid, time.monotonic())

    def wake(self, forked: Collection[int]) -> None:
        """Let what has been stopped for a while go on, and say so."""
        for pid, since in list(self._since.items()):
            if pid in forked and is_stopped(pid) and time.monotonic() < since + STOPPED_SECONDS:
                continue
            del self._since[pid]
            if pid in forked and pid not in self._held and is_stopped(pid):
                name = told(f"/proc/{pid}/comm").decode().strip()
                os.kill(pid, signal.SIGCONT)
                says = f"something had stopped {name}, a process of this run; a kernel can do that. It goes on"
                print(f"kernelpair: {says}", file=sys.stderr, flush=True)
