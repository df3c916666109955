"""The process that runs a candidate: it maps the judge's arena, makes the calls that it is asked for, and says what came
back."""

import ctypes
import io
import os
import signal
import sys
from multiprocessing.connection import Connection

from kernelpair.call import fault
from kernelpair.call.caller import Caller
from kernelpair.call.memory import Arena
from kernelpair.call.outcome import Outcome
from kernelpair.call.system import inherit_orphans, printable, shortened, stand, words_of
from kernelpair.call.whereabouts import answer_signals

LOG_BYTES = 1 << 20  # the end of what a worker wrote, where its last words are looked for
LINE_BUFFERED = 1  # _IOLBF of stdio.h
CLOSED_CHANNEL = 193  # a worker's exit status after a call that closed the connection to the judge; kernels end with smaller ones


def work(descriptor: int, arena: int, log: int) -> None:
    """Answer requests until the judge hangs up. Runs in the worker; the descriptors are of its connection, arena and log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inherit_orphans()
    os.ftruncate(log, 0)
    os.lseek(log, 0, os.SEEK_SET)
    os.dup2(log, 2)
    os.dup2(log, 1)
    answer_signals()
    _print_at_once()
    connection: Connection = Connection(descriptor)
    channel = _behind(descriptor)
    connection.send(os.getpid())  # first: the judge looks whether this process gets a processor
    try:
        capacity, candidate, standing = connection.recv()
        stand(standing)
        shared = Arena(arena, capacity)
        caller = Caller(candidate, shared, note_faults=True)
        connection.send(None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the judge reports it
        says = f"the candidate does not load: {type(error).__name__}: {words_of(error)}"
        connection.send(Outcome("harness", type(error).__name__, says))
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            outcome = caller.call(request, guarded=True)
        finally:
            if _behind(descriptor) != channel:
                os._exit(CLOSED_CHANNEL)
        connection.send(outcome)


def _print_at_once() -> None:
    """Let each line that the candidate prints be in the log, from Python as from C, also if the call ends the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, ctypes.c_size_t(0))


def _behind(descriptor: int) -> int:
    """The inode of what a descriptor leads to, 0 where it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0


def written(log: int, begin: int = 0) -> str:
    """The last that a worker wrote, from byte `begin` of its log on."""
    return os.pread(log, LOG_BYTES, max(os.fstat(log).st_size - LOG_BYTES, begin)).decode(errors="replace")


def stderr_tail(log: str, lines: int = 3) -> str:
    """The last lines of it; of a sanitizer's report, which ends in many frames, the line that says what."""
    written = [line.strip() for line in fault.without_frames(log).splitlines() if line.strip()]
    says = [line for line in written if "runtime error: " in line or "ERROR: AddressSanitizer: " in line]
    return printable(shortened(" | ".join(says[:1] or written[-lines:])))
