"""Place the logical arguments of a case into guarded shared memory, in the layouts that the case asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernelpair.call.fault import Extent
from kernelpair.call.layout import EXPANDED, FLAT, FUSED, LAYOUTS, SHARED, Layout, reach
from kernelpair.call.memory import CANARY, PAGE, Arena, Block, Placed
from kernelpair.call.values import poison_word
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Alias, Inputs, Pair

GAPS = 1 << 28  # elements of a buffer from which it is only filled and compared where rows are


@dataclass(frozen=True)
class GappedRows:
    """Rows with wide gaps between them: their number, the distance of one to the next, and the reach of each, in elements."""

    count: int
    step: int
    reach: int

    def pages(self, start: int, width: int) -> list[tuple[int, int]]:
        """The pages of each row, the first of which begins at byte `start`."""
        begins = [start + row * self.step * width for row in range(self.count)]
        return [(begin // PAGE * PAGE, -(-(begin + self.reach * width) // PAGE) * PAGE) for begin in begins]


@dataclass
class Buffer:
    """Memory of one argument, or of two fused ones, with what it held before the call."""

    block: Block
    arguments: list[str]
    pieces: list[tuple[int, int]]
    """The pages that hold anything: those of the block, or, of a layout with wide gaps, those of each row."""
    before: bytes = b""
    resident: list[tuple[int, int]] = field(default_factory=list)
    """Of a block with gaps, the stretches that took memory before the call."""

    @property
    def has_gaps(self) -> bool:
        return len(self.pieces) > 1

    def content(self, arena: Arena) -> bytes:
        """A copy of all pieces, one behind the other. Bytes, because small arrays take ten times as long to compare."""
        return b"".join([arena.read(first, last) for first, last in self.pieces])

    def keep(self, arena: Arena) -> None:
        """Remember what a call may not change."""
        self.before = self.content(arena)
        if self.has_gaps:
            self.resident = arena.resident(self.block.first, self.block.last)


@dataclass
class Placement:
    """All arguments of a call, placed."""

    arguments: dict[str, Any]
    """Name -> Placed for a tensor, or the plain value."""
    logical: Inputs
    """The same values as contiguous tensors, aliases resolved: what the reference is given."""
    buffers: list[Buffer]
    guards: list[int]

    def extents(self) -> list[Extent]:
        """Where the buffers lie in the arena."""
        return [Extent(each.block.start, each.block.start + each.block.nbytes, each.arguments) for each in self.buffers]

    def restore(self, arena: Arena) -> None:
        """Give every byte the value that it had before the call."""
        for buffer in self.buffers:
            done = 0
            for first, last in buffer.pieces:
                arena.write(first, buffer.before[done : done + last - first])
                done += last - first


def settle(pair: Pair, case: Case, inputs: Inputs, keep_strides: bool = False) -> Inputs:
    """Logical inputs with the case's index dtypes and expanded (stride 0) arguments; aliases stay as they are.

    With `keep_strides` (wrong calls) a tensor that is not contiguous is placed with just its strides.
    """
    settled = dict(inputs)
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            continue
        if name in pair.signature.indices and value.dtype in (torch.int32, torch.int64):
            value = value.to(torch.int32 if name in case.int32 else torch.int64)
        once = repeated(value, case.layout.get(name))
        if once is not value:
            value = once.contiguous() if value.is_contiguous() else once  # its layout gives it stride 0
        settled[name] = value if keep_strides else value.contiguous()
    return settled


def repeated(value: Tensor, layout: str | None) -> Tensor:
    """The first row for all rows, or for all heads, or the first entry for its row, where the layout gives these stride 0."""
    if layout == EXPANDED and value.dim() and value.shape[0] > 1:
        return value[:1].expand(value.shape)
    if layout == SHARED and value.dim() > 2 and value.shape[-2] > 1:
        return value[..., :1, :].expand(value.shape)
    if layout == FLAT and value.dim() > 1 and value.shape[-1] > 1:
        return value[..., :1].expand(value.shape)
    return value


def resolve(inputs: Mapping[str, Any]) -> Inputs:
    """Replace each Alias by its view."""
    return {
        name: value.view(inputs[value.of]) if isinstance(value, Alias) else value for name, value in inputs.items()
    }


def over(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, last: bool = False) -> Tensor:
    """A contiguous view of the first bytes of the tensor's memory at which elements of `dtype` may begin, or of its last. Raises
    ValueError where they do not fit, and over rows with wide gaps between them, which nobody may touch."""
    span = reach(tensor.shape, tensor.stride())
    begin = tensor.storage_offset() * tensor.element_size()
    end = begin + span * tensor.element_size()
    count = prod(shape)
    first = end // dtype.itemsize - count if last else -(-begin // dtype.itemsize)
    if span > GAPS or first * dtype.itemsize < begin or (first + count) * dtype.itemsize > end:
        raise ValueError(f"{list(shape)} of {dtype} does not fit over {list(tensor.shape)} with strides {list(tensor.stride())}")
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(tensor.untyped_storage(), first, shape, strides)


def at_the_end(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous view that begins in the last element of a contiguous tensor and goes on behind it."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(tensor.untyped_storage(), (end - 1) // dtype.itemsize, shape, strides)


def place(pair: Pair, case: Case, inputs: Inputs, arena: Arena, beside: bool = False) -> Placement:
    """Lay out settled `inputs` in `arena`, which is emptied first unless they go `beside` earlier ones. Raises OutOfMemory."""
    if not beside:
        arena.reset()
    placement = Placement(dict(inputs), resolve(inputs), [], [] if beside else [0])
    partners = dict(pair.signature.fused)
    done: set[str] = set()
    behind = {value.of: value.behind for value in inputs.values() if isinstance(value, Alias) and value.behind}
    for name in sorted(inputs, key=lambda name: case.layout.get(name) != FUSED):  # the first of two halves takes the other along
        value = inputs[name]
        if not isinstance(value, Tensor) or name in done:
            continue
        partner = partners.get(name)
        dim = _joint_dimension(case, value, inputs.get(partner)) if partner and case.layout.get(name) == FUSED else None
        if partner and dim is not None:
            _place_fused(case, arena, placement, name, partner, dim)
            done.add(partner)
        elif value.is_contiguous():
            layout = LAYOUTS[_layout_name(case, name)](value.shape)
            _place_one(case, arena, placement, name, layout, behind.get(name, 0))
        else:
            span = reach(value.shape, value.stride())
            _place_one(case, arena, placement, name, Layout(tuple(value.stride()), 0, span), behind.get(name, 0))
    for name, value in inputs.items():
        if isinstance(value, Alias):
            placement.arguments[name] = _view(arena, placement.arguments[value.of], value)
    for buffer in placement.buffers:
        buffer.keep(arena)
    return placement


def _layout_name(case: Case, name: str) -> str:
    name = case.layout.get(name, "dense")
    if name not in LAYOUTS and name != FUSED:
        raise ValueError(f"unknown layout {name!r}; known are {', '.join(LAYOUTS)} and {FUSED}")
    return "dense" if name == FUSED else name


def _farthest(strides: tuple[int, ...]) -> int:
    """The dimension whose entries lie the furthest apart: each of them is a row of a layout with gaps."""
    return max(range(len(strides)), key=lambda d: strides[d])


def _gapped(value: Tensor, layout: Layout) -> GappedRows | None:
    """The rows of a layout; None where they fill most of it: a long dense tensor has a row for each element."""
    far = _farthest(layout.strides)
    others = [d for d in range(value.dim()) if d != far]
    rows = GappedRows(
        value.shape[far], layout.strides[far], reach([value.shape[d] for d in others], [layout.strides[d] for d in others])
    )
    return rows if 2 * rows.count * rows.reach < layout.total else None


def _place_one(case: Case, arena: Arena, placement: Placement, name: str, layout: Layout, behind: int = 0) -> None:
    value = placement.logical[name]
    rows = _gapped(value, layout) if layout.total > GAPS else None
    block = _fill(case, arena, placement, value.dtype, layout.total + behind, [name], rows)
    _write(arena, placement, name, block.start, layout.strides, layout.offset)
    if behind:
        first = block.start + layout.total * value.element_size()
        rest = value.as_strided((behind,), (1,), value.storage_offset() + reach(value.shape, value.stride()))
        there = arena.tensor(torch.uint8, first, (behind * value.element_size(),), (1,))
        there.copy_(rest.view(torch.uint8))  # as bytes: they may be another dtype's, and a copy of flags makes each 0 or 1


def _joint_dimension(case: Case, first: Tensor, second: object) -> int | None:
    """A dimension along which both may lie in one buffer: the last one, or, of heads of one width, that of the heads."""
    if not isinstance(second, Tensor) or first.dtype != second.dtype or not 2 <= first.dim() == second.dim():
        return None
    if not first.is_contiguous() or not second.is_contiguous():  # a wrong call's strides are to be seen as they are
        return None
    found = [-1] if first.shape[:-1] == second.shape[:-1] else []
    if first.dim() > 2 and first.shape[:-2] == second.shape[:-2] and first.shape[-1] == second.shape[-1]:
        found.append(-2)
    return found[case.seed % len(found)] if found else None


def _place_fused(case: Case, arena: Arena, placement: Placement, name: str, partner: str, dim: int) -> None:
    """Both in one buffer, their rows in turn: k and v halves of a joint projection or cache, or heads of q and of k. A second one
    of which all heads share a row stands beside the first head alone: latents of several groups beside one rope part."""
    first, second = placement.logical[name], placement.logical[partner]
    joint = list(first.shape)
    joint[dim] += second.shape[dim]
    layout = LAYOUTS["dense"](joint)
    block = _fill(case, arena, placement, first.dtype, layout.total, [name, partner])
    _write(arena, placement, name, block.start, layout.strides, 0)
    shared = len(joint) > 2 and case.layout.get(partner) == SHARED
    strides = (*layout.strides[:-2], 0, layout.strides[-1]) if shared else layout.strides
    _write(arena, placement, partner, block.start, strides, first.shape[dim] * layout.strides[dim])


def _fill(
    case: Case,
    arena: Arena,
    placement: Placement,
    dtype: torch.dtype,
    elements: int,
    names: list[str],
    rows: GappedRows | None = None,
) -> Block:
    """A block whose buffer holds poison, with canaries in the rest of its pages; with `rows` only the pages of these."""
    block = arena.allocate(elements * dtype.itemsize, case.guard)
    for first, last in ((block.first, block.start), (block.start + block.nbytes, block.last)):
        arena.write(first, CANARY * (last - first))
    word = poison_word(case.poison, dtype)
    pieces = [(block.first, block.last)] if rows is None else rows.pages(block.start, dtype.itemsize)
    for first, last in pieces:
        begin, end = max(first, block.start), min(last, block.start + block.nbytes)
        arena.fill(begin, (end - begin) // dtype.itemsize, word)
    placement.buffers.append(Buffer(block, names, pieces))
    placement.guards.append(block.last)
    return block


def _write(
    arena: Arena, placement: Placement, name: str, start: int, strides: tuple[int, ...], offset: int
) -> None:
    value = placement.logical[name]
    placed = Placed(value.dtype, start + offset * value.element_size(), tuple(value.shape), strides)
    if value.numel():
        if not value.is_contiguous():  # of a wrong call, and as it lies
            span = reach(value.shape, strides)
            arena.tensor(placed.dtype, placed.start, (span,), (1,)).copy_(value.as_strided((span,), (1,)))
        elif 0 in strides:
            once = tuple(slice(1) if stride == 0 else slice(None) for stride in strides)
            arena.view(placed)[once].copy_(value[once])
        else:
            arena.view(placed).copy_(value)
    placement.arguments[name] = placed


def _view(arena: Arena, base: Placed, alias: Alias) -> Placed:
    view = alias.view(arena.view(base))
    start = int(view.storage_offset()) * view.element_size()
    return Placed(view.dtype, start, tuple(view.shape), tuple(view.stride()))


def element_mask(buffer: Buffer, placed: Placed, mask: Tensor | bool) -> npt.NDArray[np.bool_]:
    """Bytes of a buffer's content that belong to the elements of `placed` for which `mask` holds."""
    width = placed.dtype.itemsize
    allowed = torch.zeros(sum(last - first for first, last in buffer.pieces), dtype=torch.bool)
    sizes, steps = (*placed.sizes, width), (*(stride * width for stride in placed.strides), 1)
    wanted = torch.as_tensor(mask).expand(placed.sizes).unsqueeze(-1).expand(sizes)
    for dim in (n for n, step in enumerate(steps) if step == 0 and sizes[n] > 1):  # one element for all of it
        wanted, sizes = wanted.any(dim, keepdim=True), (*sizes[:dim], 1, *sizes[dim + 1 :])
    if not buffer.has_gaps:
        allowed.as_strided(sizes, steps, placed.start - buffer.block.first).copy_(wanted)
        return allowed.numpy()
    far, done = _farthest(placed.strides), 0
    rows, row_sizes, row_steps = wanted.unbind(far), (*sizes[:far], *sizes[far + 1 :]), (*steps[:far], *steps[far + 1 :])
    for row, (begin, end) in enumerate(buffer.pieces):  # together they would be as large as the gaps
        first = done + placed.start + row * steps[far] - begin
        allowed.as_strided(row_sizes, row_steps, first).copy_(rows[row])
        done += end - begin
    return allowed.numpy()
