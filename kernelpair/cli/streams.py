"""The standard streams of a command: there from its beginning, and written to without an error to its end."""

import io
import os
import sys
from typing import Any

OUTPUTS = ("stdout", "stderr")


def open_streams() -> None:
    """Give a process that was started without standard streams ones that lead nowhere, before its own files get their
    numbers."""
    for number, stream in enumerate(("stdin", *OUTPUTS)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, stream, os.fdopen(number, "w" if number else "r", closefd=False))


def outlive_readers() -> None:
    """Go on without a word when the reader of a stream is gone, as that of `| head` is: the exit status and the files are still
    wanted."""
    for name in OUTPUTS:
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # somebody takes what is written in this process
        stream.flush()
        patient = io.TextIOWrapper(
            io.BufferedWriter(_Patient(stream.fileno(), "w", closefd=False)),
            stream.encoding, "backslashreplace",
            line_buffering=stream.line_buffering or name == "stderr",  # it is not flushed when a forked process ends
        )
        setattr(sys, name, patient)


class _Patient(io.FileIO):
    """A descriptor that leads nowhere from when nobody reads from it any more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)
