"""The same call again and again in one process, each compared with the first, bit for bit; and what each makes it keep."""

import ctypes
import gc
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernelpair.call.heap import LEAST_OF_MANY, held_bytes, kept_by_each
from kernelpair.call.memory import Arena
from kernelpair.call.system import words_of

WEIGHED_CALLS = 50  # after so many calls what the process holds is read;
WEIGHINGS = 4  # as often at least, before a growth is one: a cache that fills grows too


class NoAnswer(Exception):
    """A call raised; what it raised is in the words of this."""


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
    keeps: int = 0
    """Bytes that each call kept on an average, at least; 0 if that is less than the smallest piece, or the calls were few."""


class Repetition:
    """Makes a series. Begun before the first call, for it keeps what the arena holds then."""

    def __init__(self, again: Repeats, arena: Arena) -> None:
        self._again, self._arena = again, arena
        self._before = [arena.read(stretch.first, stretch.last) for stretch in again.stretches]

    def run(self, call: Callable[[], Any], first: Any, named: Callable[[Any], dict[str, Any]]) -> Repeated:
        """Make the further calls, up to one that differs from `first`, the first one's results. `named` gives results by
        name."""
        memory, results, held = self._memory(), self._image(named(first)), []

        def wrong() -> tuple[str, str] | None:
            for stretch, content in zip(self._again.stretches, self._before):
                self._arena.write(stretch.first, content)
            answer = call()
            try:
                now = self._image(named(answer))
            except NoAnswer as none:
                return "", str(none)
            except Exception as error:  # noqa: BLE001 - what was returned does not fit the contract any more
                return "", f"{type(error).__name__}: {words_of(error)}"
            return _difference(results, now) or _difference(memory, self._memory())

        until, made = time.monotonic() + self._again.seconds, 1
        while made <= self._again.calls and (made == 1 or time.monotonic() < until):
            made += 1
            if differs := wrong():
                return Repeated(made, *differs)
            if made % WEIGHED_CALLS == 0:
                held.append(held_bytes())
        if len(held) <= WEIGHINGS or kept_by_each([held[1], held[-1]]) < LEAST_OF_MANY * WEIGHED_CALLS * (len(held) - 2):
            return Repeated(made)
        return Repeated(made + WEIGHINGS * WEIGHED_CALLS, keeps=_kept(wrong))

    def _memory(self) -> dict[tuple[str, int], Any]:
        """What lies in the arena: argument and first byte -> bytes."""
        read = self._arena.read
        return {(each.name, each.first): read(each.first, each.last) for each in self._again.stretches if each.judged}

    def _image(self, results: Mapping[str, Any]) -> dict[tuple[str, int], Any]:
        """Results as they are compared: a tensor by form and bits, anything else by how it prints, for NaN equals nothing."""
        compared = {name: value for name, value in results.items() if name not in self._again.arbitrary}
        return {(name, 0): _bits(value) if isinstance(value, Tensor) else repr(value) for name, value in compared.items()}


def _kept(again: Callable[[], object]) -> int:
    """Bytes that each call keeps on an average, at least, when what only cycles of Python objects hold is freed in between."""
    held = []
    for _ in range(WEIGHINGS):
        for _ in range(WEIGHED_CALLS):
            again()
        gc.collect()
        held.append(held_bytes())
    each = kept_by_each(held) // WEIGHED_CALLS
    return each if each >= LEAST_OF_MANY else 0


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
