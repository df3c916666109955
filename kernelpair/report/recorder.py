"""A case run once more for its picture: what was compared, and what the memory of the call looked like afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernelpair.call.memory import Placed
from kernelpair.call.outcome import Outcome
from kernelpair.call.place import Buffer, Placement, element_mask
from kernelpair.call.values import poison_word
from kernelpair.contract.case import WRONG_CALL
from kernelpair.names import count
from kernelpair.report.plane import Plane, plane_of
from kernelpair.trial.judge import Compared
from kernelpair.trial.session import THREADS, Session

CELLS = 160  # of a strip of memory
MARGIN = 64  # bytes of canary that are shown on both sides of a buffer
CANARY, GAP, POISON, DATA, WRITTEN, TRESPASS = range(6)  # what a byte is; of a cell with several the last of these
MEANS = (
    "canary", "gap between elements", "poison, not to be read", "data", "written as the contract says", "changed that must not",
)


@dataclass(frozen=True)
class Strip:
    """The buffer of an argument as cells from its first byte to its last, with a little of what lies around it."""

    arguments: tuple[str, ...]
    layout: str
    says: str
    """dtype and sizes."""
    nbytes: int
    cells: npt.NDArray[np.int8]
    each: int
    """Bytes of a cell."""
    guard: str
    """The end of the buffer that touches a page which faults."""
    trespasses: int
    """Bytes that changed and must not."""

    @property
    def alternative(self) -> str:
        """The strip in words."""
        seen = [MEANS[kind] for kind in range(GAP, TRESPASS) if (self.cells == kind).any()]
        wrong = f"; {count(self.trespasses, 'byte')} changed that must not" if self.trespasses else ""
        names = " and ".join(self.arguments)
        return f"{names} {self.says}, {self.layout}, guard page at its {self.guard}: {', '.join(seen) or 'empty'}{wrong}"


class Recorder(Session):
    """A session that keeps what the pictures need: of each tensor the first comparison that failed, or else the first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.planes: dict[str, Plane] = {}
        self.strips: list[Strip] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def witness(self, compared: Compared) -> None:
        """Called with everything that the session compares."""
        known = self.planes.get(compared.name)
        if known is None or not known.wrong:
            plane = plane_of(compared)
            if plane is not None and (known is None or plane.wrong):
                self.planes[compared.name] = plane

    def call(self, placement: Placement, threads: int = THREADS, others: Sequence[Placement] = (), **asked: Any) -> Outcome:
        """The call, and then how its memory looks."""
        outcome = super().call(placement, threads, others, **asked)
        if not any(strip.trespasses for strip in self.strips):
            refused = self.case.trial.startswith(WRONG_CALL) or self.case.trial == "fuzz"  # then nothing may change
            scratch = dict.fromkeys(self.pair.signature.scratch, True)
            writable = {} if refused else {**scratch, **self.masks(self.case, placement)}
            self.strips = [
                self._strip(buffer, placement, writable) for buffer in placement.buffers if not buffer.has_gaps
            ]
        return outcome

    def _strip(self, buffer: Buffer, placement: Placement, writable: dict[str, Any]) -> Strip:
        arena, block = self.runner.arena, buffer.block
        before, after = np.frombuffer(buffer.before, np.uint8), np.frombuffer(buffer.content(arena), np.uint8)
        kinds = np.full(len(before), CANARY, np.int8)
        start, end = block.start - block.first, block.start - block.first + block.nbytes
        kinds[start:end] = GAP
        names = [name for name, placed in placement.arguments.items() if _lies_in(placed, buffer)]
        for name in names:
            placed = placement.arguments[name]
            element = element_mask(buffer, placed, True)
            kinds[element & (kinds != POISON)] = DATA
            kinds[element & _poisoned(before, start, end, self.case.poison, placed.dtype)] = POISON
        allowed = np.zeros(len(before), bool)
        for name in names:
            if name in writable:
                allowed |= element_mask(buffer, placement.arguments[name], writable[name])
        changed = before != after
        kinds[allowed & changed] = WRITTEN
        kinds[changed & ~allowed] = TRESPASS
        first, last = max(start - MARGIN, 0), min(end + MARGIN, len(before))
        shown = kinds[first:last]
        each = max(1, -(-len(shown) // CELLS))
        padded = np.full(-(-len(shown) // each) * each, CANARY, np.int8)
        padded[: len(shown)] = shown
        placed = placement.arguments[buffer.arguments[0]]
        return Strip(
            arguments=tuple(buffer.arguments),
            layout=self.case.layout.get(buffer.arguments[0], "dense"),
            says=f"{str(placed.dtype).removeprefix('torch.')}{list(placed.sizes)}",
            nbytes=block.nbytes,
            cells=padded.reshape(-1, each).max(axis=1),
            each=each,
            guard=self.case.guard,
            trespasses=int((changed & ~allowed).sum()),
        )


def _lies_in(placed: object, buffer: Buffer) -> bool:
    return isinstance(placed, Placed) and buffer.block.first <= placed.start <= buffer.block.last and bool(np.prod(placed.sizes))


def _poisoned(
    before: npt.NDArray[np.uint8], start: int, end: int, kind: str, dtype: torch.dtype
) -> npt.NDArray[np.bool_]:
    """Bytes of the buffer that belong to an element which held poison before the call."""
    width = dtype.itemsize
    word = np.frombuffer(poison_word(kind, dtype).tobytes(), np.uint8)
    found = np.zeros(len(before), bool)
    whole = (end - start) // width * width
    equal = (before[start : start + whole].reshape(-1, width) == word).all(axis=1)
    found[start : start + whole] = np.repeat(equal, width)
    return found
