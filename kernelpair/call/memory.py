"""Shared memory for the tensors of a call: buffers that touch a guard page, surrounded by bytes that must stay as they are."""

import ctypes
import fcntl
import mmap
import os
import resource
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
# Bytes of address space, of which only touched pages take memory. Three tensors, each of which reaches over 2^31 elements of 8
# bytes, for three threads at once, take three quarters of it.
CAPACITY = 192 << 30
KEEP = 64 << 20  # bytes that stay resident between cases
CANARY = b"\xff"  # NaN in every float dtype, -1 in every integer
PROT_NONE, PROT_READ_WRITE = 0, 3
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # a worker that made it smaller would end its judge

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class OutOfMemory(RuntimeError):
    """The tensors of a case do not fit into the arena."""


class NoAddressSpace(OSError):
    """A limit of this process leaves no room for an arena."""


@dataclass(frozen=True)
class Block:
    """Pages between two guard pages, and the buffer inside them; all in bytes from the arena's start."""

    first: int
    last: int
    start: int
    nbytes: int


@dataclass(frozen=True)
class Placed:
    """A tensor in the arena: `start` in bytes, strides in elements. What a worker needs to build its view."""

    dtype: torch.dtype
    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Arena:
    """A region of anonymous shared memory, which the judging process and the worker both map.

    >>> arena = Arena.create()
    >>> block = arena.allocate(10, guard="end")
    >>> (block.start + block.nbytes) % PAGE
    0
    """

    def __init__(self, descriptor: int, capacity: int) -> None:
        self.descriptor = descriptor
        self.capacity = capacity
        self.limit = capacity - PAGE
        """Where the room for tensors ends: the last page holds what a dying worker says of its fault (`fault.py`)."""
        try:
            self._map = mmap.mmap(descriptor, capacity, mmap.MAP_SHARED)
        except OSError as error:
            most = resource.getrlimit(resource.RLIMIT_AS)[0]
            limit = "" if most == resource.RLIM_INFINITY else f": ulimit -v is {most >> 10} KiB"
            says = f"{capacity >> 30} GiB, of which only what is touched takes memory, cannot be mapped ({error.strerror}){limit}"
            raise NoAddressSpace(says) from error
        with suppress(OSError):  # a system that has no huge pages
            self._map.madvise(mmap.MADV_NOHUGEPAGE)  # by which a row that is touched would fill the gap beside it (`resident`)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._typed: dict[torch.dtype, Tensor] = {}
        self._words: dict[np.dtype[Any], npt.NDArray[Any]] = {}
        self._cursor = PAGE
        self.resets = 0

    @classmethod
    def create(cls, capacity: int = CAPACITY) -> "Arena":
        """A new arena; its descriptor is what a worker needs to map the same pages."""
        descriptor = os.memfd_create("kernelpair", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, capacity)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        arena = cls(descriptor, capacity)
        weakref.finalize(arena, os.close, descriptor).atexit = False
        return arena

    @cached_property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    @property
    def used(self) -> int:
        """Bytes from the start up to the last guard page."""
        return self._cursor

    def reset(self) -> None:
        """Forget all blocks; pages of an unusually large case go back to the system."""
        if self._cursor > KEEP:
            self._map.madvise(mmap.MADV_REMOVE, KEEP, self._cursor - KEEP)
        self._cursor = PAGE
        self.resets += 1

    def resident(self, first: int, last: int) -> list[tuple[int, int]]:
        """The stretches of [first, last) that take memory, because somebody wrote or read them."""
        found = []
        while first < last:
            try:
                begin = os.lseek(self.descriptor, first, os.SEEK_DATA)
            except OSError:  # nothing but holes
                break
            first = os.lseek(self.descriptor, begin, os.SEEK_HOLE)
            if begin < last:
                found.append((begin, min(first, last)))
        return found

    def allocate(self, nbytes: int, guard: str = "end") -> Block:
        """A block whose buffer ends at (`end`) or begins after (`start`) a guard page. Raises OutOfMemory."""
        first = self._cursor
        last = first + max(1, -(-nbytes // PAGE)) * PAGE
        if last + PAGE > self.limit:
            raise OutOfMemory(f"the tensors of this case take more than {self.capacity >> 20} MiB")
        self._cursor = last + PAGE
        return Block(first, last, first if guard == "start" else last - nbytes, nbytes)

    def reserve(self, end: int) -> None:
        """Count everything up to byte `end` as taken: by blocks that another process allocated in the same memory."""
        self._cursor = max(self._cursor, end)

    def typed(self, dtype: torch.dtype) -> Tensor:
        """The whole arena as one flat tensor of `dtype`."""
        if dtype not in self._typed:
            self._typed[dtype] = torch.frombuffer(self._map, dtype=torch.uint8).view(dtype)
        return self._typed[dtype]

    def tensor(self, dtype: torch.dtype, start: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        """A view of the arena; `start` in bytes, a multiple of the element size."""
        return self.typed(dtype).as_strided(sizes, strides, start // dtype.itemsize)

    def view(self, placed: Placed) -> Tensor:
        """The placed tensor, as a view of the arena."""
        return self.tensor(placed.dtype, placed.start, placed.sizes, placed.strides)

    def read(self, first: int, last: int) -> bytes:
        """A copy of the bytes [first, last)."""
        return self._map[first:last]

    def write(self, first: int, content: bytes) -> None:
        """Put `content` at `first`."""
        self._map[first : first + len(content)] = content

    def fill(self, start: int, count: int, word: np.generic) -> None:
        """`count` copies of `word` from byte `start` on, a multiple of its size."""
        if word.dtype not in self._words:
            self._words[word.dtype] = np.frombuffer(self._map, word.dtype)
        first = start // word.itemsize
        self._words[word.dtype][first : first + count] = word

    def protect(self, pages: list[int]) -> None:
        """Make these pages fault, in this process only."""
        for page in pages:
            self._mprotect(page, PAGE, PROT_NONE)

    def unprotect(self) -> None:
        """Make all used pages readable and writable again."""
        self._mprotect(0, self._cursor, PROT_READ_WRITE)

    def _mprotect(self, start: int, length: int, protection: int) -> None:
        if _libc.mprotect(self.address + start, length, protection):
            error = ctypes.get_errno()
            raise OSError(error, f"mprotect of a guard page, which a call may have unmapped: {os.strerror(error)}")
