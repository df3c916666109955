"""A command whose kernels run in its own process: a second process waits for it, and says so if a kernel ends it."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from kernelpair.call.system import die_with, signal_name
from kernelpair.interruption import take_over


def supervised(run: Callable[[], int], unfinished: int) -> int:
    """The status of `run`, which happens in a child; `unfinished`, with a word on stderr, if that never came to its end.

    Without this, a kernel that calls `_exit(0)` would end the command as if all were well.
    """
    ended, tells = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.close(ended)
        die_with(parent)
        status = run()
        os.write(tells, b"!")
        return status
    os.close(tells)

    def hand_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    take_over(hand_on)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(ended, False)  # what a kernel has forked may hold the other end for ever
    with suppress(BlockingIOError):
        if os.read(ended, 1):
            return code
    how = f"status {code}" if code >= 0 else signal_name(-code)
    says = f"a kernel ended the process it ran in ({how}); .kernelpair/running-{child}.json holds the case"
    print(f"kernelpair: {says}", file=sys.stderr)
    return unfinished
