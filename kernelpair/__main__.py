"""The process of the command: `kernelpair` and `python -m kernelpair`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command of this process. Ctrl-C while its modules are still being imported ends it, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # neither ignored nor somebody's
        signal.signal(signal.SIGINT, _leave)
    from kernelpair.cli import main as run

    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"kernelpair: interrupted before it began\n")
    os._exit(128 + number)  # as a shell says it of a process that the signal ended


if __name__ == "__main__":
    sys.exit(main())
