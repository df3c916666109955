"""The peers of `bench --against`: providers in processes of their own, so that a crash ends only that process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from kernelpair.call.place import resolve
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.providers.provider import Provider, Unsupported, provider
from kernelpair.suite import Place
from kernelpair.timing.attended import Attended, said
from kernelpair.timing.cases import row_named
from kernelpair.timing.interleaved import Away, Lost, give_back_freed_memory, keep_freed_memory, repeats_of, sample

SEED = 8  # of a row's arguments: each process makes them for itself, and they shall be the same


def arguments_of(row: BenchRow) -> Inputs:
    """A row's arguments, the same in every process. What other rows have freed is given back first."""
    give_back_freed_memory()
    torch.manual_seed(SEED)
    return resolve(row.arguments())


class _Ready(NamedTuple):
    """What a process has made ready for a row, and why there is no more."""

    ways: Sequence[str]
    refused: str


class Peer(Attended):
    """A provider, and the process in which its kernels run."""

    def __init__(self, place: Place, provided: Provider) -> None:
        super().__init__(_attendant, place, provided.spec)
        self.name = provided.name

    def calls(self, pair: Pair, row: BenchRow) -> "tuple[dict[str, PeerCall], str]":
        """Each way to do the row, by the name that it is shown under, and why there is none, or why not all."""
        self.start()
        try:
            ready: _Ready = self.ask(_Attendant.row, pair.name, row.name)
        except Lost as gone:
            return {}, str(gone)
        return {f"{self.name} {way}".strip(): PeerCall(self, way) for way in ready.ways}, ready.refused


@dataclass
class PeerCall(Away):
    """One way of a peer to do the row that its process holds."""

    peer: Peer
    way: str
    threads: int = 1
    lost: str = ""
    """Why it was not timed to the end."""

    @property
    def process(self) -> object:
        return self.peer

    def repeats(self) -> int:
        return int(self._ask(_Attendant.repeats))

    def sample(self, repeats: int) -> float:
        return float(self._ask(_Attendant.sample, repeats))

    def _ask(self, what: Callable[..., Any], *arguments: int) -> Any:
        try:
            return self.peer.ask(what, self.way, self.threads, *arguments)
        except Lost as gone:
            self.lost = str(gone)
            raise


def _attendant(place: Place, spec: str) -> "_Attendant":
    keep_freed_memory()
    place.load()
    provided = provider(spec)
    provided.load()
    return _Attendant(place, provided)


@dataclass
class _Attendant:
    """The serving side: one row at a time."""

    place: Place
    provided: Provider
    ways: dict[str, Callable[[], object]] = field(default_factory=dict)

    def row(self, name: str, row_name: str) -> _Ready:
        """Make a row ready and call each way once."""
        self.ways, refused = {}, ""
        try:
            pair = self.place.load().pairs()[name]
            row = row_named(pair, row_name)
            for way, call in self.provided.calls(pair, row, arguments_of(row)).items():
                call()
                self.ways[way] = call
        except Unsupported as reason:
            refused = str(reason)
        except Exception as error:  # noqa: BLE001 - whatever another's kernel raises is its answer
            refused = said(error)
        return _Ready(list(self.ways), refused)

    def repeats(self, way: str, threads: int) -> int:
        torch.set_num_threads(threads)
        return repeats_of(self.ways[way])

    def sample(self, way: str, threads: int, repeats: int) -> float:
        torch.set_num_threads(threads)
        return sample(self.ways[way], repeats)
