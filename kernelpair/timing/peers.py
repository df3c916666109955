"""The others of `bench --against`: providers in processes of their own, so that one that crashes ends nothing but itself."""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from kernelpair.call.place import resolve
from kernelpair.call.runner import signal_name
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.providers.provider import Provider, Unsupported, provider
from kernelpair.suite import Place
from kernelpair.timing.cases import row_named
from kernelpair.timing.interleaved import Away, Lost, keep_freed_memory, repeats_of, sample

ANSWER_SECONDS = 120.0  # to make a row ready, or for a sample: the longest take some seconds
END_SECONDS = 5.0  # for a process whose connection has closed to be seen ended
SEED = 8  # of a row's arguments: each process makes them for itself, and they shall be the same


def arguments_of(row: BenchRow) -> Inputs:
    """A row's arguments, the same in every process."""
    torch.manual_seed(SEED)
    return resolve(row.arguments())


class _Ready(NamedTuple):
    """What a process has made ready for a row, and why there is no more."""

    ways: Sequence[str]
    refused: str


class Peer:
    """A provider, and the process in which its kernels run: started when it is needed, and again after it has died."""

    def __init__(self, place: Place, provided: Provider) -> None:
        self.name = provided.name
        self._start_with = place, provided.spec
        self._process: Any = None
        self._connection: Any = None
        self._why_gone = ""

    def calls(self, pair: Pair, row: BenchRow) -> "tuple[dict[str, PeerCall], str]":
        """Each way to do the row, by the name that it is shown under, and why there is none, or why not all."""
        try:
            if self._process is None:
                self._start()
            ready: _Ready = self.ask(_Attendant.row, pair.name, row.name)
        except Lost as gone:
            return {}, str(gone)
        return {f"{self.name} {way}".strip(): PeerCall(self, way) for way in ready.ways}, ready.refused

    def ask(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """What a method of the serving side answers. Raises Lost where the process has ended or does not answer."""
        if self._process is None:
            raise Lost(self._why_gone)
        try:
            self._connection.send((what.__name__, arguments))
            if not self._connection.poll(ANSWER_SECONDS):
                self.close()
                self._lose(f"no answer within {ANSWER_SECONDS:g} s")
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            self.close()
            self._lose(f"crash: {signal_name(-code)}" if code and code < 0 else f"crash: it ended its process, status {code}")
        if isinstance(answer, Lost):
            raise answer
        return answer

    def _lose(self, why: str) -> None:
        self._why_gone = why
        raise Lost(why)

    def _start(self) -> None:
        context = get_context("spawn")  # as a user's process: without what a server of workers sets for trials
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._start_with), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join(END_SECONDS)
            self._process = None


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


def said(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _serve(connection: Connection, place: Place, spec: str) -> None:
    """Answer until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the leader to handle
    server, broken = None, ""
    keep_freed_memory()
    try:
        place.load()
        provided = provider(spec)
        provided.load()
        server = _Attendant(place, provided)
    except Exception as error:  # noqa: BLE001 - the other side says it, row by row
        broken = f"it does not load: {said(error)}"
    with suppress(EOFError):
        while True:
            name, arguments = connection.recv()
            connection.send(_answer(server, name, arguments) if server is not None else _Ready((), broken))


def _answer(server: _Attendant, name: str, arguments: Sequence[Any]) -> Any:
    try:
        return getattr(server, name)(*arguments)
    except Exception as error:  # noqa: BLE001 - a call that worked once
        return Lost(said(error))
