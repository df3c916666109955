"""The same call again and again in one process, each compared with the first, bit for bit."""

import ctypes
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernelpair.call.memory import Arena
from kernelpair.call.system import printable


@dataclass(frozen=True)
class Stretch:
    """Bytes of the arena that are restored before each call, and, if they are `judged`, compared after it."""

    name: str
    first: int
    last: int
    judged: bool = True


@dataclass(frozen=True)
class Repeats:
    """How often a call is made again: so many times, or for a slow call as often as the time allows, but at least once."""

    calls: int
    seconds: float
    stretches: Sequence[Stretch]
    arbitrary: Collection[str] = ()
    """Results that no two calls need to agree about."""


@dataclass(frozen=True)
class Repeated:
    """How many calls were made, including the first; where the last one differed from the first, and how."""

    calls: int
    where: str = ""
    says: str = ""


class Repetition:
    """Makes a series. Begun before the first call, for it keeps what the arena holds then."""

    def __init__(self, again: Repeats, arena: Arena) -> None:
        self._again, self._arena = again, arena
        self._before = [arena.read(stretch.first, stretch.last) for stretch in again.stretches]

    def run(self, call: Callable[[], Any], first: Any, named: Callable[[Any], dict[str, Any]]) -> Repeated:
        """Make the further calls, up to one that differs from `first`, the first one's results. `named` gives results by
        name."""
        memory, results = self._memory(), self._image(named(first))
        until, made = time.monotonic() + self._again.seconds, 1
        while made <= self._again.calls and (made == 1 or time.monotonic() < until):
            for stretch, content in zip(self._again.stretches, self._before):
                self._arena.write(stretch.first, content)
            answer = call()
            made += 1
            try:
                now = self._image(named(answer))
            except Exception as error:  # noqa: BLE001 - what was returned does not fit the contract any more
                return Repeated(made, "", printable(f"{type(error).__name__}: {error}"))
            wrong = _difference(results, now) or _difference(memory, self._memory())
            if wrong:
                return Repeated(made, *wrong)
        return Repeated(made)

    def _memory(self) -> dict[tuple[str, int], Any]:
        """What lies in the arena: argument and first byte -> bytes."""
        read = self._arena.read
        return {(each.name, each.first): read(each.first, each.last) for each in self._again.stretches if each.judged}

    def _image(self, results: Mapping[str, Any]) -> dict[tuple[str, int], Any]:
        """Results as they are compared: a tensor by form and bits, anything else by how it prints, for NaN equals nothing."""
        compared = {name: value for name, value in results.items() if name not in self._again.arbitrary}
        return {(name, 0): _bits(value) if isinstance(value, Tensor) else repr(value) for name, value in compared.items()}


def _bits(value: Tensor) -> tuple[Any, ...]:
    dense = value.detach().contiguous()
    return value.dtype, value.shape, value.stride(), ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


def _difference(first: dict[tuple[str, int], Any], now: dict[tuple[str, int], Any]) -> tuple[str, str] | None:
    """The name of what differs in the two, and how; None if nothing does."""
    if first == now:
        return None
    key = next(key for key in (*first, *now) if first.get(key) != now.get(key))
    name = key[0]
    one, other = ((each[-1] if isinstance(each, tuple) else each) for each in (first.get(key), now.get(key)))
    if isinstance(one, bytes) and isinstance(other, bytes) and len(one) == len(other):
        return name, f"{sum(a != b for a, b in zip(one, other))} of {len(one)} bytes differ"
    return name, "another form or value"
