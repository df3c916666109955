"""Several trials at a time: one judging process a core, each with its own worker, led from this process."""

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median

import torch

from kernelpair.call.fork_server import Forked, ServerGone, adopt, fork_server
from kernelpair.call.runner import HarnessError, InProcess, Isolated, Runner
from kernelpair.call.system import here, limit_memory, signal_name, stand
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case, CaseError
from kernelpair.contract.mistakes import with_place
from kernelpair.contract.pair import Pair
from kernelpair.interruption import raise_until_caught, until_interrupted
from kernelpair.search.search import SHRINK_SECONDS, Search
from kernelpair.search.tally import Tally
from kernelpair.suite import Resolve, SavedLine
from kernelpair.trial.check import Journal, read_case
from kernelpair.trial.truths import Truths

PROGRESS_SECONDS = 0.2
LEAST_SECONDS = 0.1  # of a job that is handed out when the time of all is used up: none goes untested
LOOK_SECONDS = 0.1  # between looks whether the run is to end
INTERRUPT_SECONDS = 0.4  # after which a judging process that was asked to stop is interrupted, and every so often again
STOP_SECONDS = 1.2  # after which it is left alone; a run ends within 2 s
GONE_SECONDS = 5.0  # for a process whose connection has closed to be seen ended
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
    corpus: tuple[SavedLine, ...] = ()
    """Saved cases, tried first."""
    several: bool = False
    """After a failure the search goes on to other defects of the same kernel."""
    known: tuple[tuple[str, str, float | None], ...] = ()
    """Groups of a ledger: the label, the line of the case, and the ratio of error and bound up to which it is known."""
    remember: bool = True
    """Keep failing examples in Hypothesis's database, and try those that are there first."""
    shared: str = ""
    """Failing examples also go to, and come from, a database of several machines: a folder, or redis://host:port."""
    shrink_seconds: float = SHRINK_SECONDS
    explain: bool = False
    """After a failure further cases are tried, to say what the failing ones share."""

    @property
    def key(self) -> tuple[str, str]:
        return self.pair, self.candidate


@dataclass
class Ended:
    """A job and what it found; `error` if the harness itself failed."""

    job: Job
    tally: Tally = field(default_factory=Tally)
    error: str = ""
    candidate: Candidate | None = None
    """What was on trial, so that it can be run again."""
    rounding: str = ""
    """A rounding that the candidate is known to do and that the contract forbids."""
    cut_short: bool = False
    """The run was interrupted before this job had ended,"""
    during: str = ""
    """in the middle of this case, which had gone on for a while."""


def carry_out(
    job: Job,
    resolve: Resolve,
    preload: Sequence[str],
    in_process: bool,
    progress: Callable[[Tally], None],
    stopped: Callable[[], bool] = lambda: False,
    ended: Ended | None = None,
    running: Path | None = None,
    truths: Truths | None = None,
) -> Ended:
    """Run one job in this process. KeyboardInterrupt ends it; `ended` holds at any time what is known. The file `running`
    holds the line of the case that is being tried. `truths`: what is expected of the cases of earlier jobs."""
    ended = ended or Ended(job)
    journal = Journal(running or STATE / f"running-{os.getpid()}.json")
    try:
        subject = resolve(job.pair, job.candidate)
        pair, candidate = subject.pair, subject.candidate
        ended.candidate, ended.rounding = candidate, subject.rounding
        saved = [saved_case(pair, each) for each in job.corpus]
        runner: Runner = InProcess(candidate) if in_process else Isolated(candidate, preload=preload)
        with runner:
            search = Search(
                subject, runner, journal=journal, progress=progress, stopped=stopped, trial=job.trial,
                several=job.several, explain=job.explain, shrink_seconds=job.shrink_seconds, truths=truths,
            )
            ended.tally = search.tally
            if job.known:
                search.recall({label: (saved_case(pair, SavedLine(line)), most) for label, line, most in job.known})
            search.replay(saved)
            search.run(job.examples, job.seconds, job.seed, EXAMPLES if job.remember else None, job.shared)
    except HarnessError as error:
        ended.error = str(error)
    except Exception as error:  # noqa: BLE001 - one pair's mistake must not end the other trials
        ended.error = with_place(error)
    finally:
        journal.remove()
    return ended


def saved_case(pair: Pair, saved: SavedLine) -> Case:
    """The case of a saved line. CaseError, with its place, where it is none."""
    try:
        return read_case({pair.name: pair}, saved.line)[1]
    except CaseError as error:
        raise CaseError(f"{saved.place or saved.line}: {error}") from None


def judge(descriptor: int, channel: int) -> None:
    """The judging process: jobs come in, progress and results go out. By SIGINT the leader says that a job takes too long."""
    running = False

    def interrupt(number: int, frame: object) -> None:
        if running:
            raise_until_caught(interrupt)

    signal.signal(signal.SIGINT, interrupt)
    adopt(channel)
    limit_memory()
    connection: Connection = Connection(descriptor)
    stand(connection.recv())  # first: what comes next may be of modules that only the asking process finds
    resolve, preload, journal = connection.recv()
    torch.set_num_threads(1)
    truths = Truths()
    while True:
        try:
            job = connection.recv()
        except EOFError:  # the leader is done, or gone
            return
        if job is None:
            return
        ended, last = Ended(job), 0.0

        def progress(tally: Tally, job: Job = job) -> None:
            nonlocal last, running
            if time.monotonic() - last > PROGRESS_SECONDS:
                last = time.monotonic()
                running = False  # half a message would be worse than none
                connection.send((job, tally.cases, tally.seconds))
                running = True

        with suppress(KeyboardInterrupt):
            with suppress(KeyboardInterrupt):
                running = True
                carry_out(job, resolve, preload, False, progress, connection.poll, ended, journal, truths)
                running = False
            running = False  # unless the next one comes just now
        running = False
        connection.send(ended)


@dataclass
class _Seat:
    process: Forked
    connection: Connection
    running: Path
    """The file with the case that it tries."""
    job: Job | None = None
    pair: str = ""
    """Of its last job: it has loaded what this one needs."""
    cases: int = 0
    """That the job has tried, as far as it told."""
    began: float = 0.0
    during: str = ""
    """The case that it was interrupted in."""

    @property
    def line(self) -> str:
        """The case that it tries, if that is known."""
        try:
            return self.running.read_text().strip()
        except OSError:
            return ""


class Jobs:
    """Runs jobs on `processes` judging processes; `on_progress` and `on_end` are called in this one."""

    def __init__(self, resolve: Resolve, preload: Sequence[str], processes: int) -> None:
        self._resolve, self._preload = resolve, tuple(preload)
        fork_server([*preload, __name__])  # it loads torch while this process goes on
        self._processes = processes
        self._seats: list[_Seat] = []
        self._numbers = count(1)
        self._over: list[float] = []  # seconds that jobs took beyond their shares: to start, and to end

    def run(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[Job, int, float], None],
        on_end: Callable[[Ended], None],
        seconds: float | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> None:
        """Run all jobs; with `seconds` each gets, when its turn comes, its share of what is left of them, less what others
        took beyond theirs.

        When the run is to end, which `stopped` or else Ctrl-C, SIGTERM or SIGHUP says, every running job hands in what it
        knows; then KeyboardInterrupt is raised.
        """
        pending = list(jobs)[::-1]
        until = None if seconds is None else time.monotonic() + seconds
        with until_interrupted() if stopped is None else nullcontext(stopped) as stopped:
            while len(self._seats) < min(self._processes, len(jobs)) and not stopped():
                self._seats.append(self._seat())
            self._lead(pending, on_progress, on_end, until, stopped)
            if stopped():
                self._stop(on_end)
                raise KeyboardInterrupt

    def close(self) -> None:
        """End the judging processes."""
        for seat in self._seats:
            seat.process.kill()
            seat.connection.close()
        self._seats = []

    def _seat(self) -> _Seat:
        ours, theirs = Pipe()
        server = fork_server([*self._preload, __name__])
        with theirs, server.channel() as channel:
            process = server.fork(f"{__name__}:{judge.__name__}", theirs.fileno(), channel.fileno())
        running = STATE / f"running-{os.getpid()}-{next(self._numbers)}.json"
        ours.send(here())
        ours.send((self._resolve, self._preload, running))
        return _Seat(process, ours, running)

    def _lead(
        self,
        pending: list[Job],
        on_progress: Callable[[Job, int, float], None],
        on_end: Callable[[Ended], None],
        until: float | None,
        stopped: Callable[[], bool],
    ) -> None:
        while not stopped() and (pending or any(seat.job for seat in self._seats)):
            for seat in self._seats:
                if seat.job is None and pending:
                    others = {other.pair for other in self._seats if other is not seat}
                    seat.job = pending.pop(next_job(pending, seat.pair, others))
                    seat.pair = seat.job.pair
                    if until is not None:
                        left = until - time.monotonic()
                        share = left * min(len(self._seats) / (len(pending) + 1), 1)
                        over = median(self._over) if self._over else 0
                        seat.job = replace(seat.job, seconds=max(share - over, LEAST_SECONDS))
                    seat.cases, seat.began = 0, time.monotonic()
                    with suppress(BrokenPipeError, ConnectionResetError):  # it died since; seen when it is read from
                        seat.connection.send(seat.job)
            busy = [seat for seat in self._seats if seat.job]
            ready = wait([seat.connection for seat in busy], timeout=LOOK_SECONDS)
            for seat in busy:
                if seat.connection in ready:
                    self._receive(seat, on_progress, on_end)

    def _receive(
        self, seat: _Seat, on_progress: Callable[[Job, int, float], None], on_end: Callable[[Ended], None]
    ) -> None:
        assert seat.job is not None
        try:
            message = seat.connection.recv()
        except (EOFError, ConnectionResetError):
            on_end(Ended(seat.job, error=self._death(seat)))
            self._seats[self._seats.index(seat)] = self._seat()
            return
        if isinstance(message, Ended):
            if seat.job.seconds is not None:
                self._over.append(time.monotonic() - seat.began - min(message.tally.seconds, seat.job.seconds))
            seat.job = None
            on_end(message)
        else:
            seat.cases = message[1]
            on_progress(*message)

    def _death(self, seat: _Seat) -> str:
        """What ended a judging process, and what it was about: perhaps the kernel on trial killed it."""
        during = f"; the case was {seat.line}" if seat.line else ""
        try:
            code = seat.process.wait(GONE_SECONDS)
        except ServerGone:
            return f"the judging process died with the server that started it{during}"
        how = signal_name(-code) if code is not None and code < 0 else f"exit status {code}"
        return f"the judging process died ({how}){during}"

    def _stop(self, on_end: Callable[[Ended], None]) -> None:
        """Tell the busy ones to stop, which any message does; interrupt those in a long case; take what they know."""
        started = time.monotonic()
        interrupted = 0
        busy = [seat for seat in self._seats if seat.job]
        for seat in busy:
            with suppress(OSError):
                seat.connection.send(None)
        while busy and (passed := time.monotonic() - started) < STOP_SECONDS:
            if passed > INTERRUPT_SECONDS * (interrupted + 1):
                interrupted += 1
                for seat in busy:
                    seat.during = seat.during or seat.line
                    seat.process.send(signal.SIGINT)
            for connection in wait([seat.connection for seat in busy], timeout=LOOK_SECONDS):
                seat = next(seat for seat in busy if seat.connection is connection)
                if self._hands_in(seat, on_end):
                    busy.remove(seat)
        for seat in busy:
            assert seat.job is not None
            unknown = f"interrupted in a long call; what its {seat.cases} cases showed is not known"
            on_end(Ended(seat.job, error=unknown, cut_short=True, during=seat.during))

    def _hands_in(self, seat: _Seat, on_end: Callable[[Ended], None]) -> bool:
        """Take one message; whether it was the last."""
        try:
            message = seat.connection.recv()
        except (EOFError, ConnectionResetError):
            return True
        if isinstance(message, Ended):
            message.cut_short, message.during = True, seat.during
            message.tally.settle()
            on_end(message)
        return isinstance(message, Ended)


def next_job(pending: Sequence[Job], own: str, others: Collection[str]) -> int:
    """Which of the pending jobs, the last of which are due first, goes to a process that had the pair `own`: another of it,
    else one that no other process has. To load a pair takes as long as dozens of cases."""
    due = range(len(pending) - 1, -1, -1)
    same = (place for place in due if pending[place].pair == own)
    new = (place for place in due if pending[place].pair not in others)
    return next(same, next(new, due[0]))


def spread(jobs: Sequence[Job], seconds_per_case: Sequence[float], total: int) -> list[Job]:
    """Give each job a share of `total` cases, the cheaper ones more, so that all take about as long."""
    speeds = [1 / max(cost, 1e-6) for cost in seconds_per_case]
    shares = [max(1, round(total * speed / sum(speeds))) for speed in speeds]
    shares[shares.index(max(shares))] += total - sum(shares)
    return [replace(job, examples=share) for job, share in zip(jobs, shares)]
