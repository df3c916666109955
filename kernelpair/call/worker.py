"""The process that runs a candidate: it maps the judge's arena, arms the guard pages, makes the call and says what came
back."""

import ctypes
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from kernelpair.call import fault
from kernelpair.call.compiled import compilations
from kernelpair.call.defaults import defaults_of
from kernelpair.call.fakes import Fakes
from kernelpair.call.fault import Fault
from kernelpair.call.form import bits_of, meet, shape_of
from kernelpair.call.heap import held_bytes
from kernelpair.call.memory import Arena, Placed
from kernelpair.call.results import Returned, collected, named_results
from kernelpair.call.series import NoAnswer, Repeated, Repeats, Repetition
from kernelpair.call.surroundings import (
    BY_OTHERS,
    GROWING,
    NAMES,
    STATE,
    SideEffect,
    Surroundings,
    busy,
    changes,
    lasting,
    on_loading,
)
from kernelpair.call.system import inherit_orphans, printable, shortened, stand, words_of
from kernelpair.call.whereabouts import answer_signals
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.mistakes import raised_at

LOG_BYTES = 1 << 20  # the end of what a worker wrote, where its last words are looked for
LINE_BUFFERED = 1  # _IOLBF of stdio.h
NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "std::bad_alloc")  # in messages of torch and of C++
CLOSED_CHANNEL = 193  # a worker's exit status after a call that closed the connection to the judge; kernels end with smaller ones
THREADS = NAMES.index("torch_threads")
LEFT = "left_behind"  # not seen in a process that does other things too: threads, files and memory may be its own


@dataclass(frozen=True)
class CallRequest:
    """One call: arguments by name, pages to guard, and where in the arena results may go."""

    arguments: Mapping[str, Any]
    guards: list[int]
    results_at: int
    results: tuple[str, ...]
    threads: int
    also: Sequence[Mapping[str, Any]] = ()
    """Arguments of further calls, made at the same time from Python threads of their own."""
    keep: bool = False
    """Keep the results alive, to see whether a later call writes to them."""
    deep: bool = False
    """Look at everything that the call may have changed, also at what takes long to read."""
    weigh: bool = False
    """Report how much memory the process holds after the call."""
    collect: bool = False
    """Free what only cycles of Python objects still hold before the heap is measured, which takes long."""
    again: Repeats | None = None
    """Make the call again and again, and compare each with the first."""
    fakes: bool = False
    """Compare the results of the operators that it calls with what their fake implementations say."""
    fresh: bool = False
    """The first call of a case: what a result of an earlier case has become is not its fault."""


@dataclass
class Outcome:
    """What came back from a call.

    `status` is ok, exception, crash, hang, kills_parent, harness (the worker itself failed) or spoiled (an earlier call has
    left its process in a state in which none is made); `error` and `message` describe the others.
    """

    status: str
    error: str = ""
    message: str = ""
    bases: tuple[str, ...] = ()
    at: str = ""
    """Of an exception: the names of its classes, and where in the candidate's own Python it was raised."""
    results: dict[str, Any] = field(default_factory=dict)
    """Name -> Returned, or a plain value."""
    moved: tuple[str, ...] = ()
    """Arguments whose sizes, strides or data pointer the call changed."""
    reformed: tuple[tuple[str, str], ...] = ()
    """Arguments whose dtype, requires_grad or storage it changed, and how."""
    ran: str | None = None
    paths: tuple[str, ...] = ()
    """The paths through the candidate's code that the call took, if the candidate tells them."""
    executed: Mapping[str, int] | None = None
    """The instructions that the candidate's counter saw; None where instructions cannot be seen."""
    left: str = ""
    """What the call left behind in the process or its CPU."""
    others: list["Outcome"] = field(default_factory=list)
    """The outcomes of the calls in `CallRequest.also`."""
    fault: Fault | None = None
    """What is known of a crash, if its signal could be looked at."""
    side_effects: tuple[SideEffect, ...] = ()
    growth: tuple[SideEffect, ...] = ()
    """Changes that are side effects unless they come only once."""
    spoiled: bool = False
    """The call has left something in its process that a later call would be blamed for."""
    overwritten: tuple[str, ...] = ()
    """Results of the call with `keep` whose bits changed since."""
    shared: tuple[str, ...] = ()
    """Results that lie in the memory of another call's: of one at the same time, the one before, or the call with `keep`."""
    held: tuple[int, int] = (0, 0)
    """Bytes that the process holds after a call with `weigh`: allocated, mapped."""
    series: Repeated | None = None
    """The result of a call that was made again and again."""
    compilations: int = 0
    """Graphs that torch.compile has compiled in the process so far."""
    fakes: Mapping[str, str] = field(default_factory=dict)
    """Operator -> what its fake implementation says wrongly."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> the candidate's default, of a call with `fakes`."""

    @property
    def around(self) -> bool:
        """Whether bytes around a result were written."""
        results = [result for outcome in (self, *self.others) for result in outcome.results.values()]
        return any(isinstance(result, Returned) and result.around for result in results)

    @property
    def from_outside(self) -> bool:
        """Whether what happened to its process may not be the call's doing: an end by a signal that was sent, as by a system
        without memory or by its operator, or with the process that had started it; another priority."""
        if self.fault is not None:
            return fault.was_sent(self.fault)
        if any(effect.name in BY_OTHERS for effect in self.side_effects):
            return True
        if self.status == "exception":
            return self.error == "MemoryError" or any(says in self.message for says in NO_MEMORY)
        return self.status == "kills_parent" or (self.status == "crash" and self.error in fault.SENT)


@dataclass(frozen=True)
class _Raised:
    """An exception of the candidate, as an answer."""

    error: BaseException


def work(descriptor: int, arena: int, log: int) -> None:
    """Answer requests until the judge hangs up. Runs in the worker; the descriptors are of its connection, arena and log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inherit_orphans()
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)
    os.dup2(log, 2)
    os.dup2(log, 1)
    answer_signals()
    _print_at_once()
    connection: Connection = Connection(descriptor)
    channel = _behind(descriptor)
    connection.send(os.getpid())  # first: the judge looks whether this process gets a processor
    try:
        capacity, candidate, standing = connection.recv()
        stand(standing)
        shared = Arena(arena, capacity)
        caller = Caller(candidate, shared, note_faults=True)
        connection.send(None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the judge reports it
        says = f"the candidate does not load: {type(error).__name__}: {words_of(error)}"
        connection.send(Outcome("harness", type(error).__name__, says))
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            outcome = caller.call(request, guarded=True)
        finally:
            if _behind(descriptor) != channel:
                os._exit(CLOSED_CHANNEL)
        connection.send(outcome)


def _print_at_once() -> None:
    """Let each line that the candidate prints be in the log, from Python as from C, also if the call ends the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, ctypes.c_size_t(0))


def _behind(descriptor: int) -> int:
    """The inode of what a descriptor leads to, 0 where it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0


class Caller:
    """Makes calls of one candidate in this process."""

    def __init__(self, candidate: Candidate, arena: Arena, note_faults: bool = False) -> None:
        self.arena, self.is_worker, self.process = arena, note_faults, os.getpid()
        if note_faults and candidate.run_as:  # who carries out instructions takes the signals, and hands on what is not his
            fault.install(arena)
        candidate.begin()  # first: what torch has asked of the CPU it does not ask again
        self.surroundings = Surroundings()
        before = self.surroundings.read(deep=True)
        candidate.enter_for_trial()
        self.function: Callable[..., Any] = candidate.load()
        self.observe = candidate.observer()
        self.survey = candidate.surveyor()
        self.count = candidate.counter()
        self.inspect = candidate.inspector()
        if note_faults:  # now that the candidate is loaded: its libraries may have handlers of their own
            fault.install(arena)
        self.unspoiled = self.surroundings.read(deep=True)
        self.on_loading = on_loading(before, self.unspoiled)
        self.state = self.unspoiled
        self.most = {name: self.state[NAMES.index(name)] for name in GROWING}
        self.kept: list[tuple[str, Tensor, bytes]] = []
        self.last: list[Tensor] = []  # results of the call before, held so that their memory is no other call's
        self.called, self.threads = False, 0
        self.guards: list[int] = []

    def call(self, request: CallRequest, *, guarded: bool) -> Outcome:
        """Build the views, call, and collect. An exception of the candidate is an outcome; a signal is the judge's to see."""
        self.kept, self.last = ([], []) if request.fresh else (self.kept, self.last)
        if request.threads != self.threads:
            torch.set_num_threads(request.threads)
            self.threads = request.threads
        calls = [{name: self._view(value) for name, value in given.items()} for given in (request.arguments, *request.also)]
        shapes = [{name: shape_of(value) for name, value in call.items() if isinstance(value, Tensor)} for call in calls]
        self.observe(True)
        self.count()
        if guarded:
            self._arm(request)
        loaded, before = len(sys.modules), self._state(request, guarded)
        if guarded and request.deep and lasting(before) != lasting(self.unspoiled):
            return Outcome("spoiled")
        repetition = Repetition(request.again, self.arena) if request.again is not None else None
        with Fakes() if request.fakes and not compilations() else nullcontext() as fakes:  # what is compiled runs otherwise in it
            answers = self._together(calls, request.threads) if request.also else [self._answer(calls[0])]
        series = self._series(repetition, request, calls[0], answers[0]) if repetition is not None else None
        after = self.state = self.surroundings.read(request.deep)
        if after[:2] != before[:2]:
            self.surroundings.set_control_words(before)
        outcomes = self._outcomes(request, answers, calls)
        for outcome, call, shape in zip(outcomes, calls, shapes):
            changed = {name: now for name, was in shape.items() if (now := shape_of(call[name])) != was}
            outcome.reformed = tuple((name, says) for name, now in changed.items() if (says := shape[name].reformed(now)))
            outcome.moved = tuple(name for name in changed if name not in dict(outcome.reformed))
            outcome.ran = self.observe(False)
        left = self.inspect()  # before the counts begin anew
        told = replace(outcomes[0], others=outcomes[1:], paths=tuple(self.survey()), left=left, executed=self.count())
        found = changes(before, after, len(sys.modules) != loaded) if before != after else []
        told.series, told.compilations = series, compilations()
        told.fakes, told.defaults = fakes.wrong if fakes else {}, defaults_of(self.function) if request.fakes else {}
        self._tell(told, request, found if guarded else [effect for effect in found if effect.kind != LEFT])
        if guarded and request.deep and busy():
            told.side_effects += (SideEffect(LEFT, "threads", "something goes on running after the call"),)
        told.spoiled = len(told.side_effects) > len(self.on_loading) or told.around
        return told

    def _state(self, request: CallRequest, alone: bool) -> tuple[Any, ...]:
        """The state before the call. In a process that does nothing else it is that after the last one, but for the threads."""
        if request.deep or not alone:
            return self.surroundings.read(request.deep)
        return (*self.state[:THREADS], torch.get_num_threads(), *self.state[THREADS + 1 : len(STATE)])

    def _tell(self, outcome: Outcome, request: CallRequest, found: list[SideEffect]) -> None:
        """Say what the call changed in its process, and what it did to the results of an earlier one."""
        outcome.overwritten = tuple(name for name, kept, bits in self.kept if bits_of(kept) != bits)
        outcome.shared = tuple(dict.fromkeys(name for one in (outcome, *outcome.others) for name in one.shared))
        if request.collect:
            gc.collect()
        outcome.held = held_bytes() if request.weigh else (0, 0)
        # Each thread of a call with `also` has an OpenMP pool of its own, which goes when the thread has gone.
        growing = [] if request.also else [effect for effect in found if effect.name in GROWING]
        outcome.growth = tuple(effect for effect in growing if self._is_new(effect))
        outcome.side_effects = (*self.on_loading, *(effect for effect in found if effect.name not in GROWING))
        self.threads = torch.get_num_threads()

    def _is_new(self, effect: SideEffect) -> bool:
        """Whether there are more of them than ever: an OpenMP pool shrinks and grows with the threads that are asked for."""
        now = self.state[NAMES.index(effect.name)]
        most, self.most[effect.name] = self.most[effect.name], max(now, self.most[effect.name])
        return bool(now > most)

    def _arm(self, request: CallRequest) -> None:
        """Guard the request's pages, and no others. They stay guarded: the next call often has the same."""
        if request.guards != self.guards:
            self.arena.unprotect()
            self.arena.reserve(request.results_at)
            self.arena.protect(request.guards)
            self.guards = request.guards

    def disarm(self) -> None:
        """Guard no page any more."""
        self.arena.unprotect()
        self.guards = []

    def _answer(self, call: Mapping[str, Any]) -> Any:
        """What the candidate returns or raises. A process that it has forked, and from which it comes back too, ends here."""
        try:
            return self.function(**call)
        except BaseException as error:  # it is judged by its class
            if isinstance(error, KeyboardInterrupt) and not self.is_worker:  # it may be the user's
                raise
            return _Raised(error)
        finally:
            if os.getpid() != self.process:
                os._exit(0)

    def _series(
        self, repetition: Repetition, request: CallRequest, call: Mapping[str, Any], first: Any
    ) -> Repeated | None:
        """The call again and again; None where the first one's answer already is no result."""

        def named(answer: Any) -> dict[str, Any]:
            if isinstance(answer, _Raised):
                raise NoAnswer(f"{type(answer.error).__name__}: {words_of(answer.error)}")
            return named_results(answer, request.results)

        try:
            named(first)
        except Exception:  # noqa: BLE001 - it is an outcome of its own
            return None
        return repetition.run(lambda: self._answer(call), first, named)

    def _together(self, calls: list[dict[str, Any]], threads: int) -> list[Any]:
        """All calls at once; torch's number of threads is each Python thread's own."""
        start = Barrier(len(calls))

        def run(call: dict[str, Any]) -> Any:
            torch.set_num_threads(threads)
            start.wait()
            return self._answer(call)

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls))

    def _outcomes(self, request: CallRequest, answers: list[Any], calls: list[dict[str, Any]]) -> list[Outcome]:
        outcomes, at = [], request.results_at
        self.kept = [] if request.keep else self.kept
        others, fresh = [*self.last, *(kept for _, kept, _ in self.kept)], list[Tensor]()
        for answer, call in zip(answers, calls):
            error = answer.error if isinstance(answer, _Raised) else None
            function = self.function if error is not None else None
            if error is None:
                try:
                    named = named_results(answer, request.results)
                    results, tensors, at = collected(named, call, self.arena, at)
                    own = {name: tensor for name, tensor in tensors.items() if not results[name].aliases}
                    shared = tuple(name for name, tensor in own.items() if any(meet(tensor, other) for other in others))
                    outcomes.append(Outcome("ok", results=results, shared=shared))
                    others += own.values()
                    fresh += own.values()
                    if request.keep:
                        self.kept += [(name, tensor, bits_of(tensor)) for name, tensor in own.items()]
                except Exception as unfit:  # noqa: BLE001 - what was returned does not fit the contract
                    error = unfit
            if error is not None:
                name, *bases = (printable(base.__name__) for base in type(error).__mro__)
                outcomes.append(Outcome("exception", name, words_of(error), (name, *bases), raised_at(error, function)))
        self.last = fresh
        return outcomes

    def _view(self, value: Any) -> Any:
        return self.arena.view(value) if isinstance(value, Placed) else value


def written(log: int, begin: int = 0) -> str:
    """The last that a worker wrote, from byte `begin` of its log on."""
    return os.pread(log, LOG_BYTES, max(os.fstat(log).st_size - LOG_BYTES, begin)).decode(errors="replace")


def stderr_tail(log: str, lines: int = 3) -> str:
    """The last lines of it; of a sanitizer's report, which ends in many frames, the line that says what."""
    written = [line.strip() for line in fault.without_frames(log).splitlines() if line.strip()]
    says = [line for line in written if "runtime error: " in line or "ERROR: AddressSanitizer: " in line]
    return printable(shortened(" | ".join(says[:1] or written[-lines:])))
