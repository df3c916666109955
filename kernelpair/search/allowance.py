"""Time for what is said of a failure, which does not depend on what else a machine does."""

import os
import time

from kernelpair.call.system import below, waited_for_processor

PATIENCE = 4.0  # times these seconds: so much longer may it take while processes wait for a processor


class Allowance:
    """So many seconds of work. For as long as this process or one below it waits for a processor that others have, no time
    passes."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begun, self._before = seconds, time.monotonic(), _waits()

    def used_up(self) -> bool:
        """Whether nothing is left."""
        passed = time.monotonic() - self._begun
        if passed < self._seconds:
            return False
        waited = sum(max(0.0, now - self._before.get(pid, 0.0)) for pid, now in _waits().items())
        return passed - min(waited, PATIENCE * self._seconds) >= self._seconds


def _waits() -> dict[int, float]:
    """This process and those below it -> seconds that each has waited for a processor."""
    own = os.getpid()
    return {pid: waited_for_processor(pid) for pid in (own, *below(own))}
