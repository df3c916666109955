"""Tiles as the documentation describes them, and the same instructions carried out on the CPU or by the handler."""

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.native.tile_corpus.assembly import PRODUCTS, Operand

Bytes = NDArray[np.uint8]
SIZE, MIDDLE = 1 << 20, 1 << 19
FIXED_NOREPLACE, ANONYMOUS, PRIVATE = 0x100000, 0x20, 0x02
KINDS = dict(zip(PRODUCTS, (0, 1, 4, 5, 6, 7)))  # as model.cpp numbers them


class Corpus:
    """The compiled functions."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return getattr(self._library, name)

    def address(self, label: str) -> int:
        """Of a function or of data."""
        value = ctypes.cast(getattr(self._library, label), ctypes.c_void_p).value
        assert value
        return value

    def attempt(self, name: str, registers: tuple[int, int]) -> tuple[int, int, int, int]:
        """Call a function: which signal it raised (0: none), its code, its address, and the instruction."""
        said = (ctypes.c_uint64 * 4)()
        self["attempt"](ctypes.cast(self[name], ctypes.c_void_p), words(registers), said)
        return said[0], ctypes.c_int64(said[1]).value, said[2], said[3]


def words(registers: tuple[int, int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * 2)(*(value & (1 << 64) - 1 for value in registers))


def memory_at(address: int) -> Bytes:
    """A megabyte of memory, just there, so that an instruction can hold its address in 32 bits."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found = libc.mmap(address, SIZE, protection, PRIVATE | ANONYMOUS | FIXED_NOREPLACE, -1, 0)
    if found != address:
        raise OSError(ctypes.get_errno(), f"no memory at {address:#x}")
    return np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(address))


@dataclass
class Model:
    """The state of one thread: configuration and tiles."""

    corpus: Corpus
    config: Bytes = field(default_factory=lambda: np.zeros(64, np.uint8))
    tiles: Bytes = field(default_factory=lambda: np.zeros((8, 16, 64), np.uint8))

    def rows(self, tile: int) -> int:
        return int(self.config[48 + tile])

    def row_bytes(self, tile: int) -> int:
        return int(self.config[16 + 2 * tile]) + 256 * int(self.config[17 + 2 * tile])

    def configure(self, config: Bytes) -> None:
        self.config, self.tiles = config.copy(), np.zeros((8, 16, 64), np.uint8)

    def release(self) -> None:
        self.configure(np.zeros(64, np.uint8))

    def _start(self) -> int:
        """The row to begin at, used up by whatever asks."""
        start, self.config[1] = int(self.config[1]), 0
        return start

    def zero(self, tile: int) -> None:
        self._start()
        self.tiles[tile] = 0

    def load(self, tile: int, memory: Bytes, at: int, stride: int) -> None:
        rows, nbytes, start = self.rows(tile), self.row_bytes(tile), self._start()
        for row in range(start, rows):
            place = at + row * stride
            self.tiles[tile, row, :nbytes], self.tiles[tile, row, nbytes:] = memory[place : place + nbytes], 0
        self.tiles[tile, rows:] = 0

    def store(self, tile: int, memory: Bytes, at: int, stride: int) -> None:
        for row in range(self._start(), self.rows(tile)):
            place = at + row * stride
            memory[place : place + self.row_bytes(tile)] = self.tiles[tile, row, : self.row_bytes(tile)]

    def product(self, name: str, c: int, a: int, b: int) -> int:
        """c += a b; returns how many sums that were."""
        self._start()
        pointers = [ctypes.c_void_p(self.tiles[tile].ctypes.data) for tile in (c, a, b)]
        rows, columns, depth = self.rows(c), self.row_bytes(c) // 4, self.row_bytes(a) // 4
        self.corpus["model_product"](KINDS[name], *pointers, rows, columns, depth)
        return rows * columns


def same_sums(name: str, got: Bytes, expected: Bytes) -> bool:
    """Bit for bit; of float32 any NaN is like any other, for the documentation leaves payloads open."""
    if name not in ("tdpbf16ps", "tdpfp16ps"):
        return bool(np.array_equal(got, expected))
    got_words, expected_words = got.view(np.uint32), expected.view(np.uint32)
    nan = np.isnan(got.view(np.float32)) & np.isnan(expected.view(np.float32))
    return bool(((got_words == expected_words) | nan).all())


def aimed(operand: Operand, start: int, stride: int) -> tuple[int, int, int, int]:
    """What base and index must hold for an operand to begin at `start`: both words, and the start and stride that come of it."""
    index = (stride >> operand.scale) if operand.index else 0
    stride = index << operand.scale
    if operand.base and operand.base == operand.index:  # one row: only its start counts
        base = start - operand.displacement
        return base, base, start, base << operand.scale
    return start - operand.displacement, index, start if operand.base else operand.displacement, stride
