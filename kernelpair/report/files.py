"""Files that are whole or not there, whenever the process ends."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class WriteError(OSError):
    """A file that was asked for cannot be written; the message names it and says why."""


def write_whole(path: Path, text: str) -> None:
    """Write beside the path, then take its place in one step. Raises WriteError; what was there before is then as it was."""
    place = path if path.exists() and not path.is_file() else path.resolve()  # of a link, the file that it points to
    partial = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        if place.exists() and not place.is_file():  # a pipe, /dev/null
            place.write_text(text, encoding="utf-8")
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(place)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise WriteError(f"cannot write {path}: {error.strerror or error}") from None


def add_line(path: Path, line: str) -> None:
    """Add a line to a file, which may be new, unless it is there; nothing else of it is written again, and commands that do so at
    the same time wait for each other. Raises WriteError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            file.seek(0)
            there = file.read()
            if line.encode() not in there.splitlines():
                begin = b"\n" if there and not there.endswith(b"\n") else b""
                file.write(begin + line.encode() + b"\n")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}") from None
