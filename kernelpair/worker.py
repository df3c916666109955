"""The process that runs a candidate: it maps the judge's arena, arms the guard pages, makes the call and says what came back."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from kernelpair.candidate import Candidate
from kernelpair.layout import reach
from kernelpair.memory import Arena
from kernelpair.place import Placed

PLAIN = (bool, int, float, str, tuple, list, type(None))  # what a call may return beside tensors


@dataclass(frozen=True)
class Request:
    """One call: arguments by name, pages to guard, and where in the arena results may go."""

    arguments: Mapping[str, Any]
    guards: list[int]
    results_at: int
    results: tuple[str, ...]
    threads: int


@dataclass
class Returned:
    """A result tensor: a contiguous copy in the arena, and how the original lay in memory."""

    copy: Placed
    strides: tuple[int, ...]
    aliases: str = ""
    """The argument whose memory it shares, which no contract allows."""


@dataclass
class Outcome:
    """What came back from a call.

    `status` is ok, exception, crash, hang or harness (the worker itself failed); `error` and `message` describe the others.
    """

    status: str
    error: str = ""
    message: str = ""
    bases: tuple[str, ...] = ()
    """Names of the exception's classes, so that a subclass counts."""
    results: dict[str, Any] = field(default_factory=dict)
    """Name -> Returned, or a plain value."""
    moved: tuple[str, ...] = ()
    """Arguments whose sizes, strides or data pointer the call changed."""
    ran: str | None = None


def serve(connection: Connection, descriptor: Any, capacity: int, candidate: Candidate, stderr_path: str) -> None:
    """Answer requests until the judge hangs up. Runs in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(stderr_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 2)
    os.dup2(log, 1)
    try:
        caller = Caller(candidate, Arena(descriptor.detach(), capacity))
        connection.send(None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the judge reports it
        connection.send(Outcome("harness", type(error).__name__, f"the candidate does not load: {error}"))
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(caller.call(request, guarded=True))


class Caller:
    """Makes calls of one candidate in this process."""

    def __init__(self, candidate: Candidate, arena: Arena) -> None:
        self.arena = arena
        candidate.enter()
        self.function: Callable[..., Any] = candidate.load()
        self.observe = candidate.observer()
        self.threads = 0

    def call(self, request: Request, *, guarded: bool) -> Outcome:
        """Build the views, call, and collect. An exception of the candidate is an outcome; a signal is the judge's to see."""
        if request.threads != self.threads:
            torch.set_num_threads(request.threads)
            self.threads = request.threads
        arguments = {name: self._view(value) for name, value in request.arguments.items()}
        shapes = {name: _shape(value) for name, value in arguments.items() if isinstance(value, Tensor)}
        self.observe(True)
        if guarded:
            self.arena._cursor = max(self.arena._cursor, request.results_at)
            self.arena.protect(request.guards)
        try:
            result = self.function(**arguments)
            outcome = Outcome("ok", results=self._collect(request, result, arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is judged by its class
            bases = tuple(base.__name__ for base in type(error).__mro__)
            outcome = Outcome("exception", type(error).__name__, str(error), bases)
        finally:
            if guarded:
                self.arena.unprotect()
        outcome.moved = tuple(name for name, shape in shapes.items() if shape != _shape(arguments[name]))
        outcome.ran = self.observe(False)
        return outcome

    def _view(self, value: Any) -> Any:
        if isinstance(value, Placed):
            return self.arena.tensor(value.dtype, value.start, value.sizes, value.strides)
        if isinstance(value, Tensor):  # not placed: on another device, say
            return value
        return value

    def _collect(self, request: Request, result: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        collected: dict[str, Any] = {}
        at = request.results_at
        for name, value in named_results(result, request.results).items():
            if not isinstance(value, Tensor):
                if not isinstance(value, PLAIN):
                    raise TypeError(f"result {name} is a {type(value).__name__}, not a tensor or a plain value")
                collected[name] = value
                continue
            strides = tuple(value.stride())
            at = -(-at // 64) * 64
            if at + value.numel() * value.element_size() > self.arena.capacity:
                raise MemoryError(f"result {name} of shape {list(value.shape)} does not fit into the arena")
            sizes = tuple(value.shape)
            copy = Placed(value.dtype, at, sizes, tuple(torch.empty(sizes, device="meta").stride()))
            self.arena.tensor(copy.dtype, at, sizes, copy.strides).copy_(value)
            collected[name] = Returned(copy, strides, _aliased(value, arguments))
            at += value.numel() * value.element_size()
        return collected


def named_results(result: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The results of a call by name: of None, one value, a tuple, or a mapping."""
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return dict(result)
    values = result if isinstance(result, tuple) else (result,)
    if len(values) != len(names):
        raise TypeError(f"the call returned {len(values)} values, the contract names {len(names)}: {', '.join(names)}")
    return dict(zip(names, values))


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride())


def _aliased(value: Tensor, arguments: Mapping[str, Any]) -> str:
    """The argument whose elements the result begins among; of one that lies elsewhere in the arena, the first argument."""
    tensors = {name: tensor for name, tensor in arguments.items() if isinstance(tensor, Tensor) and tensor.numel()}
    address = value.untyped_storage().data_ptr()
    sharing = {name: tensor for name, tensor in tensors.items() if tensor.untyped_storage().data_ptr() == address}
    if not value.numel() or not sharing:
        return ""
    for name, tensor in sharing.items():
        span = reach(tensor.shape, tensor.stride()) * tensor.element_size()
        if 0 <= value.data_ptr() - tensor.data_ptr() < span:
            return name
    return next(iter(sharing))


def stderr_tail(path: str, lines: int = 3) -> str:
    """The last lines that a dead worker wrote."""
    try:
        with open(path, errors="replace") as log:
            return " | ".join(line.strip() for line in log.read().splitlines()[-lines:] if line.strip())
    except OSError:
        return ""



