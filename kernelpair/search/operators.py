"""Which operators a pair's candidate calls: asked of a run, and remembered as long as the pair's Python files stay the same."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelpair.call.fork_server import ForkServer, fork_server
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.report.files import write_whole
from kernelpair.search.search import Search
from kernelpair.suite import Place, usual_candidate
from kernelpair.trial.session import JudgedCall, Session

CASES = 100  # of a pair; of ours, the one whose operators come up latest has met all of them after 52
LOOK_SECONDS = 0.5  # between looks whether a thread that asks has fallen over
MOST_SECONDS = 60.0  # for one pair; what is not known by then is taken to call everything
TORCHS = ("aten", "prim", "prims", "_c10d_functional")  # namespaces of operators that are torch's own
FILE = Path(".kernelpair") / "operators.json"
Answer = tuple[str, frozenset[str] | None]
Called = Mapping[str, frozenset[str] | None]
"""Pair -> the operators that it calls, as `namespace::name`; None where that could not be found out."""


class _Listening(TorchDispatchMode):
    """Notes every operator that is called and not torch's own."""

    def __init__(self, heard: set[str]) -> None:
        super().__init__()
        self._heard = heard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in TORCHS:
            self._heard.add(func._schema.name)
        return func(*args, **(kwargs or {}))


class _Overheard(InProcess):
    """Calls in this process, and what they call in turn."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(candidate)
        self.heard: set[str] = set()
        self.raised = False

    def run(self, request: CallRequest) -> Outcome:
        with _Listening(self.heard):
            outcome = super().run(request)
        self.raised |= outcome.status != "ok" and outcome.error != "Unsupported"
        return outcome


class _Unasked(Session):
    """One call: neither truth nor bound is asked for."""

    def run_first(self) -> JudgedCall:
        self.first = self.run(judged=False)
        return self.first


def operators_of(subject: Subject, cases: int = CASES) -> frozenset[str] | None:
    """The operators that the subject calls in so many drawn cases; None where one of the calls failed, and so may have gone
    only part of its way, or where the time was over before."""
    runner = _Overheard(subject.candidate)
    search = Search(subject, runner, trial="value", shrink_seconds=0.0, session_type=_Unasked)
    tally = search.run(cases, MOST_SECONDS, 0, None)
    runner.close()
    return None if runner.raised or tally.seconds >= MOST_SECONDS else frozenset(runner.heard)


def called(
    place: Place, needs: Mapping[str, Collection[Path]], memory: Path | None = None,
    begun: Callable[[int], Callable[[str], object]] = lambda many: lambda name: None,
) -> Called:
    """The operators of each pair, by the files that it needs: asked anew where their content has changed since.

    `begun` is told how many pairs are asked, and what it returns of each pair once it has answered. Of a run that is interrupted
    what is known by then is remembered.
    """
    suite = place.load()
    path = memory or suite.root / FILE
    known = _remembered(path)
    keys = {name: _content(files) for name, files in needs.items()}
    new = [name for name, key in keys.items() if known.get(name, {}).get("of") != key]
    found = {}
    try:
        if new:
            ended = begun(len(new))
            with closing(_asked(place, suite.preload, new)) as answers:
                for name, calls in answers:
                    found[name] = calls
                    ended(name)
    finally:
        known |= {name: {"of": keys[name], "calls": sorted(calls)} for name, calls in found.items() if calls is not None}
        if found:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(known, indent=1) + "\n")
    return {name: found[name] if name in found else frozenset(known[name]["calls"]) for name in needs}


def _asked(place: Place, preload: Sequence[str], names: Sequence[str]) -> Generator[Answer, None, None]:
    """Each pair and what it calls, in the order in which they answer: as many at a time as there are cores. Who stops asking
    waits for those that are being asked for no longer than it takes to end them."""
    server, waiting, answers = fork_server(preload), iter(names), Queue[Answer]()
    processes = [_Process(server, place) for _ in names[: len(os.sched_getaffinity(0))]]

    def ask(process: _Process) -> None:
        with closing(process):
            for name in waiting:
                answers.put((name, process.asked(name)))

    with ThreadPoolExecutor(len(processes)) as pool:
        asking = [pool.submit(ask, process) for process in processes]
        try:
            told = 0
            while told < len(names):
                with suppress(Empty):
                    yield answers.get(timeout=LOOK_SECONDS)
                    told += 1
                for each in asking:
                    if each.done():
                        each.result()  # which raises what its thread has fallen over
        finally:
            for _ in waiting:
                pass  # is asked of nobody any more
            for process in processes:
                process.end()


def _remembered(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _content(files: Iterable[Path]) -> str:
    """A digest of Python files: what is compiled does not say which operators are called."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(files):
        if file.suffix == ".py":
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


class _Process:
    """One that is asked for one pair after the other, for to start takes longer than most pairs; a kernel may end it."""

    def __init__(self, server: ForkServer, place: Place) -> None:
        self._server, self._place = server, place
        self._connection: Connection | None = None
        self._ended = False
        self._owner: ForkServer | None = None

    def asked(self, name: str) -> frozenset[str] | None:
        """What a process says that other pairs have not made fall before."""
        was_new = self._connection is None
        calls = self._answer(name)
        return calls if calls is not None or was_new or self._ended else self._answer(name)

    def _answer(self, name: str) -> frozenset[str] | None:
        connection = self._connection or self._start()
        with suppress(EOFError, OSError):
            if self._ended:
                raise EOFError
            connection.send(name)
            if connection.poll(2 * MOST_SECONDS) and (calls := connection.recv()) is not None:
                return frozenset(calls)
        self.close()
        return None

    def _start(self) -> Connection:
        self._connection, theirs = Pipe()
        self._owner = ForkServer(self._server.channel())  # several threads ask at once
        with theirs:
            self._owner.fork(f"{__name__}:{answer.__name__}", theirs.fileno())
        self._connection.send(self._place)
        return self._connection

    def end(self) -> None:
        """End the process, from another thread than that which asks it: what it was asked has no answer."""
        self._ended = True
        if self._owner is not None:
            self._owner.close()

    def close(self) -> None:
        if self._connection is not None and self._owner is not None:
            self._connection.close()
            self._owner.close()  # which ends the process
            self._connection = None


def answer(descriptor: int) -> None:
    """Say of each pair that is asked for which operators it calls, until none is: None where its candidate fails. Runs in a
    process of its own."""
    connection: Connection = Connection(descriptor)
    torch.set_num_threads(1)
    suite = connection.recv().load()
    with suppress(EOFError):
        while True:
            pair = suite.pairs()[connection.recv()]
            try:
                connection.send(operators_of(Subject(pair, usual_candidate(suite, pair))))
            except Exception:  # noqa: BLE001 - the trials will say what is wrong with the pair
                connection.send(None)
