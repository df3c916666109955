"""The standard streams of a command: there from its beginning, and written to without an error to its end."""

import codecs
import io
import os
import sys
from typing import Any

OUTPUTS = ("stdout", "stderr")
SPELT = {"…": "...", "×": "x", "–": "-", "—": "-", "│": "|", "─": "-"} | {bar: str(i) for i, bar in enumerate("▁▂▃▄▅▆▇█", 1)}
"""What stands for a character in an encoding that does not have it, as that of a terminal in the locale C."""
SPELL_OUT = "kernelpair.spell_out"  # among the ways of codecs to handle errors


def open_streams() -> None:
    """Give a process that was started without standard streams ones that lead nowhere, before its own files get their
    numbers."""
    for number, stream in enumerate(("stdin", *OUTPUTS)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
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
            stream.encoding, SPELL_OUT,
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


def spelt_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """What to write for the characters at fault: as in SPELT, any others by their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(SPELT.get(each) or each.encode("ascii", "backslashreplace").decode() for each in wrong), error.end


codecs.register_error(SPELL_OUT, spelt_out)
