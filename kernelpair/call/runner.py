"""Run a candidate: in a worker process that may die, or, when asked for, in this one."""

import os
import pickle
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from types import TracebackType
from typing import Any

import torch

from kernelpair.call import torch_memory
from kernelpair.call.caller import Caller
from kernelpair.call.common import done_with, server_of
from kernelpair.call.fault import forget, noted, without_frames
from kernelpair.call.fork_server import Forked, ForkServer, ServerGone
from kernelpair.call.memory import Arena
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.system import (
    below,
    give_up_reading,
    here,
    is_stopped,
    names_below,
    signal_name,
    waited_for_memory,
    waited_for_processor,
)
from kernelpair.call.whereabouts import asked
from kernelpair.call.worker import CLOSED_CHANNEL, LOG_BYTES, stderr_tail, work, written
from kernelpair.contract.candidate import Candidate

HANG_SECONDS = 20.0  # a case has a budget of work far below this on every tier
HANG_SECONDS_AGAIN = 2.0  # once a candidate has hung, shrinking tries many more hanging cases;
FAR_SLOWER = 10.0  # but as many times the longest call that came back: on a slow machine that may be a long one
UNWATCHED = 0.1  # of these seconds; only then is it asked for what a worker waits, which few calls live to see
AT_ONCE = 0.25  # seconds of one wait for an answer
PATIENCE = 4.0  # times these seconds: so much longer may a call take that has waited for a processor, or for memory, as long
MESSAGE_SECONDS = 10.0  # for the rest of an answer that has begun: the worker sends it in one go
MESSAGE_BYTES = 1 << 28  # of an answer, which holds no tensors
START_SECONDS = 120.0  # for being forked, and again for importing the candidate
START_SECONDS_AGAIN = 20.0  # once this candidate has taken longer: it is on trial for many pairs, and may hang in each
END_SECONDS = 5.0  # for a process whose connection has closed to be seen ended
LOOK_SECONDS = 0.1  # for one that has not said what it should, which may still be there
CLOSES = "closes file descriptors of its process, also the one by which the process answers"
GARBLES = "writes to the file descriptor by which its process answers, which it has not opened"
WORK = f"{work.__module__}:{work.__name__}"

_late: set[str] = set()
"""Names of candidates of which a worker did not start in time."""


class HarnessError(RuntimeError):
    """The harness itself failed; this says nothing about the candidate."""


class Runner:
    """Runs calls of one candidate one after another; close it, or use it as a context manager."""

    arena: Arena

    def run(self, request: CallRequest) -> Outcome:
        raise NotImplementedError

    def printed(self) -> str:
        """What the last worker's calls wrote to its standard output and error; nothing where they did so to this process's."""
        return ""

    def start(self) -> None:
        """Make ready, so that the first case is not charged for it. Raises HarnessError if the candidate does not load."""

    def close(self) -> None:
        """Release the worker."""

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class InProcess(Runner):
    """Calls in this process: fast and easy to step into with a debugger; a crash ends the run.

    With `guards` the pages around the arguments fault during a call, as they do in a worker, and so does what lies around the
    memory that it has from torch.
    """

    def __init__(self, candidate: Candidate, arena: Arena | None = None, guards: bool = False) -> None:
        self.arena = arena or Arena.create()
        self.guards = guards
        if guards:
            torch_memory.install()
        self._caller = Caller(candidate, self.arena)

    def run(self, request: CallRequest) -> Outcome:
        threads = torch.get_num_threads()  # the judge's own
        try:
            return self._caller.call(request, guarded=self.guards)
        finally:
            if self.guards:
                self._caller.disarm()
            torch.set_num_threads(threads)
            self._caller.threads = threads


class Isolated(Runner):
    """Calls in a worker process. A signal, an exit or a hang is an outcome, and the next call has a new worker."""

    def __init__(
        self,
        candidate: Candidate,
        preload: Sequence[str] = (),
        arena: Arena | None = None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self.candidate = candidate
        self.arena = arena or Arena.create()
        self.restarts = -1
        self._preload = preload
        self._hang_seconds = hang_seconds
        self._log = os.memfd_create("kernelpair-log")
        self._longest = 0.0  # seconds of a call that came back
        self._loaded = 0  # bytes of the log that loading the candidate has written
        self._server: ForkServer | None = None
        self._process: Forked | None = None
        self._connection: Any = None

    def start(self) -> None:
        if self._process is None:
            self._start()

    def printed(self) -> str:
        return without_frames(written(self._log, self._loaded))

    def run(self, request: CallRequest, again: bool = False) -> Outcome:
        self.start()
        begun = time.monotonic()
        try:
            self._connection.send(request)
            if not self._answers_in_time(self._hang_seconds):
                return self._hung()
            outcome = self._received()
            self._longest = max(self._longest, time.monotonic() - begun)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return self._died()
        if outcome is None:
            return self._died(GARBLES, LOOK_SECONDS)
        if outcome.spoiled:
            self._stop()
        self._shorten_log()  # of a kernel that says something in each call
        return outcome if outcome.status != "spoiled" else self._once_more(request, again)

    def _received(self) -> Outcome | None:
        """What the worker answers; None where that is no answer: the candidate has written to the connection. EOFError where
        it is closed."""
        try:
            message = self._connection.recv_bytes(MESSAGE_BYTES)
        except ConnectionResetError:
            raise
        except (OSError, MemoryError, OverflowError):  # less comes than was announced, or that is too much
            return None
        try:
            answer = pickle.loads(message)  # noqa: S301 - from a process of our own
        except Exception:  # noqa: BLE001 - bytes that are no message may raise anything
            return None
        return answer if isinstance(answer, Outcome) else None

    def _answers_in_time(self, seconds: float) -> bool:
        """Whether the worker answers within this time. Time that it waits for a processor, as a compiler does that it has
        started, or processes for memory, does not count: a busy machine is no hang, nor is one that swaps."""
        if self._answers_within(UNWATCHED * seconds):
            return True
        others = {pid: waited_for_processor(pid) for pid in below(self._pid)}
        waited, given, left = self._waited() + sum(others.values()), 0.0, (1 - UNWATCHED) * seconds
        while not self._answers_within(left, others):
            lost = min(self._waited() + sum(others.values()) - waited, PATIENCE * seconds)
            given, left = lost, lost - given
            if left < UNWATCHED * seconds:
                return False
        return True

    def _waited(self) -> float:
        """Seconds that count for no call."""
        return waited_for_processor(self._pid) + waited_for_memory()

    def _answers_within(self, seconds: float, others: dict[int, float] | None = None) -> bool:
        """Whether the worker answers within this time. Time for which both processes were stopped does not count either: each
        wait is short, whatever the clock says afterwards. `others`, if given, gets what the processes below the worker have
        waited for a processor, also of those that have ended since."""
        while seconds > 0:
            if self._answers.poll(1000 * min(seconds, AT_ONCE)):
                return True
            seconds -= AT_ONCE
            self._shorten_log()  # of a call that writes without an end
            if others is not None:
                others.update({pid: waited for pid in below(self._pid) if (waited := waited_for_processor(pid))})
        return False

    def _shorten_log(self) -> None:
        """Forget what the worker wrote so far where that is much: it would fill the memory, and only its last words are read."""
        if os.fstat(self._log).st_size > LOG_BYTES:
            os.ftruncate(self._log, 0)
            os.lseek(self._log, 0, os.SEEK_SET)  # the worker's place in it, too
            self._loaded = 0

    def _once_more(self, request: CallRequest, again: bool) -> Outcome:
        """The call in a new worker, because an earlier call has spoiled the old one. HarnessError if this is the second try
        (`again`)."""
        self._stop()
        if again:
            raise HarnessError(f"a new worker of {self.candidate.name} does not find its process as it was when it began")
        return self.run(request, again=True)

    def _start(self) -> None:
        forget(self.arena)
        self._connection, theirs = Pipe()
        give_up_reading(self._connection.fileno(), MESSAGE_SECONDS)
        self._answers = select.poll()  # Connection.poll makes one for each call
        self._answers.register(self._connection, select.POLLIN)
        with theirs:
            self._process = self._fork(theirs.fileno())
        with suppress(BrokenPipeError, ConnectionResetError):  # that it died is seen below
            self._connection.send((self.arena.capacity, self.candidate, here()))
        self.restarts += 1
        try:
            answer = self._first_answer()
        except (EOFError, ConnectionResetError):
            outcome = self._died()
            raise HarnessError(f"the worker of {self.candidate.name} died at its start: {outcome.message}") from None
        if answer is not None:
            self._stop()
            raise HarnessError(answer.message)
        self._loaded = os.fstat(self._log).st_size

    def _first_answer(self) -> Outcome | None:
        """Why the worker does not load the candidate; None where it has. HarnessError where it does not say so in time."""
        seconds = START_SECONDS_AGAIN if self.candidate.name in _late else START_SECONDS
        if self._answers_within(START_SECONDS):  # once it is forked, from a process with torch loaded
            self._pid: int = self._connection.recv()
            if self._answers_in_time(seconds):
                says: Outcome | None = self._connection.recv()
                return says
            _late.add(self.candidate.name)
        self._stop()
        raise HarnessError(f"the worker of {self.candidate.name} did not start within {seconds:g} s")

    def _fork(self, connection: int) -> Forked:
        """A worker; from a new server where the candidate has ended the one that it had."""
        try:
            if self._server is None or not self._server.serves():
                self._server = server_of(self.candidate, self._preload)
            return self._server.fork(WORK, connection, self.arena.descriptor, self._log)
        except ServerGone:
            raise HarnessError("the server of the workers ended; what it wrote stands above") from None

    def _hung(self) -> Outcome:
        seconds = self._hang_seconds
        self._hang_seconds = min(seconds, max(HANG_SECONDS_AGAIN, FAR_SLOWER * self._longest))
        why = ", for a signal or a debugger has stopped its process" if is_stopped(self._pid) else ""
        if names := names_below(self._pid):
            why += f", while a process that it has started still runs: {', '.join(names)}"
        if not why and self._process is not None:
            why = asked(self._pid, self.arena, self._log, self._process.wait)
        self._stop()
        return Outcome("hang", "Hang", f"no answer within {seconds:g} s{why}")

    def _died(self, otherwise: str = CLOSES, seconds: float = END_SECONDS) -> Outcome:
        """How the worker ended within these seconds; if it is still there, what else it has done."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except ServerGone:
            self._stop()
            return Outcome("kills_parent", "Kill", "the call ended the process that started its own")
        self._stop()
        log = written(self._log)
        tail = stderr_tail(log)
        if code in (None, CLOSED_CHANNEL):
            name = CLOSES if code else otherwise
        else:
            name = signal_name(-code) if code < 0 else f"exits with status {code}"
        return Outcome("crash", name, f"{name}{': ' + tail if tail else ''}", fault=noted(self.arena, log))

    def _stop(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process = None

    def close(self) -> None:
        well = self._process is not None and not self.restarts
        self._stop()
        if self._server is not None:
            done_with(self._server, self.candidate, well)
            self._server = None
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
