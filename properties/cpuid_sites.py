"""Where a library asks CPUID: its functions that hold the two bytes of the instruction, disassembled, so that no other
instruction is taken for one."""

import mmap
import re
import struct
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CODE = b"\x0f\xa2"
EXECUTABLE, PT_LOAD, PT_GNU_EH_FRAME = 1, 1, 0x6474E550
TABLE = bytes([1, 0x1B, 0x03, 0x3B])
"""An .eh_frame_hdr as linkers write it: four-byte offsets, sorted by the start of the function."""
LONGEST = 1 << 16  # bytes of a function; what is further from its start is a table behind code
NOPS = b"\x90" * 16  # between functions, so that the disassembler is in step again
LINE = re.compile(r"^ *([0-9a-f]+):\s+0f a2 .*\bcpuid", re.MULTILINE)


class NotFound(OSError):
    """A library's instructions cannot be found; the message says why."""


@dataclass(frozen=True)
class Segment:
    """A part of a file and where it is mapped, relative to the library."""

    offset: int
    address: int
    size: int


def cpuid_offsets(path: Path) -> list[int]:
    """Addresses of every CPUID of a library, relative to where it is loaded. Raises NotFound."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        code, table = _segments(content)
        found = [segment.address + at for segment in code for at in _occurrences(content, segment)]
        starts = _starts(content, table) if found and table else []
        pieces, ends, end = [], {}, 0
        for address in found:
            number = bisect_right(starts, address) - 1
            start = starts[number] if number >= 0 else address
            if address - LONGEST < start:
                segment = next(part for part in code if part.address <= address < part.address + part.size)
                first = start - segment.address + segment.offset
                pieces.append(content[first : first + address - start + len(CODE)] + NOPS)
                ends[end + address - start] = address
                end += len(pieces[-1])
    return [ends[at] for at in _disassembled(b"".join(pieces)) if at in ends]


def _segments(content: mmap.mmap) -> tuple[list[Segment], Segment | None]:
    """Those with code, and the table of functions."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NotFound("no ELF file of 64 bits")
    start, (size, count) = struct.unpack_from("<Q", content, 32)[0], struct.unpack_from("<HH", content, 54)
    code, table = [], None
    for number in range(count):
        kind, flags, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", content, start + number * size)
        if kind == PT_LOAD and flags & EXECUTABLE:
            code.append(Segment(offset, address, length))
        elif kind == PT_GNU_EH_FRAME:
            table = Segment(offset, address, length)
    return code, table


def _occurrences(content: mmap.mmap, segment: Segment) -> Iterator[int]:
    end = segment.offset + segment.size
    at = content.find(CODE, segment.offset, end)
    while at >= 0:
        yield at - segment.offset
        at = content.find(CODE, at + 1, end)


def _starts(content: mmap.mmap, table: Segment) -> list[int]:
    """Where functions start, ascending."""
    if content[table.offset : table.offset + 4] != TABLE:
        raise NotFound("its table of functions has another form than linkers write")
    (count,) = struct.unpack_from("<I", content, table.offset + 8)
    entries = struct.unpack_from(f"<{2 * count}i", content, table.offset + 12)
    return [table.address + start for start in entries[::2]]


def _disassembled(code: bytes) -> Iterator[int]:
    """Places of CPUID in a piece of code."""
    if not code:
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        command = ["objdump", "-D", "-w", "-b", "binary", "-m", "i386:x86-64", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotFound(f"objdump does not disassemble it: {error}") from None
    for found in LINE.finditer(done.stdout):
        yield int(found[1], 16)
