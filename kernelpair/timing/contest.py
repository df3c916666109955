"""`kernelpair bench --against`: our kernels and others' on the same rows, in turns, beside what the machine allows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log2
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.environment import environment
from kernelpair.providers.provider import NO_KERNEL, PREFIX, Provider
from kernelpair.providers.subjects import Subjects
from kernelpair.suite import Place, Suite
from kernelpair.timing.attended import said
from kernelpair.timing.compare import prepared
from kernelpair.timing.first_calls import FirstCalls
from kernelpair.timing.interleaved import Competing, far_behind, interleave
from kernelpair.timing.machine import Peak
from kernelpair.timing.peers import Peer, PeerCall, arguments_of
from kernelpair.timing.show import show_row
from kernelpair.timing.speeds import Errors, SpeedRow, Speeds, Timed, conclude, started, timed, write
from kernelpair.trial.check import check

TORCH = "torch"
MOST_READ = 1 << 28  # bytes of the largest buffer that is read for the roofline: far beyond any cache
ONE_THREAD = "one thread"
PEAK_TRIES = 3
Name = TypeVar("Name")


@dataclass(frozen=True)
class Competitor:
    """A call that takes its turns, the candidate that has to be made ready for it, and its number of threads."""

    call: Competing
    candidate: Candidate | None
    threads: int


@dataclass
class Peers:
    """The peers of `--against`, by the names that were given."""

    names: list[str]
    providers: dict[str, Provider] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Why a provider cannot be used here."""


@dataclass
class Contest:
    """One run: rows come in, results are kept, shown, and written after each."""

    place: Place
    peers: Peers
    seconds: float
    threads: int
    one_thread: bool
    console: Console
    suite: Suite = field(init=False)
    speeds: Speeds = field(init=False)
    away: dict[str, Peer] = field(init=False)
    first_calls: FirstCalls = field(init=False)

    def __post_init__(self) -> None:
        self.suite = self.place.load()
        self.first_calls = FirstCalls(self.place)
        self.away = {name: Peer(self.place, provider) for name, provider in self.peers.providers.items()}
        self.speeds = Speeds(environment(), self.threads, self.seconds, list(self.peers.names))
        for name, provider in self.peers.providers.items():
            version = getattr(provider.module, "version", None)
            if callable(version):
                self.speeds.versions[name] = str(version())

    def row(self, pair: Pair, row: BenchRow, candidates: Sequence[tuple[str, str]]) -> None:
        """Time a row on each candidate's tier that can run, and keep what the others cannot."""
        names = [name for name, reason in candidates if not reason]
        skipped = [started(row, pair.name, name, reason) for name, reason in candidates if reason]
        lost = self.first_calls.lost(pair, row, names)
        fallen = [replace(started(row, pair.name, name), failed=reason) for name, reason in lost.items()]
        names = [name for name in names if name not in lost]
        results = self._timed(pair, row, names) if names else []
        for result in (*skipped, *fallen, *results):
            conclude(result, row.floor, self.threads, self.suite.machine.floors)
            self.speeds.rows.append(result)
            show_row(self.console, result, self.suite.machine.floors)

    def _timed(self, pair: Pair, row: BenchRow, names: Sequence[str]) -> list[SpeedRow]:
        lost_kin = self.first_calls.lost_kin(pair, row, names)
        self.first_calls.settle()
        given = arguments_of(row)
        found, refused = self._peers(pair, row, given)
        refused |= lost_kin
        competitors = {name: Competitor(call, None, self.threads) for name, call in found.items()}
        if row.floor is not None and row.floor.over in row.peers:
            competitors.setdefault(row.floor.over, Competitor(row.peers[row.floor.over](given), None, self.threads))
        candidates = {candidate.name: candidate for candidate in self.suite.candidates(pair)}
        for name in names:
            candidate = candidates[name]
            with self.suite.machine.use(name):  # what is prepared may depend on it
                competitors[name] = Competitor(prepared(pair, row, given, candidate), candidate, self.threads)
                for kin in (kin for kin in row.kin if kin not in lost_kin):
                    competitors[f"{kin} [{name}]"] = Competitor(row.kin[kin](given), candidate, self.threads)
            if self.one_thread and self.threads > 1:
                competitors[f"{name} {ONE_THREAD}"] = replace(competitors[name], threads=1)
        times = self._interleaved(competitors)
        alone: dict[str, Timed] = {}
        hopeless = far_behind({name: time.milliseconds / 1e3 for name, time in times.items()})
        for name in [name for name in (*names, *found) if name not in hopeless] if row.alone else ():
            alone |= self._interleaved({name: competitors[name]}) if name in times else {}
        for name, peer in self.away.items():
            lost = [call.lost for call in found.values() if isinstance(call, PeerCall) and call.peer is peer and call.lost]
            refused |= {self._shown(name): lost[0]} if lost else {}
        results = []
        for name in names:
            result = started(row, pair.name, name)
            result.ours, result.one_thread = times[name], times.get(f"{name} {ONE_THREAD}")
            result.peers, result.unsupported = [times[peer] for peer in found if peer in times], refused
            result.others = [replace(times[f"{kin} [{name}]"], name=kin) for kin in row.kin if kin not in lost_kin]
            result.others += [times[other] for other in row.peers if other in times and other not in found]
            result.alone = [alone[other] for other in (name, *found) if other in alone]
            self._limit(result, times[name].milliseconds / 1e3, given)
            results.append(result)
        return results

    def _peers(self, pair: Pair, row: BenchRow, given: Inputs) -> tuple[dict[str, Competing], dict[str, str]]:
        """What is timed for a row beside our own, by name, and peer -> why it does not do the row."""
        found: dict[str, Competing] = {}
        refused = {}
        for name in self.peers.names:
            reason = ""
            if name == TORCH:
                try:
                    if TORCH in row.peers:
                        found[TORCH] = _called(row.peers[TORCH](given))
                    else:
                        reason = "has no equivalent"
                except Exception as error:  # noqa: BLE001 - whatever torch raises is its answer
                    reason = said(error)
            elif name in self.peers.absent:
                reason = self.peers.absent[name]
            elif pair.name not in self.peers.providers[name].adapters:  # it makes no arguments for nothing
                reason = NO_KERNEL
            else:
                calls, reason = self.away[name].calls(pair, row)
                for call in calls.values():
                    call.threads = self.threads
                found |= calls
            if reason:
                refused[self._shown(name)] = reason
        return found, refused

    def _shown(self, peer: str) -> str:
        """A peer as its times are shown: a provider's file by the name in it."""
        return self.peers.providers[peer].name if peer in self.peers.providers else peer

    def close(self) -> None:
        """End the processes of the peers and of first calls."""
        for process in (*self.away.values(), self.first_calls):
            process.close()

    def _interleaved(self, competitors: Mapping[str, Competitor]) -> dict[str, Timed]:
        def enter(name: str) -> None:
            torch.set_num_threads(competitors[name].threads)
            candidate = competitors[name].candidate
            if candidate is not None:
                candidate.enter()

        try:
            with self.suite.machine.use(self.suite.machine.usual()):
                calls = {name: competitor.call for name, competitor in competitors.items()}
                return {name: timed(name, timing) for name, timing in interleave(calls, self.seconds, enter).items()}
        finally:
            torch.set_num_threads(self.threads)

    def _limit(self, result: SpeedRow, taken: float, given: Inputs) -> None:
        """What the roofline allows; peaks are measured when they are first needed."""
        peak = self.suite.machine.peak(result.tier, given)
        rates = {}
        if result.flops:
            rates["products"] = result.flops, self._product_rate(peak, result.flops / taken)
        if result.bytes:
            rates["reading"] = result.bytes, self._read_rate(peak, result.bytes, result.bytes / taken)
        seconds = {by: work / rate for by, (work, rate) in rates.items() if rate}
        if seconds:
            result.limited_by = max(seconds, key=lambda by: seconds[by])
            result.limit = seconds[result.limited_by] * 1e3

    def _product_rate(self, peak: Peak, reached: float) -> float:
        return highest(self.speeds.product_rates, peak.product_key, lambda: self.suite.machine.product_rate(peak), reached)

    def _read_rate(self, peak: Peak, nbytes: float, reached: float) -> float:
        """With a buffer of the power of two next to `nbytes`."""
        size = min(2 ** round(log2(max(nbytes, 1))), MOST_READ)
        rates = self.speeds.read_rates.get(peak.read_key, {})
        rate = highest(rates, size, lambda: self.suite.machine.read_rate(peak, size), reached)
        if rate:
            self.speeds.read_rates[peak.read_key] = rates
        return rate

    def compare_errors(self, pair: Pair, candidates: Sequence[tuple[str, str]]) -> Errors:
        """Judge the pair's `Bench.case`, which it has, on each tier and with each provider: the same data, the same bound."""
        assert pair.bench.case is not None
        result = Errors(pair.name, pair.line(pair.bench.case), unsupported=dict(self.peers.absent))
        named = [(name, name) for name, reason in candidates if not reason]
        for name, provider in self.peers.providers.items():
            if pair.name not in provider.adapters:
                result.unsupported[provider.name] = NO_KERNEL
            elif reason := provider.lacks(pair.name):
                result.unsupported[provider.name] = reason
            else:
                named.append((provider.name, PREFIX + name))
        for name, candidate in named:
            subject = Subjects(self.place)(pair.name, candidate)
            with Isolated(subject.candidate, preload=self.suite.preload) as runner:
                verdict = check(subject, pair.bench.case, runner)
            if verdict.unsupported:
                result.unsupported[name] = verdict.unsupported
                continue
            ratios = [tightness.largest for tightness in verdict.tightness.values()]
            ratios += [worst.ratio for failure in verdict.failures for worst in failure.differences if isfinite(worst.ratio)]
            if ratios:
                result.largest[name] = max(ratios)
            if not verdict.passed:
                result.failed[name] = f"{verdict.failures[0].kind}: {verdict.failures[0].detail}"
        self.speeds.errors.append(result)
        return result

    def write(self, path: str | None) -> None:
        if path:
            write(self.speeds, Path(path))


def highest(rates: dict[Name, float], name: Name, measure: Callable[[], float], reached: float) -> float:
    """A peak, measured once, and again, a few times at most, when a row has reached more: the machine was busy then. 0 where none
    can be measured."""
    for _ in range(PEAK_TRIES):
        if rates.get(name, 0.0) >= reached or not (rate := measure()):
            break
        rates[name] = max(rate, rates.get(name, 0.0))
    return rates.get(name, 0.0)


def _called(call: Callable[[], object]) -> Callable[[], object]:
    """A call that has worked once."""
    call()
    return call


def contest_tiers(suite: Suite, asked: Sequence[str]) -> list[tuple[str, str]]:
    """Tiers of a contest with the reason why one cannot run: those asked for, else those that the suite names, and if none of
    these runs here also the usual one."""
    known_tiers = {tier.name: tier for tier in suite.tiers()}
    wanted = list(asked) or list(suite.machine.contest) or [name for name, tier in known_tiers.items() if tier.runnable]
    wanted = [name for name in wanted if name in known_tiers]
    if known_tiers and not asked and not any(known_tiers[name].runnable for name in wanted):
        wanted.insert(0, suite.machine.usual())
    return [(name, "" if known_tiers[name].runnable else known_tiers[name].reason) for name in wanted]
