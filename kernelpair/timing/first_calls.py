"""The first calls of our own side of a row, in another process: what crashes, hangs or raises there is not timed here.

What is timed is called in the process of the command, beside torch, as a user calls it.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.suite import Place
from kernelpair.timing.attended import Attended
from kernelpair.timing.cases import row_named
from kernelpair.timing.compare import prepared
from kernelpair.timing.interleaved import SETTLE_SECONDS, Lost
from kernelpair.timing.peers import arguments_of

CALLS = 2  # the second finds what the first has kept


class FirstCalls(Attended):
    """The process, and the suite whose candidates are called in it."""

    def __init__(self, place: Place) -> None:
        super().__init__(_Newcomer, place)
        self._machine = place.load().machine

    def lost(self, pair: Pair, row: BenchRow, names: Sequence[str]) -> dict[str, str]:
        """The candidates that do not come back from the row's calls -> why. Their own exceptions count too."""
        found = {name: self._lost(pair, row, name, "") for name in names}
        return {name: reason for name, reason in found.items() if reason}

    def lost_kin(self, pair: Pair, row: BenchRow, names: Sequence[str]) -> dict[str, str]:
        """The same of the other kernels that the row times beside ours, on any of the candidates."""
        found = {kin: next(filter(None, (self._lost(pair, row, name, kin) for name in names)), "") for kin in row.kin}
        return {kin: reason for kin, reason in found.items() if reason}

    def settle(self) -> None:
        """Hold no row any more, and fall silent."""
        with suppress(Lost):
            self.ask(_Newcomer.forget)
        time.sleep(SETTLE_SECONDS)

    def _lost(self, pair: Pair, row: BenchRow, name: str, kin: str) -> str:
        slow = name in self._machine.untimed  # tiles in software take minutes for some rows
        self.start()
        try:
            self.ask(_Newcomer.call, pair.name, row.name, name, kin, torch.get_num_threads(), forever=slow)
        except Lost as gone:
            return str(gone)
        return ""


@dataclass
class _Newcomer:
    """The serving side: holds the arguments of one row."""

    place: Place
    held: dict[tuple[str, str], Inputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place.load()

    def call(self, pair_name: str, row_name: str, name: str, kin: str, threads: int) -> None:
        torch.set_num_threads(threads)
        suite = self.place.load()
        pair = suite.pairs()[pair_name]
        row = row_named(pair, row_name)
        if (pair_name, row_name) not in self.held:
            self.held = {(pair_name, row_name): arguments_of(row)}
        given = self.held[pair_name, row_name]
        candidate = next(candidate for candidate in suite.candidates(pair) if candidate.name == name)
        with suite.machine.use(name):
            call = row.kin[kin](given) if kin else prepared(pair, row, given, candidate)
            candidate.enter()
            for _ in range(CALLS):
                call()

    def forget(self) -> None:
        self.held.clear()
