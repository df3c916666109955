"""Interleaved timing: every competitor takes its turn in every round, so that a noisy machine disturbs all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LONG_ENOUGH = 2e-3  # seconds of calls in one sample: shorter ones are repeated within it
ROUNDS = (5, 200)  # samples of each competitor, at least and at most
LONG = 10  # times the seconds that were asked for, after which ...
LONG_ROUNDS = 3  # ... that many samples are enough


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of the samples, and their quartiles."""

    median: float
    low: float
    high: float
    samples: int


def interleave(
    competitors: Mapping[str, Callable[[], object]],
    seconds: float,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, Timing]:
    """Time each competitor for about `seconds`, in turns; each is called twice beforehand.

    `before` is called with a competitor's name at the start of each of its turns, untimed.

    >>> sorted(interleave({"a": lambda: None, "b": lambda: sum(range(99))}, 0.01))
    ['a', 'b']
    """
    repeats = {}
    for name, call in competitors.items():
        before(name)
        repeats[name] = repeats_of(call)
    samples: dict[str, list[float]] = {name: [] for name in competitors}
    start, budget = time.perf_counter(), seconds * len(competitors)
    least, most = ROUNDS
    for turn in range(most):
        taken = time.perf_counter() - start
        if (turn >= least and taken > budget) or (turn >= LONG_ROUNDS and taken > LONG * budget):
            break
        for name, call in competitors.items():
            before(name)
            samples[name].append(sample(call, repeats[name]))
    return {name: _summary(of_one) for name, of_one in samples.items()}


def sample(call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, of `repeats` in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def repeats_of(call: Callable[[], object]) -> int:
    """How often a call is made within one sample."""
    call()
    return max(1, min(10_000, int(LONG_ENOUGH / max(sample(call, 1), 1e-7))))


def _summary(samples: list[float]) -> Timing:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))
