"""Makes the calls of a candidate in its own process: it arms the guard pages, calls, and looks at what the call has changed."""

import gc
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from kernelpair.call import fault, torch_memory
from kernelpair.call.compiled import compilations
from kernelpair.call.defaults import defaults_of
from kernelpair.call.fakes import Fakes
from kernelpair.call.form import bits_of, meet, shape_of
from kernelpair.call.heap import held_bytes
from kernelpair.call.memory import Arena, Placed
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.results import collected, named_results
from kernelpair.call.series import NoAnswer, Repeated, Repetition
from kernelpair.call.surroundings import (
    GROWING,
    NAMES,
    STATE,
    SideEffect,
    Surroundings,
    busy,
    changes,
    lasting,
    may_change,
    on_loading,
)
from kernelpair.call.system import printable, words_of
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.mistakes import raised_at

THREADS = NAMES.index("torch_threads")
LEFT = "left_behind"  # not seen in a process that does other things too: threads, files and memory may be its own


@dataclass(frozen=True)
class _Raised:
    """An exception of the candidate, as an answer."""

    error: BaseException


class Caller:
    """Makes calls of one candidate in this process."""

    def __init__(self, candidate: Candidate, arena: Arena, note_faults: bool = False) -> None:
        self.arena, self.is_worker, self.process = arena, note_faults, os.getpid()
        if note_faults and candidate.run_as:  # who carries out instructions takes the signals, and hands on what is not his
            fault.install(arena)
        if note_faults:
            torch_memory.install()
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
        loaded, compiled, before = len(sys.modules), compilations(), self._state(request, guarded)
        damaged = torch_memory.damaged()
        if guarded and request.deep and lasting(before) != lasting(self.unspoiled):
            return Outcome("spoiled")
        repetition = Repetition(request.again, self.arena) if request.again is not None else None
        asked = Fakes() if request.fakes and not compilations() else nullcontext()  # what is compiled runs otherwise in them
        with torch_memory.given(), asked as fakes:  # but not of a series: how many calls it has is what it is made for
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
        may = may_change(len(sys.modules) != loaded, compilations() != compiled)
        found = changes(before, after, may) if before != after else []
        told.damage = torch_memory.damage() if torch_memory.damaged() > damaged else ""
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
            return self.surroundings.read(request.deep, drawn=alone)
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
