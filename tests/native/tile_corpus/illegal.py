"""What the hardware refuses, and operands that fault: which signal comes, where, and that nothing was changed by it."""

import ctypes
import mmap
import signal
from collections.abc import Iterator

import numpy as np

from tests.native.tile_corpus.assembly import Functions, Operand, vex
from tests.native.tile_corpus.machine import SIZE, Bytes, Corpus, memory_at, words

PAGE = mmap.PAGESIZE
ADDRESS = 0x7000_0000  # above the heap of a program that is loaded at a fixed place, and below 2^31
AT_START = Operand("rsi", "rdx")
GENERAL_PROTECTION, MAPPING_DENIED = 0x80, 2  # SI_KERNEL, SEGV_ACCERR


def config(shapes: dict[int, tuple[int, int]] | None = None, **bytes_at: int) -> Bytes:
    """Rows and bytes of tiles, all full where nothing is said; `at_17=1` sets a byte."""
    made = np.zeros(64, np.uint8)
    made[0] = 1
    for tile, (rows, nbytes) in (shapes or {tile: (16, 64) for tile in range(8)}).items():
        made[48 + tile], made[16 + 2 * tile] = rows, nbytes
    for name, value in bytes_at.items():
        made[int(name.removeprefix("at_"))] = value
    return made


CONFIGURATIONS = {
    "palette 2": config(at_0=2),
    "a reserved byte": config(at_9=1),
    "17 rows": config(at_50=17),
    "65 bytes": config(at_20=65),
    "320 bytes": config(at_21=1),
    "rows without bytes": config(at_18=0),
    "bytes without rows": config(at_49=0),
    "a ninth tile": config(at_56=1),
    "bytes of a sixteenth tile": config(at_46=4),
}
"""All of them #GP."""

FULL = config()
UNEVEN = config({0: (4, 8), 1: (4, 12), 2: (3, 8), 3: (5, 8), 4: (4, 16), 5: (4, 10), 6: (2, 64)})
REFUSED: dict[str, tuple[Bytes | None, str]] = {
    "a load without configuration": (None, "tileloadd (%rdi,%rdx), %tmm0"),
    "a store without configuration": (None, "tilestored %tmm0, (%rdi,%rdx)"),
    "a zero without configuration": (None, "tilezero %tmm0"),
    "a product without configuration": (None, "tdpbf16ps %tmm2, %tmm1, %tmm0"),
    "a load of a tile without rows": (UNEVEN, "tileloadd (%rdi,%rdx), %tmm7"),
    "a load of ten bytes a row": (UNEVEN, "tileloadd (%rdi,%rdx), %tmm5"),
    "a load that begins behind the last row": (config({0: (4, 64)}, at_1=4), "tileloadd (%rdi,%rdx), %tmm0"),
    "a product of other rows": (UNEVEN, "tdpbf16ps %tmm2, %tmm1, %tmm3"),
    "a product of other columns": (UNEVEN, "tdpbf16ps %tmm6, %tmm1, %tmm0"),
    "a product of other depth": (UNEVEN, "tdpbssd %tmm2, %tmm4, %tmm0"),
    "a product onto its left": (FULL, vex(0x5C, 1, 1, 2, prefix=2)),
    "a product onto its right": (FULL, vex(0x5E, 1, 2, 1, prefix=0)),
    "a square": (FULL, vex(0x5E, 2, 1, 1, prefix=1)),
    "tile 8": (FULL, vex(0x5C, 0, 1, 2, prefix=2, first=0x62)),
    "tile 9 on the left": (FULL, vex(0x5C, 0, 1, 2, prefix=2, first=0xC2)),
    "tile 10 on the right": (FULL, vex(0x5C, 0, 1, 10, prefix=2)),
    "W": (FULL, vex(0x5C, 0, 1, 2, prefix=2, wide=0x80)),
    "L": (FULL, vex(0x5C, 0, 1, 2, prefix=2, wide=0x04)),
    "a load without SIB": (FULL, ".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x07"),
    "a load with vvvv": (FULL, ".byte 0xc4, 0xe2, 0x73, 0x4b, 0x04, 0x17"),
    "a release of something": (FULL, vex(0x49, 0, 1, prefix=0)),
    "another instruction": (FULL, "ud2"),
}
"""All of them #UD: the configuration that is loaded before, none if there is none."""


class Refusals:
    """What raises signals, on the program's own handlers (model.cpp)."""

    def __init__(self, functions: Functions) -> None:
        self.load_config = functions.with_memory("ldtilecfg", Operand("rsi"))
        self.store_config = functions.with_memory("sttilecfg", Operand("rsi"))
        self.release = functions.plain("tilerelease")
        self.load = functions.with_memory("tileloadd", AT_START, "%tmm3")
        self.store = functions.with_memory("tilestored", AT_START, "%tmm3", before=True)
        self.refused = {says: functions.plain(text) for says, (_, text) in REFUSED.items()}

    def check(self, corpus: Corpus, partial: bool) -> None:
        """AssertionError where a signal is missing, is another one, or left something behind. Hardware is `partial`: it loads and
        stores the rows before the one that faults."""
        self.corpus, self.memory, self.partial = corpus, memory_at(ADDRESS), partial
        for failed in (*self._configurations(), *self._instructions(), *self._faults()):
            assert not failed, failed
        self.corpus[self.release](words((0, 0)))

    def _configure(self, wanted: Bytes) -> tuple[int, int, int, int]:
        self.memory[:64] = wanted
        return self.corpus.attempt(self.load_config, (ADDRESS, 0))

    def _kept(self) -> Bytes:
        """The configuration that is in force."""
        self.corpus[self.store_config](words((ADDRESS + 64, 0)))
        return self.memory[64:128].copy()

    def _configurations(self) -> Iterator[str]:
        self._configure(FULL)
        for says, wrong in CONFIGURATIONS.items():
            number, code, address, _ = self._configure(wrong)
            if (number, code, address) != (signal.SIGSEGV, GENERAL_PROTECTION, 0):
                yield f"{says}: signal {number}, code {code}, address {address:#x}"
            if not np.array_equal(self._kept(), FULL):
                yield f"{says}: the configuration changed"
        self._configure(config(at_0=0, at_9=1))  # palette 0: nothing else is looked at
        if self._kept().any():
            yield "palette 0 does not release"

    def _instructions(self) -> Iterator[str]:
        for says, (wanted, _) in REFUSED.items():
            self.corpus[self.release](words((0, 0)))
            if wanted is not None and self._configure(wanted)[0]:
                yield f"{says}: its configuration is refused"
            name = self.refused[says]
            number, _, _, where = self.corpus.attempt(name, (ADDRESS, 0))
            if number != signal.SIGILL or where != self.corpus.address(name):
                yield f"{says}: signal {number} at {where:#x}, expected SIGILL at {self.corpus.address(name):#x}"

    def _faults(self) -> Iterator[str]:
        """Row by row into a page that is not there: the first byte of it is blamed, and nothing moves."""
        libc = ctypes.CDLL(None)
        guarded = ADDRESS + SIZE - PAGE
        self._configure(FULL)
        self.memory[PAGE : 2 * PAGE] = np.random.default_rng(5).integers(0, 256, PAGE, np.uint8)
        self.corpus[self.load](words((ADDRESS + PAGE, 64)))
        assert libc.mprotect(ctypes.c_void_p(guarded), PAGE, 0) == 0
        for row in range(16):
            for inside in (0, 20):  # bytes of the row that are there
                for name in (self.load, self.store):
                    yield self._fault(name, guarded - 64 * row - inside, 64, guarded)
        for name in (self.load_config, self.store_config):
            yield self._fault(name, guarded - 63, 0, guarded)
        assert libc.mprotect(ctypes.c_void_p(guarded), PAGE, mmap.PROT_READ | mmap.PROT_WRITE) == 0

    def _fault(self, name: str, start: int, stride: int, guarded: int) -> str:
        before = self.memory[: SIZE - PAGE].copy()
        number, code, address, _ = self.corpus.attempt(name, (start, stride))
        says = f"function {name} at {start:#x}, stride {stride}: "
        if (number, code) != (signal.SIGSEGV, MAPPING_DENIED) or not guarded <= address < guarded + PAGE:
            return f"{says}signal {number}, code {code}, address {address:#x}, expected SIGSEGV at {guarded:#x}"
        if self.partial:  # hardware keeps the rows before the one that faults, and begins there when it is asked again
            self._configure(FULL)
            self.corpus[self.load](words((ADDRESS + PAGE, 64)))
            self.memory[: SIZE - PAGE] = before
            return ""
        if not np.array_equal(self.memory[: SIZE - PAGE], before):
            return f"{says}memory was written"
        self.corpus[self.store](words((ADDRESS + 2 * PAGE, 64)))
        if not np.array_equal(self.memory[2 * PAGE : 2 * PAGE + 1024], self.memory[PAGE : PAGE + 1024]):
            return f"{says}the tile changed"
        self.memory[: SIZE - PAGE] = before
        return ""
