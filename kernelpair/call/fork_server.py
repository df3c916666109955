"""A process that has torch loaded and forks the others, and that ends them when the process that asked for them is gone.

The command starts one server. The leader of its run and the judging processes are forked from it, and for each candidate on
trial a server of its own, from which its workers are forked: a candidate that kills its parent ends nobody else's. A server is
asked through channels. When the channel of an owner closes, which happens however the owner ends, the server kills all
processes that the owner asked for.
"""

import atexit
import gc
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from typing import NamedTuple

from kernelpair.call.stopped import Stopped
from kernelpair.call.system import be_called, die_with, inherit_orphans, kill_children

WORKERS = {
    # Freshly allocated memory is filled with bytes that are a huge number in bf16 and fp32 and NaN in fp16, so that a kernel
    # which trusts its scratch is seen; glibc reads it when the server starts.
    "MALLOC_PERTURB_": "129",
    # A block from a thread's own cache is handed out as it lay there, not filled.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    # What the server preloads is found as here, and not in whatever folder it happens to start in.
    "PYTHONSAFEPATH": "1",
}
"""Environment of worker and judging processes, where the user has not set these."""
WAITING = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
    # With `dist`, as vLLM sets it beside Intel's library, threads that a smaller team has no use for spin for good.
    **{f"KMP_{barrier}_BARRIER_PATTERN": "hyper,hyper" for barrier in ("FORKJOIN", "PLAIN", "REDUCTION")},
}
"""Environment of theirs whatever the user has set: how threads of GNU's, LLVM's and Intel's OpenMP wait, read when torch loads. A
thread that spins takes the core from the process at the other end of the pipe (a 1 MiB call took 6.6 ms instead of 1.4), and
looks like work that a kernel has left behind."""
LOADED = ("torch", "kernelpair.call.worker", "hypothesis.strategies", "kernelpair.trial.session")
"""Modules that every server loads, beside those that a suite preloads. Modules of pairs need the last two: otherwise each
worker would load them, which takes a third of a second."""
COMMON = "kernelpair.call.common"  # what it loads at a candidate's request is known there
MESSAGE = 4096  # bytes of the longest message
DESCRIPTORS = 8  # the most that go with one
LOOK_SECONDS = 1.0  # between looks whether the process that started this one is still there
END_SECONDS = 2.0  # for a server to end what it forked, at the end of the run
IDLE_SECONDS = 0.5  # for one that has forked nothing: a longer wait is for it to load what nobody needs any more
FOLDER = "kernelpair-"  # beginning of the name of a server's temporary folder


class ServerGone(RuntimeError):
    """The server has ended."""


class _Forked(NamedTuple):
    owner: socket.socket
    key: int


class _Server:
    """The serving side: forks on request, reports what ended, and kills what has lost its owner."""

    def __init__(self, channel: socket.socket, folder: str, wakes: bool) -> None:
        self._parent = os.getppid()
        self._first, self._folder = channel, folder
        self._forked: dict[int, _Forked] = {}
        self._stopped = Stopped(wakes)
        self._selector = selectors.DefaultSelector()
        self._ended, self._wake = socket.socketpair()
        for end in (self._ended, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes the selector
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the first channel closes, or the process that started this one is gone."""
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(LOOK_SECONDS):
                asked: socket.socket = key.fileobj  # type: ignore[assignment]
                if asked is self._ended:
                    with suppress(BlockingIOError):
                        self._ended.recv(MESSAGE)
                    self._reap()
                elif not self._answer(asked):
                    return
            self._stopped.wake(self._forked)

    def _answer(self, channel: socket.socket) -> bool:
        """Do what one message says. False when the first channel has closed."""
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE, DESCRIPTORS)
        except ConnectionResetError:
            message, descriptors = b"", []
        if not message:
            return channel is not self._first and self._orphan(channel)
        asked = json.loads(message)
        if "fork" in asked:
            self._fork(channel, asked["fork"], asked["entry"], descriptors)
        elif "signal" in asked:
            for pid, forked in self._forked.items():
                if forked == _Forked(channel, asked["signal"]):
                    self._stopped.sent(pid, asked["number"])
                    os.kill(pid, asked["number"])
        elif "load" in asked:
            import_module(COMMON).load(descriptors.pop())
        elif "tidy" in asked:
            _empty(self._folder)
        else:
            self._selector.register(socket.socket(fileno=descriptors.pop()), selectors.EVENT_READ)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork(self, channel: socket.socket, key: int, entry: str, descriptors: list[int]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid:
            self._forked[pid] = _Forked(channel, key)
            return
        code = 1
        try:
            self.close()
            die_with(server)
            module, _, function = entry.partition(":")
            be_called(f"kernelpair-{function}")
            getattr(import_module(module), function)(*descriptors)
            code = 0
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the other end is gone: this process is about to be killed
            code = 0
        except BaseException:  # noqa: BLE001 - the last place where anything can be said
            traceback.print_exc()
        finally:
            os._exit(code)

    def close(self) -> None:
        """Close what is the server's: at its end, and in a process that it has forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._wake.close()
        self._selector.close()

    def _reap(self) -> None:
        """Report what has ended, and kill what it left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                break
            if os.WIFSTOPPED(status):
                self._stopped.note(pid)
                continue
            forked = self._forked.pop(pid, None)
            if forked is not None:
                report = {"ended": forked.key, "status": os.waitstatus_to_exitcode(status)}
                with suppress(OSError):  # its owner is gone, which the selector is about to say
                    forked.owner.send(json.dumps(report).encode())
        kill_children(but=self._forked)

    def _orphan(self, channel: socket.socket) -> bool:
        """Kill what the owner behind this channel had asked for."""
        self._selector.unregister(channel)
        channel.close()
        for pid, forked in self._forked.items():
            if forked.owner is channel:
                os.kill(pid, signal.SIGKILL)
        return True


def _empty(folder: str) -> None:
    """Remove all that is in a folder."""
    with suppress(OSError):
        for left in os.scandir(folder) if folder else ():
            if left.is_dir(follow_symlinks=False):
                shutil.rmtree(left, ignore_errors=True)
            else:
                os.unlink(left)


def serve(descriptor: int, wakes: bool = False) -> None:
    """Serve the channel with this descriptor, then end everything that was forked. With `wakes` what is stopped goes on: not so a
    worker, whose judge sees that its call does not come back."""
    with suppress(PermissionError):  # the first server has one already
        os.setsid()  # a signal to the group of a worker is none to judges and to other workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inherit_orphans()
    folder = ""
    with suppress(OSError):  # a disk that is full: what is forked uses the folder that there is
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=FOLDER)
        tempfile.tempdir = None
    server = _Server(socket.socket(fileno=descriptor), folder, wakes)
    try:
        server.serve()
    finally:
        signal.set_wakeup_fd(-1)  # while the server still holds what it is: a signal after its end would write to nothing
        kill_children()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        server.close()


def main(descriptor: int, preload: Sequence[str]) -> None:
    """The first server of a run."""
    be_called(f"kernelpair-{serve.__name__}")
    gc.disable()  # what loading makes is here to stay: looking for garbage among it takes a sixth of the time of loading
    for module in (*LOADED, *preload):
        with suppress(Exception):  # the worker that needs it says what is wrong
            import_module(module)
    gc.freeze()  # nor is it looked at in what is forked
    gc.enable()
    serve(descriptor, wakes=True)


class Forked:
    """A process that a server has forked for this one."""

    def __init__(self, server: "ForkServer", key: int) -> None:
        self._server, self._key = server, key

    def wait(self, seconds: float) -> int | None:
        """Its exit status, the negative signal that ended it, or None if it is still running. Raises ServerGone."""
        return self._server.status(self._key, seconds)

    def send(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        with suppress(ServerGone):
            self._server.ask({"signal": self._key, "number": number})

    def kill(self) -> None:
        """End it, and see it gone."""
        self.send(signal.SIGKILL)
        with suppress(ServerGone):
            self.wait(END_SECONDS)


class ForkServer:
    """The asking side of a server."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._channel, self._process = channel, process
        self._keys = count(1)
        self._statuses: dict[int, int] = {}
        self._owner = os.getpid()
        self._asked = False
        self.common = ""
        """What it has loaded for those that it forks (`Candidate.common`)."""

    def fork(self, entry: str, *descriptors: int) -> Forked:
        """A process that calls `module:function` with copies of these descriptors, and ends when the function returns. Raises
        ServerGone."""
        key = next(self._keys)
        self.ask({"fork": key, "entry": entry}, descriptors)
        return Forked(self, key)

    def channel(self) -> socket.socket:
        """Another channel, for a process that is to own what it asks for. Raises ServerGone."""
        ours, theirs = _channel()
        with theirs:
            self.ask({}, [theirs.fileno()])
        return ours

    def for_workers(self) -> "ForkServer":
        """A server forked from this one. Raises ServerGone."""
        ours, theirs = _channel()
        with theirs:
            self.fork(f"{__name__}:serve", theirs.fileno())
        return ForkServer(ours)

    def load(self, descriptor: int) -> None:
        """Let the server load what it is told over the connection with this descriptor (`common.load`). Raises ServerGone."""
        self.ask({"load": 1}, [descriptor])

    def tidy(self) -> None:
        """Let the server empty the temporary folder of the processes that it forks. Raises ServerGone."""
        self.ask({"tidy": 1})

    def ask(self, message: dict[str, int | str], descriptors: Sequence[int] = ()) -> None:
        """Send a request. Raises ServerGone."""
        self._asked = True
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise ServerGone from None

    def status(self, key: int, seconds: float) -> int | None:
        """How a process ended, None if it has not within this time. Raises ServerGone."""
        until = time.monotonic() + seconds
        while key not in self._statuses:
            if not self._says_something(until - time.monotonic()):
                return None
            self._take()
        return self._statuses[key]

    def _says_something(self, seconds: float) -> bool:
        ready = select.poll()  # select() knows no descriptor above 1,023
        ready.register(self._channel, select.POLLIN)
        return bool(ready.poll(max(seconds, 0) * 1000))

    def _take(self) -> None:
        try:
            message = self._channel.recv(MESSAGE)
        except ConnectionResetError:
            message = b""
        if not message:
            raise ServerGone
        ended = json.loads(message)
        self._statuses[ended["ended"]] = ended["status"]

    def serves(self) -> bool:
        """Whether this process can ask it."""
        try:
            while self._owner == os.getpid() and self._says_something(0):
                self._take()
        except (ServerGone, OSError, ValueError):  # gone, or closed here
            return False
        return self._owner == os.getpid()

    def close(self) -> None:
        """Ask for nothing more: what it forked for this process ends."""
        self._channel.close()
        if self._process is not None and self._owner == os.getpid():
            try:
                self._process.wait(END_SECONDS if self._asked else IDLE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()


def _channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


_current: list[ForkServer] = []  # of this process, none or one


def fork_server(preload: Sequence[str] = ()) -> ForkServer:
    """The server of this process, started if there is none. It has loaded what its first caller asked for."""
    if not _current or not _current[0].serves():
        _current[:] = [_start(tuple(preload))]
    return _current[0]


def adopt(descriptor: int) -> None:
    """Make the server behind this channel the one of this process, which was forked from it."""
    _current[:] = [ForkServer(socket.socket(fileno=descriptor))]


def _start(preload: tuple[str, ...]) -> ForkServer:
    ours, theirs = _channel()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = f"from {__name__} import main; main({theirs.fileno()}, {preload!r})"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *(["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []), "-c", command],
            pass_fds=[theirs.fileno()],
            env=WORKERS | os.environ | WAITING | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the leader's group, such as Ctrl-C, is the leader's to handle
        )
    return ForkServer(ours, process)


@atexit.register
def close() -> None:
    """End the server of this process, if it has one."""
    for server in _current:
        server.close()
