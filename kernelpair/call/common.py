"""What the workers of several candidates have in common, loaded once: in the server that forks them.

To load a library and a pair's modules takes several times as long as to fork a worker. So a candidate may name what it shares
with others (`Candidate.common`). A server that has loaded it serves one candidate after another on these
conditions: loading must leave the process as it was and start no thread, and no worker may have died or spoiled its process.
Otherwise the next candidate has a server of its own. What loading changes is then seen in the worker, where it is judged.
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from kernelpair.call.fork_server import ForkServer, ServerGone, fork_server
from kernelpair.call.surroundings import Surroundings, on_loading
from kernelpair.call.system import Standing, here, stand
from kernelpair.contract.candidate import Candidate, called

LOAD_SECONDS = 120.0  # as long as a worker has to start


class Wanted(NamedTuple):
    """What a server is to load."""

    standing: Standing
    environment: dict[str, str]
    common: str
    modules: Sequence[str]


class _Key(NamedTuple):
    """Candidates alike in these can be served by one server."""

    common: str
    environment: tuple[tuple[str, str], ...]
    standing: tuple[str, ...]


_loaded: set[str] = set()
"""What this process, a server, has loaded."""
_idle: dict[_Key, ForkServer] = {}
"""Servers of this process whose last candidate has been served."""


def server_of(candidate: Candidate, preload: Sequence[str]) -> ForkServer:
    """A server for the workers of a candidate, which has loaded what the candidate has in common with others, if it can.
    Raises ServerGone."""
    if not candidate.common:
        return fork_server(preload).for_workers()
    server = _idle.pop(_key(candidate), None)
    if server is None or not server.serves():
        server = fork_server(preload).for_workers()
    if _loads(server, Wanted(here(), dict(candidate.on_trial), candidate.common, candidate.modules)):
        server.common = candidate.common
        return server
    server.close()
    return fork_server(preload).for_workers()


def done_with(server: ForkServer, candidate: Candidate, well: bool) -> None:
    """Keep the server for the next candidate if this one has behaved `well`; else end it."""
    if well and server.common and server.serves() and _key(candidate) not in _idle:
        with suppress(ServerGone):
            server.tidy()
            _idle[_key(candidate)] = server
            return
    server.close()


def _key(candidate: Candidate) -> _Key:
    standing = here()
    return _Key(candidate.common, tuple(sorted(candidate.on_trial.items())), (standing.folder, *standing.path))


def _loads(server: ForkServer, wanted: Wanted) -> bool:
    """Whether a server has loaded it and is as it was before."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            server.load(theirs.fileno())
        try:
            ours.send(wanted)
            return bool(ours.poll(LOAD_SECONDS) and ours.recv())
        except (EOFError, ConnectionResetError, BrokenPipeError):  # loading has ended it
            return False


def load(descriptor: int) -> None:
    """Load in this process, a server, what is asked for over the connection with this descriptor; say whether it may go on."""
    with Connection(descriptor) as connection:
        wanted: Wanted = connection.recv()
        gc.disable()
        try:
            connection.send(_leaves_all_as_it_was(wanted))
        finally:
            gc.freeze()  # it is here to stay
            gc.enable()


def _leaves_all_as_it_was(wanted: Wanted) -> bool:
    names = [name for name in wanted.modules if name not in sys.modules]
    if not names and wanted.common in _loaded:
        return True
    stand(wanted.standing)
    for name, value in wanted.environment.items():
        os.environ.setdefault(name, value)
    surroundings = Surroundings()
    before = surroundings.read(deep=True, pool=False)
    try:
        if wanted.common not in _loaded:
            called(wanted.common)()
            _loaded.add(wanted.common)
        for name in names:
            import_module(name)
    except BaseException:  # noqa: BLE001 - the worker that needs it says what is wrong
        return False
    after = surroundings.read(deep=True, pool=False)
    return not on_loading(before, after) and surroundings.threads(before) >= surroundings.threads(after)
