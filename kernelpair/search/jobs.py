"""Several trials at a time: one judging process a core, each with its own worker, led from this process."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from kernelpair.call.runner import HarnessError, InProcess, Isolated, Runner, worker_context
from kernelpair.contract.candidate import Candidate
from kernelpair.search.search import SHRINK_SECONDS, Search
from kernelpair.search.tally import Tally
from kernelpair.suite import Resolve
from kernelpair.trial.check import Journal, read_case

PROGRESS_SECONDS = 0.2
LEAST_SECONDS = 0.5  # of a job that is handed out when the time of all is used up: none goes untested
STOP_SECONDS = 30.0  # how long a judging process may take to hand in what it knows after Ctrl-C
STATE = Path(".kernelpair")  # journals of running cases
EXAMPLES = Path(".hypothesis") / "kernelpair"  # Hypothesis's failing examples, one folder a pair and candidate


@dataclass(frozen=True)
class Job:
    """One pair and candidate, and how long to try."""

    pair: str
    candidate: str
    examples: int | None = None
    seconds: float | None = None
    seed: int = 0
    trial: str | None = None
    """Only this one."""
    corpus: tuple[str, ...] = ()
    """Lines of saved cases, tried first."""
    several: bool = False
    """After a failure the search goes on to other defects of the same kernel."""
    known: tuple[tuple[str, str, float | None], ...] = ()
    """Of a ledger: the group's label, the line of its case, and the ratio of error and bound up to which it is known."""
    remember: bool = True
    """Keep failing examples in Hypothesis's database, and try those that are there first."""
    shared: str = ""
    """Failing examples also go to, and come from, a database of several machines: a folder, or redis://host:port."""
    shrink_seconds: float = SHRINK_SECONDS

    @property
    def key(self) -> tuple[str, str]:
        return self.pair, self.candidate


@dataclass
class Ended:
    """A job and what it found; `error` where the harness itself failed."""

    job: Job
    tally: Tally = field(default_factory=Tally)
    error: str = ""
    candidate: Candidate | None = None
    """What was on trial, so that it can be run again."""
    rounding: str = ""
    """That the candidate is known to do and the contract forbids."""


def carry_out(
    job: Job,
    resolve: Resolve,
    preload: Sequence[str],
    in_process: bool,
    progress: Callable[[Tally], None],
    stopped: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run one job in this process."""
    ended = Ended(job)
    journal = Journal(STATE / f"running-{os.getpid()}.json")
    try:
        subject = resolve(job.pair, job.candidate)
        pair, candidate = subject.pair, subject.candidate
        ended.candidate, ended.rounding = candidate, subject.rounding
        saved = [read_case({pair.name: pair}, line)[1] for line in job.corpus]
        runner: Runner = InProcess(candidate) if in_process else Isolated(candidate, preload=preload)
        with runner:
            search = Search(
                subject, runner, journal=journal, progress=progress, stopped=stopped, trial=job.trial,
                several=job.several, shrink_seconds=job.shrink_seconds,
            )
            ended.tally = search.tally
            if job.known:
                search.recall({label: (read_case({pair.name: pair}, line)[1], most) for label, line, most in job.known})
            search.replay(saved)
            search.run(job.examples, job.seconds, job.seed, EXAMPLES if job.remember else None, job.shared)
    except HarnessError as error:
        ended.error = str(error)
    except Exception as error:  # noqa: BLE001 - one pair's mistake must not end the other trials
        ended.error = f"{type(error).__name__}: {error}"
    finally:
        journal.close()
        journal.path.unlink(missing_ok=True)
    return ended


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed, instead of interrupting what runs in this process; the second Ctrl-C interrupts."""
    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _judge(connection: Connection, resolve: Resolve, preload: Sequence[str]) -> None:
    """The judging process: jobs come in, progress and results go out. Ctrl-C is the leader's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    while True:
        job = connection.recv()
        if job is None:
            return
        last = 0.0

        def progress(tally: Tally, job: Job = job) -> None:
            nonlocal last
            if time.monotonic() - last > PROGRESS_SECONDS:
                last = time.monotonic()
                connection.send((job, tally.cases, tally.seconds))

        connection.send(carry_out(job, resolve, preload, False, progress, connection.poll))


@dataclass
class _Seat:
    process: Any
    connection: Any
    job: Job | None = None


class Jobs:
    """Runs jobs on `processes` judging processes; `on_progress` and `on_end` are called in this one."""

    def __init__(self, resolve: Resolve, preload: Sequence[str], processes: int) -> None:
        self._resolve, self._preload = resolve, tuple(preload)
        self._context = worker_context([*preload, "kernelpair.search.jobs"])
        self._processes = processes
        self._seats: list[_Seat] = []

    def run(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[Job, int, float], None],
        on_end: Callable[[Ended], None],
        seconds: float | None = None,
    ) -> None:
        """Run all jobs; with `seconds` each gets, when its turn comes, its share of what is left of them.

        KeyboardInterrupt is raised again after every running job has handed in what it knows.
        """
        pending = list(jobs)[::-1]
        until = None if seconds is None else time.monotonic() + seconds
        try:
            while len(self._seats) < min(self._processes, len(jobs)):
                self._seats.append(self._seat())
            self._lead(pending, on_progress, on_end, until)
        except KeyboardInterrupt:
            self._stop(on_end)
            raise

    def close(self) -> None:
        """End the judging processes."""
        for seat in self._seats:
            with suppress(OSError):
                seat.connection.send(None)
            seat.process.join(5)
            if seat.process.is_alive():
                seat.process.kill()
        self._seats = []

    def _seat(self) -> _Seat:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_judge, args=(theirs, self._resolve, self._preload))
        process.start()
        theirs.close()
        return _Seat(process, ours)

    def _lead(
        self,
        pending: list[Job],
        on_progress: Callable[[Job, int, float], None],
        on_end: Callable[[Ended], None],
        until: float | None,
    ) -> None:
        while pending or any(seat.job for seat in self._seats):
            for seat in self._seats:
                if seat.job is None and pending:
                    seat.job = pending.pop()
                    if until is not None:
                        left = until - time.monotonic()
                        share = left * min(len(self._seats) / (len(pending) + 1), 1)
                        seat.job = replace(seat.job, seconds=max(share, LEAST_SECONDS))
                    seat.connection.send(seat.job)
            busy = [seat for seat in self._seats if seat.job]
            ready = wait([seat.connection for seat in busy], timeout=1)
            for seat in busy:
                if seat.connection in ready:
                    self._receive(seat, on_progress, on_end)

    def _receive(
        self, seat: _Seat, on_progress: Callable[[Job, int, float], None], on_end: Callable[[Ended], None]
    ) -> None:
        try:
            message = seat.connection.recv()
        except (EOFError, ConnectionResetError):
            seat.process.join(5)
            assert seat.job is not None
            on_end(Ended(seat.job, error=f"the judging process died (exit code {seat.process.exitcode})"))
            self._seats[self._seats.index(seat)] = self._seat()
            return
        if isinstance(message, Ended):
            seat.job = None
            on_end(message)
        else:
            on_progress(*message)

    def _stop(self, on_end: Callable[[Ended], None]) -> None:
        """Tell the busy ones to stop, which any message does, and wait for their tallies."""
        deadline = time.monotonic() + STOP_SECONDS
        busy = [seat for seat in self._seats if seat.job]
        for seat in busy:
            seat.connection.send(None)
        while busy and time.monotonic() < deadline:
            for connection in wait([seat.connection for seat in busy], timeout=0.5):
                seat = next(seat for seat in busy if seat.connection is connection)
                try:
                    message = seat.connection.recv()
                except (EOFError, ConnectionResetError):
                    busy.remove(seat)
                    continue
                if isinstance(message, Ended):
                    on_end(message)
                    busy.remove(seat)


def spread(jobs: Sequence[Job], seconds_per_case: Sequence[float], total: int) -> list[Job]:
    """Give each job a share of `total` cases, the cheaper ones more, so that all take about as long."""
    speeds = [1 / max(cost, 1e-6) for cost in seconds_per_case]
    shares = [max(1, round(total * speed / sum(speeds))) for speed in speeds]
    shares[shares.index(max(shares))] += total - sum(shares)
    return [replace(job, examples=share) for job, share in zip(jobs, shares)]
