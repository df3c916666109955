"""Benches of a kernel as it is against the kernel of the base: two processes, sample by sample in turns."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from kernelpair.call.place import resolve
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.suite import Place
from kernelpair.timing.interleaved import keep_freed_memory, repeats_of, sample

Side = Callable[[Connection, Place, str, Candidate], None]
SAMPLES = (7, 60)  # of each side, at least and at most
NOISE = 0.05  # a ratio below 1.05 is noise whatever the quartiles say


@dataclass(frozen=True)
class Ratio:
    """Time now over time at the base, of one row: the median of the samples' ratios, and their quartiles."""

    pair: str
    row: str
    median: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Three of four samples are slower, and by more than noise."""
        return self.low > 1.0 and self.median > 1.0 + NOISE


class NewError(RuntimeError):
    """There is nothing to compare with: the base has no such pair."""


def compare(place: Place, pair: str, now: Candidate, then: Candidate, seconds: float) -> Ratio:
    """Time the pair's first bench row with both versions. Raises RuntimeError where one of them cannot run it, NewError where the
    base has none."""
    with versions(_side, place, pair, now, then) as sides:
        row, row_then = [answer(connection) for connection in sides]
        if row_then is None:
            raise NewError(f"the base has no {pair}")
        if row != row_then:
            raise RuntimeError(f"the base's first row of {pair} is another one: {row_then}")
        ratios: list[float] = []
        until = time.monotonic() + seconds
        while len(ratios) < SAMPLES[0] or (len(ratios) < SAMPLES[1] and time.monotonic() < until):
            if len(ratios) % 2:  # who goes first changes, so that neither profits
                base, ours_now = _ask(sides[1]), _ask(sides[0])
            else:
                ours_now, base = _ask(sides[0]), _ask(sides[1])
            ratios.append(ours_now / base)
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return Ratio(pair, str(row), statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


@contextmanager
def versions(side: Side, place: Place, pair: str, *candidates: Candidate) -> Iterator[list[Connection]]:
    """A process for each version of a candidate, which runs `side`; the connections to them."""
    context = get_context("spawn")
    started = []
    for version in candidates:
        ours, theirs = context.Pipe()
        process = context.Process(target=side, args=(theirs, place, pair, version), daemon=True)
        process.start()
        theirs.close()
        started.append((ours, process))
    try:
        yield [ours for ours, _ in started]
    finally:
        for ours, process in started:
            ours.close()
            process.join(2)
            process.kill()


def _ask(connection: Connection) -> float:
    connection.send(True)
    return float(answer(connection))


def answer(connection: Connection) -> Any:
    """What a version's process says. Raises RuntimeError for an exception that it sends, and where it died."""
    try:
        said = connection.recv()
    except EOFError:
        raise RuntimeError("a bench process died") from None
    if isinstance(said, Exception):
        raise RuntimeError(str(said))
    return said


def _side(connection: Connection, place: Place, pair: str, candidate: Candidate) -> None:
    """One version's process: prepares the row, then times a sample whenever it is asked."""
    keep_freed_memory()
    try:
        candidate.enter()  # before the suite is there: it may come from a copy
        pairs = place.load().pairs()
        if pair not in pairs:  # the base's
            connection.send(None)
            return
        found = pairs[pair]
        arguments = resolve(found.bench.rows[0].arguments())
        call = prepared(found, found.bench.rows[0], arguments, candidate)
        repeats = repeats_of(call)
        connection.send(found.bench.rows[0].name)
        while True:
            connection.recv()
            connection.send(sample(call, repeats))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side says it
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def prepared(pair: Pair, row: BenchRow, given: Inputs, candidate: Candidate) -> Callable[[], object]:
    """What is timed of the suite's own side."""
    prepare = row.prepare or pair.bench.prepare
    if prepare is not None:
        return prepare(given)
    return in_order(candidate.load(), given)


def in_order(function: Callable[..., object], given: Inputs) -> Callable[[], object]:
    """The call with its arguments by position, as engines make it: names cost torch's dispatcher up to a microsecond. Defaults
    stand where arguments before the last one are left out."""
    try:
        bound = signature(function).bind(**given)
    except (TypeError, ValueError):  # it does not tell its parameters, or will itself say what it thinks of these
        return partial(function, **given)
    names = [name for name, each in bound.signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    count = max((names.index(name) + 1 for name in given if name in names), default=0)
    bound.apply_defaults()
    return partial(function, *bound.args[:count], **{name: given[name] for name in given if name not in names})
