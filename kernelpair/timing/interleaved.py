"""Interleaved timing: every competitor takes its turn in every round, so that a noisy machine disturbs all alike."""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LIBC = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)
LONG_ENOUGH = 2e-3  # seconds of calls in one sample: shorter ones are repeated within it
ROUNDS = (5, 200)  # samples of each competitor, at least and at most
LONG = 10  # times the seconds that were asked for, after which ...
LONG_ROUNDS = 3  # ... that many samples are enough
FAR_BEHIND = 10  # times as long as the fastest: few samples of a competitor so far behind are enough ...
FAR_SECONDS = 0.1  # ... where it takes that long
FAR_ROUNDS = 2  # that many: the machine may have paused in the first
SETTLE_SECONDS = 0.02  # until the threads of a process that has run an OpenMP loop wait asleep instead of spinning
WAKE_SECONDS = 0.02  # of untimed calls after that: a processor that has slept takes milliseconds to be back at its speed
TURN_SECONDS = 0.01  # of samples, at least one, in a turn for which another process had to fall silent


def keep_freed_memory() -> None:
    """Let malloc keep freed memory, as the allocators of engines do. Otherwise a result of some megabytes may get new pages
    at each call, depending on how earlier competitors left the heap, and page faults are most of the time that is
    measured."""
    if hasattr(LIBC, "mallopt"):  # of glibc; another libc times as it is
        LIBC.mallopt(M_MMAP_MAX, 0)
        LIBC.mallopt(M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Give freed memory back to the system. It is called before a row, because the weights of all earlier rows add up to many
    gigabytes."""
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of the samples, and their quartiles."""

    median: float
    low: float
    high: float
    samples: int


class Lost(Exception):
    """A competitor has ended before its time; the message says how."""


class Away:
    """A competitor in another process, which is timed there. Both methods raise Lost."""

    @property
    def process(self) -> object:
        """Stands for the process: before another one has its turn, this one is given time to fall silent."""
        raise NotImplementedError

    def repeats(self) -> int:
        raise NotImplementedError

    def sample(self, repeats: int) -> float:
        raise NotImplementedError


Competing = Callable[[], object] | Away


def interleave(
    competitors: Mapping[str, Competing],
    seconds: float,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, Timing]:
    """Time each competitor for about `seconds`, in turns; each is called twice beforehand. A competitor that is lost is left
    out. One that is far behind has two samples: samples of a second each would take most of the time of a contest, and
    decide nothing.

    `before` is called with a competitor's name at the start of each of its turns, untimed. A turn is one sample, or some of
    them where competitors are in several processes.

    >>> sorted(interleave({"a": lambda: None, "b": lambda: sum(range(99))}, 0.01))
    ['a', 'b']
    """
    left, repeats, turns = dict(competitors), {}, _Turns(before)
    for name, call in competitors.items():
        turns.begin(name, call)
        try:
            repeats[name] = repeats_of(call)
        except Lost:
            del left[name]
    samples: dict[str, list[float]] = {name: [] for name in left}
    spent = dict.fromkeys(left, 0.0)
    least, most = ROUNDS
    turn_seconds = TURN_SECONDS if any(isinstance(call, Away) for call in left.values()) else 0.0
    for turn in range(most):
        taken, budget = sum(spent[name] for name in left), seconds * len(left)
        if (turn >= least and taken > budget) or (turn >= LONG_ROUNDS and taken > LONG * budget):
            break
        for name, call in list(left.items()):
            switched = turns.begin(name, call)
            try:
                if switched:
                    turns.wake(call, repeats[name])
                start = time.perf_counter()
                samples[name] += _samples(call, repeats[name], turn_seconds)
                spent[name] += time.perf_counter() - start
            except Lost:
                del left[name], samples[name]
        for name in far_behind({name: min(samples[name]) for name in left}) if turn + 1 >= FAR_ROUNDS else ():
            del left[name]
    return {name: _summary(of) for name, of in samples.items()}


def far_behind(seconds: Mapping[str, float]) -> set[str]:
    """The competitors that are so much slower than the fastest that their time decides nothing.

    >>> far_behind({"a": 0.01, "b": 0.09, "c": 0.2})
    {'c'}
    """
    fastest = min(seconds.values(), default=0.0)
    return {name for name, taken in seconds.items() if taken > max(FAR_SECONDS, FAR_BEHIND * fastest)}


class _Turns:
    """Whose turn it is."""

    def __init__(self, before: Callable[[str], object]) -> None:
        self._before = before
        self._process: object = None

    def begin(self, name: str, call: Competing) -> bool:
        """Begin a turn; whether it is of another process than the last one, which has fallen silent now."""
        process = call.process if isinstance(call, Away) else None
        switched, self._process = process is not self._process, process
        if switched:
            time.sleep(SETTLE_SECONDS)
        self._before(name)
        return switched

    def wake(self, call: Competing, repeats: int) -> None:
        """Untimed calls."""
        _samples(call, repeats, WAKE_SECONDS)


def _samples(call: Competing, repeats: int, seconds: float) -> list[float]:
    """Samples one after another for that long, at least one."""
    samples, until = [sample(call, repeats)], time.perf_counter() + seconds
    while time.perf_counter() < until:
        samples.append(sample(call, repeats))
    return samples


def sample(call: Competing, repeats: int) -> float:
    """Seconds of one call, of `repeats` in a row."""
    if isinstance(call, Away):
        return call.sample(repeats)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def repeats_of(call: Competing) -> int:
    """How often a call is made within one sample."""
    if isinstance(call, Away):
        return call.repeats()
    call()
    return max(1, min(10_000, int(LONG_ENOUGH / max(sample(call, 1), 1e-7))))


def _summary(samples: list[float]) -> Timing:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))
