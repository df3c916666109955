"""What a worker was doing when a signal killed it: the address, the access, the instruction and the frames above it.

A Python handler cannot run between a fault and the death of the process. So the worker installs a few machine instructions: they
copy what the kernel says of the fault into the last page of the arena, which the judge maps too, let glibc print the frames to
the worker's log, and return; the instruction then faults once more, under the default action. A signal that was sent, as by
abort(), is sent again.
"""

import ctypes
import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from kernelpair.call import torch_memory
from kernelpair.call.memory import PAGE, Arena
from kernelpair.names import count

SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
SENT = {each.name for each in signal.Signals} - {each.name for each in (*SIGNALS, signal.SIGTRAP, signal.SIGSYS)}
"""Names of signals that no instruction raises: somebody sends them."""
ASKED = signal.SIGSTKFLT
"""Sent to a process that does not answer, so that it notes where it is, and ends. Nothing else sends it, and it dumps no core."""
NOTE = np.dtype([(name, "<i8") for name in ("signal", "address", "code", "instruction", "error", "at")])
FRAMES_AT = 64  # in the note, behind its fields
MOST_FRAMES = 24
SA_SIGINFO, SA_ONSTACK, SA_RESETHAND = 0x4, 0x08000000, 0x80000000
WRITES, FETCHES = 0x2, 0x10  # bits of the error code that the CPU gives a page fault
SI_TKILL = -6  # sent to a thread, as abort() does to its own
SI_KERNEL = 0x80  # no page fault: an address that is none, or an operand that must be aligned and is not
NULL = 1 << 16  # an address below this was a null pointer once
FRAME = re.compile(r"^(?P<file>/[^()]*?)(\((?P<symbol>[^()+]*)\+(?P<offset>0x[0-9a-f]+)\))? ?\[(?P<address>0x[0-9a-f]+)\]$")
PRINTED_FRAME = re.compile(r"^(/[^()]*(\([^()]*\))? ?)?\[0x[0-9a-f]+\]$")
TOLD = 4  # frames in a message
MACHINERY = ("libffi", "_ctypes", "libpython", "python", "libtorch", "libc10", "libgomp", "libc.so", "libc-", "libstdc++",
             "ld-linux")
"""Beginnings of the names of files that only lead to a kernel, or are called by one."""

_libc = ctypes.CDLL(None, use_errno=True)


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@dataclass(frozen=True)
class Frame:
    """One place in the code: its file, and there the symbol (empty where none is exported) and the distance from it."""

    file: str
    symbol: str
    offset: int
    address: int

    def __str__(self) -> str:
        function, line = _source_of(self.file, self.symbol, self.offset)
        name = function or self.symbol or f"{os.path.basename(self.file)}+{self.offset:#x}"
        return f"{name} ({line})" if line else name


@dataclass(frozen=True)
class Fault:
    """One fatal signal."""

    signal: int
    code: int
    address: int
    error: int
    arena: int
    """Where the arena begins in the worker."""
    frames: tuple[Frame, ...]
    """The instruction that faulted first, if its library could be named; then the calls: a byte before where each returns to,
    for a call that never returns may be the last instruction of its line."""

    @property
    def access(self) -> str:
        """reads, writes or jumps to."""
        return "jumps to" if self.error & FETCHES else "writes" if self.error & WRITES else "reads"


@dataclass(frozen=True)
class Extent:
    """A buffer in the arena, in bytes from its start, and whose it is."""

    start: int
    end: int
    arguments: Sequence[str]

    def distance(self, offset: int) -> int:
        """Bytes between it and an offset in the arena; 0 inside and at either end."""
        return max(self.start - offset, offset - self.end, 0)


def install(arena: Arena) -> None:
    """Note fatal signals of this process in `arena` from now on, but for those that somebody handles already.

    Does nothing on other machines than x86-64 Linux.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    instructions = _instructions(arena.address + arena.limit)
    code = _page(instructions, executable=True)
    _let_unwind(code, len(instructions))
    stack = _Stack(_page(b"", 16 * PAGE), 0, 16 * PAGE)  # of the main thread, for a stack that overflows
    _libc.sigaltstack(ctypes.byref(stack), None)
    action = _SigAction(code, flags=ctypes.c_int(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND - (1 << 32)).value)
    for number in (*SIGNALS, ASKED):
        known = _SigAction()
        _libc.sigaction(int(number), None, ctypes.byref(known))
        if known.handler is None and _libc.sigaction(int(number), ctypes.byref(action), None):
            raise OSError(ctypes.get_errno(), f"sigaction({number.name})")


def forget(arena: Arena) -> None:
    """Nothing is known of a fault any more."""
    arena.write(arena.limit, bytes(NOTE.itemsize))


def noted(arena: Arena, log: str) -> Fault | None:
    """The fault that killed the worker of this arena, if its handler came to run; `log` is what the worker printed."""
    note = np.frombuffer(arena.read(arena.limit, arena.limit + NOTE.itemsize), NOTE)[0]
    if note["signal"] not in (*SIGNALS, ASKED):  # none, or a kernel has written here
        return None
    frames = [
        Frame(found["file"], found["symbol"] or "", int(found["offset"] or found["address"], 16), int(found["address"], 16))
        for found in map(FRAME.match, log.splitlines())  # without an offset: of a program that lies at the addresses in its file
        if found
    ]
    where = next((i for i, frame in enumerate(frames) if frame.address == note["instruction"]), len(frames))
    return Fault(
        int(note["signal"]),
        int(note["code"]),
        int(note["address"]) & (1 << 64) - 1,
        int(note["error"]),
        int(note["at"]) - arena.limit,
        (*frames[where : where + 1], *(replace(frame, offset=frame.offset - 1) for frame in frames[where + 1 :])),
    )


def without_frames(log: str) -> str:
    """What the worker itself printed."""
    return "\n".join(line for line in log.splitlines() if not PRINTED_FRAME.match(line.strip()))


def told(fault: Fault, extents: Sequence[Extent], guard: str, capacity: int) -> str:
    """The fault in one sentence: what was read or written, relative to which argument, and by which code."""
    name = signal.Signals(fault.signal).name
    kernels = kernels_of(fault.frames[1:])
    first = fault.frames[:1] if fault.signal != signal.SIGABRT else ()  # which is where abort() sends the signal
    where = ", called from ".join(str(frame) for frame in [*first, *kernels][:TOLD])
    return f"{name}: {_deed(fault, extents, guard, capacity)}{', in ' + where if where else ''}"


def kernels_of(frames: Sequence[Frame]) -> list[Frame]:
    """Without those that only lead to a kernel, or are called by one."""
    return [frame for frame in frames if not os.path.basename(frame.file).startswith(MACHINERY)]


def was_sent(fault: Fault) -> bool:
    """Whether some process sent the signal, which may be another one: no instruction raised it, and no thread its own."""
    return fault.code <= 0 and fault.code != SI_TKILL


def _deed(fault: Fault, extents: Sequence[Extent], guard: str, capacity: int) -> str:
    if fault.signal == signal.SIGABRT and fault.code == SI_TKILL:
        return "the process gave up (abort)"
    if fault.code <= 0:
        return "sent by a process, not raised by an instruction"
    if fault.signal == signal.SIGILL:
        return "an instruction that this CPU lacks, or a compiler's trap (ud2)"
    if fault.signal == signal.SIGFPE:
        return "a division by zero, or one whose result does not fit"
    if fault.code == SI_KERNEL:
        return "an address that is none, or an aligned access to an address that is not aligned"
    if fault.address < NULL:
        return f"{fault.access} address {fault.address:#x}, a null pointer's"
    if torch_memory.belongs(fault.address):
        return f"{fault.access} memory past the end of a tensor that the call allocated, or of one that it has freed"
    offset = fault.address - fault.arena
    if not 0 <= offset < capacity or not extents:
        return f"{fault.access} address {fault.address:#x}, which belongs to no argument"
    return f"{fault.access} {_relative(offset, extents, guard)}"


def _relative(offset: int, extents: Sequence[Extent], guard: str) -> str:
    """Where, seen from the nearest buffer: its guard page it is."""
    nearest = min(extents, key=lambda extent: extent.distance(offset))
    names = " and ".join(f"`{name}`" for name in nearest.arguments)
    if offset < nearest.start:
        return f"{count(nearest.start - offset, 'byte')} before the start of {names} (guard at the {guard})"
    if offset < nearest.end:
        return f"{count(offset - nearest.start, 'byte')} into {names}, where no page is mapped"
    past = offset - nearest.end
    return f"{count(past, 'byte') + ' past' if past else 'just past'} the end of {names} (guard at the {guard})"


@lru_cache(maxsize=256)
def _source_of(file: str, symbol: str, offset: int) -> tuple[str, str]:
    """Function and source line, as far as the file's symbols allow."""
    tool = shutil.which("addr2line")
    if tool is None:
        return "", ""
    place = f"{symbol}+{offset:#x}" if symbol else f"{offset:#x}"
    try:
        ran = subprocess.run([tool, "-C", "-f", "-s", "-e", file, place], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    said = [line.strip() for line in ran.stdout.splitlines()]
    if len(said) < 2:
        return "", ""
    function = "" if said[0].startswith("??") else without_parameters(said[0])
    line = "" if said[1].startswith("??") or said[1].endswith((":0", ":?")) else said[1].partition(" (disc")[0]
    return function, line


def without_parameters(function: str) -> str:
    """`void kernelpair::avx512::Rows<float>::copy<false>(char*)` -> `kernelpair::avx512::Rows::copy`."""
    name, depth = "", 0
    for letter in function.replace("(anonymous namespace)::", "").replace("->", ""):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            break
        name += letter if not depth and letter != ">" else ""
    return name.split()[-1].removesuffix("::{lambda") if name.split() else function


def _page(content: bytes, size: int = PAGE, executable: bool = False) -> int:
    """The address of anonymous memory that holds `content`; it stays as long as the process."""
    memory = mmap.mmap(-1, size)
    memory.write(content)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _kept.append(memory)
    if executable and _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect of the handler's page")
    return address


def _let_unwind(code: int, size: int) -> None:
    """Tell the unwinder how to leave the handler (DWARF 5, section 6.4): the frames above it are those that matter."""
    common = bytes.fromhex(
        "00000000 01 00 01 78 10"  # a CIE of version 1: codes in bytes, data in -8 bytes, the return address in column 16
        "0c 07 08 90 01"  # at the entry the frame ends 8 bytes above rsp, and there is the return address
        "0000"
    )
    own = code.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes.fromhex("41 0e10 83 02 000000")  # rbx was pushed
    table = len(common).to_bytes(4, "little") + common
    entry = (len(table) + 4).to_bytes(4, "little") + own
    table += len(entry).to_bytes(4, "little") + entry + bytes(4)
    ctypes.CDLL("libgcc_s.so.1").__register_frame(ctypes.c_void_p(_page(table)))
    _libc.backtrace((ctypes.c_void_p * 1)(), 1)  # loads what it needs now: the handler must not


_kept: list[mmap.mmap] = []


def _instructions(note: int) -> bytes:
    """handler(rdi = signal, rsi = siginfo_t, rdx = ucontext_t), for a note at this address."""

    def address_of(function: str) -> bytes:
        return (ctypes.cast(getattr(_libc, function), ctypes.c_void_p).value or 0).to_bytes(8, "little")

    again = bytes.fromhex(
        "b8 27000000 0f05"  # getpid()
        "89c7 8b33 b8 3e000000 0f05"  # kill(it, signal): the default action now
    )
    return b"".join(
        [
            bytes.fromhex("53 48bb"),  # push rbx; rbx = note
            note.to_bytes(8, "little"),
            bytes.fromhex(
                "48893b"  # note.signal = rdi
                "488b4610 48894308"  # note.address = siginfo.si_addr
                "48634608 48894310"  # note.code = siginfo.si_code
                "488b82a8000000 48894318"  # note.instruction = ucontext.gregs[RIP]
                "488b82c0000000 48894320"  # note.error = ucontext.gregs[ERR]
                "48895b28"  # note.at = rbx
            ),
            bytes.fromhex(f"488d7b{FRAMES_AT:02x} be{MOST_FRAMES:02x}000000 48b8"),  # rdi = frames, rsi = how many
            address_of("backtrace"),
            bytes.fromhex(f"ffd0 488d7b{FRAMES_AT:02x} 89c6 ba02000000 48b8"),  # rdi = frames, rsi = how many, rdx = stderr
            address_of("backtrace_symbols_fd"),
            bytes.fromhex(f"ffd0 48837b1000 7f{len(again):02x}"),  # a signal that an instruction raised comes again by itself
            again,
            bytes.fromhex("5b c3"),
        ]
    )
