"""Whether the machine has anything else to do, which makes times long and uneven."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from statistics import mean, median

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from kernelpair.timing.compare import NOISE

LOOKS, BETWEEN_LOOKS = 20, 5e-3  # at the run queue, while this process sleeps
LOOP_SECONDS = 0.2
BLOCK = bytes(1 << 20)  # hashed at once: it lies in a core's own cache, and Python's lock is free for a millisecond
WAITING = 0.25  # other processes: every core is wanted here, so that a call waits for a core a quarter of the time
LEAST_SHARE = 1.0 - NOISE  # of the cores: what is lost beyond that looks like a slower kernel
MOST_SPREAD = 2.0 * NOISE  # of a loop that always does the same work: so is the ratio of two times that are both off by noise


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Load:
    """What else went on for some tenths of a second."""

    cores: int
    others: float
    """Other processes that wanted a core, on average."""
    share: float
    """Of the cores that a loop on each of them got."""
    spread: float
    """Distance of the quartiles of the loop's times, as a fraction of their median."""

    @property
    def busy(self) -> bool:
        """Whether times that use every core are disturbed by more than is taken for noise."""
        return self.shared or self.spread > MOST_SPREAD

    @property
    def shared(self) -> bool:
        """Whether something took the cores away, unlike a speed that varies by itself."""
        return self.others > WAITING or self.share < LEAST_SHARE

    @property
    def says(self) -> str:
        """The three figures in one line."""
        cores = f"{self.cores} cores" if self.cores > 1 else "only core"
        return (
            f"busy machine: {self.others:.1f} other processes want its {cores}; a loop on each core got {self.share:.0%} of it, "
            f"in times that vary by {self.spread:.0%}; the times here say little"
        )


def look(cores: int | None = None) -> Load:
    """Look at the run queue, then let a loop spin on each core. Takes a third of a second."""
    wanted = cores or len(os.sched_getaffinity(0))
    others = mean(_others() for _ in range(LOOKS))
    with ThreadPoolExecutor(wanted) as pool:
        spun = list(pool.map(lambda _: _spin(), range(wanted)))
    times = sorted(time for _, of_one in spun for time in of_one)
    return Load(wanted, round(others, 2), round(mean(share for share, _ in spun), 3), round(_spread(times), 3))


def _others() -> int:
    """Processes that run or wait for a core, without this one."""
    time.sleep(BETWEEN_LOOKS)
    running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    return max(int(running) - 1, 0)


def _spin() -> tuple[float, list[float]]:
    """The share of a core that this thread got, and the seconds of each block."""
    times: list[float] = []
    started, worked = time.perf_counter(), time.thread_time()
    while (begun := time.perf_counter()) - started < LOOP_SECONDS or len(times) < 4:
        sha256(BLOCK).digest()
        times.append(time.perf_counter() - begun)
    return min((time.thread_time() - worked) / (time.perf_counter() - started), 1.0), times


def _spread(ordered: Sequence[float]) -> float:
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)
