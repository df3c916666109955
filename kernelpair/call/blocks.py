"""The block of memory that the C library gave for a result that a call allocated: what lies around the result was not asked for.

There is no guard page behind it. But glibc's blocks are as a rule longer than what was asked for. Workers run with
MALLOC_PERTURB_ and without caches of free blocks for single threads: each byte that glibc hands out there holds one of two
values. In front of the block lies its length.
"""

import ctypes
import os
from functools import cache

import torch
from torch import Tensor

from kernelpair.call.fork_server import WORKERS

PERTURB = "MALLOC_PERTURB_"
BEHIND = 16  # bytes that are looked at, of those between the end of the result and that of its block: glibc fills as many,
LINKS, SIZE = 32, 8  # but not always the first and the last of a block: one that is free has its neighbours and its size there
LENGTH, FLAGS, MAPPED = 8, 7, 2  # bytes of a block's length; the bits of it that are flags; the one of a block mapped alone
LONGEST = 1 << 24  # that a block may be beyond what was asked for, as with an alignment to huge pages
_damaged: list[Tensor] = []  # results that are never given back: glibc would end the process before it can say what happened
TRIED = tuple(range(1, 200)) + tuple(4096 * k + 5 for k in range(1, 50)) + (1 << 20,)  # sizes, to see that all this holds here


def written_around(value: Tensor) -> str:
    """Which bytes around a result's memory were written, in words; empty if none was, or if it cannot be told.

    It can be told of memory that torch's own allocator gave, where its block has bytes to spare: for about half of all sizes.
    """
    storage = value.untyped_storage()
    if not storage.nbytes() or storage.device.type != "cpu" or not storage.resizable() or storage.is_shared() or not _filled():
        return ""
    says = _written_around(storage.data_ptr(), storage.nbytes())
    if says:
        _damaged.append(value)
    return says


def _written_around(start: int, size: int) -> str:
    length = _length(start)
    if not size <= length <= 2 * size + LONGEST:
        return "the bytes just before its memory were written"
    spare = _spare(start, size, length)
    written = sum(byte not in _fills() for byte in spare)
    return f"{written} of the {len(spare)} bytes behind its memory were written" if written else ""


def _spare(start: int, size: int, length: int) -> bytes:
    """The bytes behind the first `size` of a block that glibc has filled."""
    first = max(size, LINKS)
    return ctypes.string_at(start + first, max(min(length - SIZE, size + BEHIND) - first, 0))


def _length(start: int) -> int:
    """Of the block that begins there, without its own head, as `malloc_usable_size` says; but nothing else is read for it."""
    noted = ctypes.c_size_t.from_address(start - LENGTH).value
    return (noted & ~FLAGS) - LENGTH * (2 if noted & MAPPED else 1)


def as_handed_out(element: Tensor) -> bool:
    """Whether an element of a result holds what workers' memory is filled with when it is handed out: nobody has written it."""
    perturb = os.environ.get(PERTURB, WORKERS[PERTURB])  # the judge's own, if it is no process of a server
    if element.element_size() < 2 or not perturb.isdecimal():
        return False
    return set(element.contiguous().view(1).view(torch.uint8).tolist()) == {int(perturb) & 0xFF ^ 0xFF}


@cache
def _fills() -> tuple[int, int]:
    """What glibc fills memory with when it is taken back, and when it is handed out."""
    perturb = int(os.environ[PERTURB]) & 0xFF
    return perturb, perturb ^ 0xFF


@cache
def _filled() -> bool:
    """Whether the C library of this process keeps its blocks so: it is tried, with blocks that were written to before."""
    usable = getattr(ctypes.CDLL(None), "malloc_usable_size", None)
    if usable is None or not os.environ.get(PERTURB, "").isdecimal() or ctypes.sizeof(ctypes.c_size_t) != LENGTH:
        return False
    if WORKERS["GLIBC_TUNABLES"] not in os.environ.get("GLIBC_TUNABLES", "").split(":"):
        return False
    usable.restype, usable.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    for size in TRIED * 2:
        block = torch.empty(size, dtype=torch.uint8)
        start = block.data_ptr()
        length = int(usable(start))
        if length < size or length != _length(start):
            return False
        if not set(_spare(start, size, length)) <= set(_fills()):
            return False
        ctypes.memset(start, 0x55, length)
    return True
