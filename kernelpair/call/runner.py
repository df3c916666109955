"""Run a candidate: in a worker process that may die, or, when asked for, in this one."""

import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.reduction import DupFd
from types import TracebackType
from typing import Any

import torch

from kernelpair.call.fault import forget, noted
from kernelpair.call.memory import Arena
from kernelpair.call.worker import Caller, CallRequest, Outcome, serve, stderr_of, stderr_tail
from kernelpair.contract.candidate import Candidate

HANG_SECONDS = 20.0  # a case has a budget of work far below this on every tier
HANG_SECONDS_AGAIN = 2.0  # once a candidate has hung, shrinking tries many more hanging cases
START_SECONDS = 120.0  # for importing torch and the candidate on a loaded machine
WORKERS = {
    # Freshly allocated memory is filled with bytes that are a huge number in bf16 and fp32 and NaN in fp16, so that a kernel
    # which trusts its scratch is seen; glibc reads it when the workers' server starts.
    "MALLOC_PERTURB_": "129",
    # A waiting OpenMP thread that spins takes the core from the process at the other end of the pipe: a 1 MiB call took 6.6 ms
    # instead of 1.4. It is read when torch loads.
    "OMP_WAIT_POLICY": "passive",
    # What the server preloads is found as here, and not in whatever folder it happens to start in.
    "PYTHONSAFEPATH": "1",
}
"""Environment of worker and judging processes."""


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Processes that start in this block have it; what the user has set stays."""
    wanted = {**WORKERS, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted | {name: value for name, value in before.items() if name in WORKERS})
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class HarnessError(RuntimeError):
    """The harness itself failed; says nothing about the candidate."""


def worker_context(preload: Sequence[str] = ()) -> ForkServerContext:
    """The context whose server has torch loaded, so that a new worker takes about 10 ms."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "kernelpair.call.worker", *preload])
    with _environment_of_workers():
        ensure_running()
    return context


class Runner:
    """Runs calls of one candidate one after another; close it, or use it as a context manager."""

    arena: Arena

    def run(self, request: CallRequest) -> Outcome:
        raise NotImplementedError

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

    With `guards` the pages around the arguments fault during a call, as they do in a worker.
    """

    def __init__(self, candidate: Candidate, arena: Arena | None = None, guards: bool = False) -> None:
        self.arena = arena or Arena.create()
        self.guards = guards
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
        self._context = worker_context(preload)
        self._hang_seconds = hang_seconds
        self._stderr = tempfile.NamedTemporaryFile(prefix="kernelpair-", suffix=".log")  # noqa: SIM115
        self._process: Any = None
        self._connection: Any = None

    def start(self) -> None:
        if self._process is None:
            self._start()

    def run(self, request: CallRequest) -> Outcome:
        self.start()
        try:
            self._connection.send(request)
            if not self._answers.poll(self._hang_seconds * 1000):
                return self._hung()
            outcome: Outcome = self._connection.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return self._died()
        return outcome

    def _start(self) -> None:
        forget(self.arena)
        self._connection, theirs = self._context.Pipe()
        self._answers = select.poll()  # Connection.poll makes one for each call
        self._answers.register(self._connection, select.POLLIN)
        self._process = self._context.Process(
            target=serve,
            args=(theirs, _Descriptor(self.arena.descriptor), self.arena.capacity, self.candidate, self._stderr.name),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self.restarts += 1
        if not self._connection.poll(START_SECONDS):
            self._stop()
            raise HarnessError(f"the worker of {self.candidate.name} did not start within {START_SECONDS:.0f} s")
        try:
            refusal = self._connection.recv()
        except (EOFError, ConnectionResetError):
            outcome = self._died()
            raise HarnessError(f"the worker of {self.candidate.name} died at its start: {outcome.message}") from None
        if refusal is not None:
            self._stop()
            raise HarnessError(refusal.message)

    def _hung(self) -> Outcome:
        seconds = self._hang_seconds
        self._hang_seconds = min(seconds, HANG_SECONDS_AGAIN)
        self._process.kill()
        self._stop()
        return Outcome("hang", "Hang", f"no answer within {seconds:g} s")

    def _died(self) -> Outcome:
        self._process.join(5)
        code = self._process.exitcode
        self._stop()
        log = stderr_of(self._stderr.name)
        tail = stderr_tail(log)
        killed = code is not None and code < 0
        name = _signal(-code) if killed else f"exit status {code}"
        return Outcome("crash", name, f"{name}{': ' + tail if tail else ''}", fault=noted(self.arena, log) if killed else None)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._connection.close()
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = None

    def close(self) -> None:
        self._stop()
        self._stderr.close()


def _signal(number: int) -> str:
    """Its name; real-time signals have none."""
    return signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"


class _Descriptor:
    """A file descriptor that survives the way to the worker."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return _attach, (DupFd(self.descriptor),)


def _attach(duplicate: Any) -> Any:
    return duplicate
