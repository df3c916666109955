"""The memory that torch gives to a call, for results and for whatever else it allocates: nothing is mapped around it.

torch's allocator has its memory from the C library; in a worker that of a call from here. Each piece gets pages of its own,
whose end it touches as closely as torch's alignment lets it. The page behind them is not mapped, nor is memory that was given
back: a call faults that reads or writes past a tensor of its own, or uses one that it has freed. What the alignment leaves free,
and what lies in front, is filled as the C library would fill it (MALLOC_PERTURB_), and compared when the memory is given back,
by which a write of a few bytes is seen.

The two functions are machine instructions, as in `fault`: threads of a kernel call them, and none may wait for Python.
"""

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelpair.call.fork_server import WORKERS
from kernelpair.call.memory import PAGE
from kernelpair.names import count

BASE, END = 0x2000_0000_0000, 0x3000_0000_0000  # of the addresses that are given: far from where Linux puts anything by itself
ALIGNMENT = 64  # of torch's tensors
HEAD = 40  # bytes right before a piece that are compared; before them stand its size, its pages' length and where they begin
PERTURB = "MALLOC_PERTURB_"
STATE = np.dtype([(name, "<i8") for name in ("next", "base", "end", "fill", "held", "mapped", "damaged", "where", "size", "on")])
LIBRARY = "libc10.so"
TAKES, GIVES = b"posix_memalign", b"free"
SYMBOLS, NAMES, CALLED, CALLED_BYTES, MOVED, MOVED_BYTES = 6, 5, 23, 2, 7, 8  # DT_SYMTAB, STRTAB, JMPREL, PLTRELSZ, RELA, RELASZ
LINK_MAP = 2  # RTLD_DI_LINKMAP
SYMBOL_BYTES = 24
ENTRY = np.dtype([("tag", "<i8"), ("value", "<u8")])
RELOCATION = np.dtype([("at", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("plus", "<i8")])

_libc = ctypes.CDLL(None, use_errno=True)
_installed: list[Any] = []  # the state, and what keeps its memory
_written: list[Tensor] = []  # results that are never given back: each has been told of


def install() -> None:
    """Let torch have the memory of calls from here (`given`), for as long as this process lives.

    Does nothing on other machines than x86-64 Linux, beside AddressSanitizer, which does the like, and with a torch that is put
    together otherwise.
    """
    sanitized = getattr(_libc, "__sanitizer_get_heap_size", None) is not None
    if sys.platform != "linux" or platform.machine() != "x86_64" or sanitized or _installed:
        return
    slots = list(_slots())
    if {name for name, _ in slots} != {TAKES, GIVES}:
        return
    pages = mmap.mmap(-1, 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    code, give = _instructions(address + PAGE)
    pages.write(code)
    state = np.frombuffer(pages, STATE, 1, PAGE)
    state[0] = (BASE, BASE, END, filled_with(), *[0] * (len(STATE.names or ()) - 4))
    if _protect(address, mmap.PROT_READ | mmap.PROT_EXEC):
        return
    begins = {TAKES: address, GIVES: address + give}
    for name, slot in slots:
        _protect(slot // PAGE * PAGE, mmap.PROT_READ | mmap.PROT_WRITE)  # the linker may have closed it
        ctypes.c_uint64.from_address(slot).value = begins[name]
    _installed.extend([state, pages])


@contextmanager
def given() -> Iterator[None]:
    """What torch allocates meanwhile, in whatever thread, comes from here."""
    _set("on", 1)
    try:
        yield
    finally:
        _set("on", 0)


def held() -> tuple[int, int]:
    """Bytes that were given and not given back, and those of their pages."""
    return _get("held"), _get("mapped")


def damaged() -> int:
    """How many pieces had been written around when they were given back."""
    return _get("damaged")


def damage() -> str:
    """What was written around the last of these, in words."""
    past, size = _get("where") - _get("size"), count(_get("size"), "byte")
    place = "just before" if past < 0 else f"{count(past, 'byte')} past the end of" if past else "just past the end of"
    return f"memory {place} a tensor of {size} was written, which the call allocated and freed"


def written_around(result: Tensor) -> str:
    """Which bytes around a result's memory were written, in words; empty if none was, or if the memory is not from here."""
    storage = result.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if not _installed or not belongs(address):
        return ""
    fill = bytes([filled_with()])
    before, behind = ctypes.string_at(address - HEAD, HEAD), ctypes.string_at(address + size, -size % ALIGNMENT)
    written = len(behind) - behind.count(fill)
    says = f"{written} of the {len(behind)} bytes behind its memory were written" if written else ""
    says = "the bytes just before its memory were written" if before.strip(fill) else says
    if says:
        _written.append(result)
    return says


def filled_with() -> int:
    """The byte that memory holds when it is handed out, by the C library and from here."""
    if _installed:  # a call may have changed the environment
        return _get("fill")
    perturb = os.environ.get(PERTURB, "")
    return int(perturb if perturb.isdecimal() else WORKERS[PERTURB]) & 0xFF ^ 0xFF


def as_handed_out(element: Tensor) -> bool:
    """Whether an element of a result holds what memory is filled with: nobody has written it."""
    return element.element_size() > 1 and set(element.contiguous().view(1).view(torch.uint8).tolist()) == {filled_with()}


def belongs(address: int) -> bool:
    """Whether an address is one of those that are given."""
    return BASE <= address < END


def _get(name: str) -> int:
    return int(_installed[0][name][0]) if _installed else 0


def _set(name: str, value: int) -> None:
    if _installed:
        _installed[0][name] = value


def _protect(address: int, protection: int) -> int:
    return int(_libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), protection))


def _slots() -> Iterator[tuple[bytes, int]]:
    """The addresses at which torch's library keeps those of the two C functions (System V ABI, "Relocation")."""
    path = Path(torch.__file__).parent / "lib" / LIBRARY
    library = ctypes.CDLL(str(path))
    linked = ctypes.c_void_p()
    _libc.dlinfo(ctypes.c_void_p(library._handle), LINK_MAP, ctypes.byref(linked))
    if not linked.value:
        return
    base, _, dynamic = (ctypes.c_uint64 * 3).from_address(linked.value)
    known: dict[int, int] = {}
    while (entry := np.frombuffer(ctypes.string_at(dynamic, ENTRY.itemsize), ENTRY)[0])["tag"]:
        known[int(entry["tag"])] = int(entry["value"])
        dynamic += ENTRY.itemsize
    known |= {tag: base + known[tag] for tag in (SYMBOLS, NAMES, CALLED, MOVED) if known[tag] < base}
    for table, size in ((CALLED, CALLED_BYTES), (MOVED, MOVED_BYTES)):
        found = np.frombuffer(ctypes.string_at(known[table], known[size]), RELOCATION)
        for relocation in found[found["symbol"] > 0]:
            symbol = known[SYMBOLS] + SYMBOL_BYTES * int(relocation["symbol"])
            name = ctypes.string_at(known[NAMES] + ctypes.c_uint32.from_address(symbol).value)
            if name in (TAKES, GIVES):
                yield name, base + int(relocation["at"])


def _instructions(state: int) -> tuple[bytes, int]:
    """posix_memalign(rdi = where to, rsi = alignment, rdx = size), behind it free(rdi = piece), and where that begins; for a
    `STATE` at this address. System calls spoil rcx and r11; rbx and r12 to r15 are the caller's."""

    def number(value: int) -> str:
        return value.to_bytes(8, "little").hex()

    def address_of(function: bytes) -> str:
        return number(ctypes.cast(getattr(_libc, function.decode()), ctypes.c_void_p).value or 0)

    push, pop = "53 4154 4155 4156 4157", "415f 415e 415d 415c 5b"
    take = [
        "4883fe40 0f87bf000000",  # aligned to more than 64: to the C library
        push, f"48bb{number(state)} 4989fc 4989d5",  # rbx = state, r12 = where to, r13 = size
        "48837b4800 0f8487000000",  # state.on is 0: undone
        "4c8d7a3f 4983e7c0 4981c73f100000 4981e700f0ffff",  # r15 = (size, up to 64) + 64, up to whole pages
        "4d8db700100000 f04c0fc133",  # r14 = state.next; state.next += r15 and a page
        "4b8d043e 483b4310 775b",  # beyond state.end: undone
        "b809000000 4c89f7 4c89fe ba03000000 41ba22001000",  # mmap(r14, r15, to read and write, private and anonymous and
        "4983c8ff 4531c9 0f05 4c39f0 7537",  # just there, where nothing is yet); not there: undone
        "4c89f7 4c89f9 8a4318 f3aa",  # r15 bytes of state.fill from r14 on; rdi = behind them
        "498d453f 4883e0c0 4829c7",  # rdi -= size, up to 64: the piece
        "4c8977c0 4c897fc8 4c896fd0",  # in front of it, from 64 bytes on: r14, r15, size
        "f04c016b20 f04c017b28",  # state.held += size; state.mapped += r15
        "49893c24 31c0 e9cc000000",  # the piece goes where to; 0 is returned, as in free
        "4c89e7 be40000000 4c89ea", pop,  # undone: what was asked for
        f"48b8{address_of(TAKES)} ffe0",  # to the C library
    ]
    give = [
        f"49bb{number(state)} 493b7b08 0f82b5000000 493b7b10 0f83ab000000",  # not from state.base to state.end: to the C library
        push, "4c89db 4989fc",  # rbx = state, r12 = piece
        "4c8b77c0 4c8b7fc8 4c8b6fd0",  # r14 = its first page, r15 = its pages, r13 = its size
        "498d453f 4883e0c0 4801f8 4b8d0c3e 4839c8 7569",  # piece + size, up to 64, is not rcx = r14 + r15: overwritten
        "4c3b7308 7263 4939fe 735e",  # nor if r14 is below state.base, or not below the piece
        "4c01ef 4829f9 8a4318 38c0 f3ae 750e",  # a byte from piece + size up to rcx is not state.fill: damaged
        "498d7c24d8 b928000000 f3ae 7413",  # all 40 before the piece are: given back
        "48ffcf 4c29e7 48897b38 4c896b40 f048ff4330",  # damaged: state.where, from the piece on; state.size; state.damaged += 1
        "f04c296b20 f04c297b28",  # given back: state.held -= size; state.mapped -= r15
        "b80b000000 4c89f7 4c89fe 0f05",  # munmap(r14, r15)
        "4b8d843e00100000 f04c0fb133",  # nothing was taken since: state.next = r14
        pop, "c3",
        "48c74338c0ffffff 4c896b40 f048ff4330 ebe3",  # overwritten: state.where = -64, state.size, state.damaged += 1
        f"48b8{address_of(GIVES)} ffe0",  # to the C library
    ]  # fmt: skip
    return bytes.fromhex("".join(take + give)), len(bytes.fromhex("".join(take)))
