"""Wrong calls in which an argument that is written and one that is only read have bytes in common."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import FUSED
from kernelpair.call.place import at_the_end, over
from kernelpair.contract.pair import Alias, Inputs, WrongCall
from properties.shared.wrong_calls import Condition, always, made

ALIGNED = 8  # bytes: a buffer of whole ones begins where elements of any dtype may
MOST_IN_TURN = 2**24  # elements: a wide row between any two of a long table would take gigabytes


def laid_over(written: Sequence[str], read: Sequence[str], when: Condition = always) -> WrongCall:
    """An argument that is only read lies, with its numbers, in the memory of one that is written, of any dtype; or one of the two
    begins in the last element of the other; or the rows of both lie in turn, and one's reach into the other's by an element."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        if FUSED in case.layout.values():  # it is one half's layout, and the other's memory has the same gaps
            return None
        pairs = [(to, name) for to in written for name in read if _have_elements(given.get(to), given.get(name))]
        if case.seed % 4 == 3:
            pairs = [(name, to) for to, name in pairs if name not in case.int32]  # cast, it loses what is behind
        pairs = [(to, name) for to, name in pairs if case.layout.get(to, "dense") == "dense"]
        rows = [(to, name) for to, name in pairs if _have_rows(given[to], given[name])]
        if rows and case.seed % 3 == 0:
            to, name = rows[case.seed // 3 % len(rows)]
            memory, alias = _in_turn(to, given[to], given[name])
            return given | {to: memory, name: alias}
        if case.seed % 2 == 0:
            pairs = [(to, name) for to, name in pairs if _fits(given[to], given[name])]
        if not pairs:
            return None
        to, name = pairs[case.seed // 4 % len(pairs)]
        memory, value = given[to].contiguous(), given[name].contiguous()
        memory, alias = _at_its_end(to, memory, value, to in read) if case.seed % 2 else _inside(to, memory, value)
        return given | {to: memory, name: alias}

    return made(make, ValueError, *written, *read, when=when)


def _have_elements(*values: Any) -> bool:
    return all(isinstance(value, Tensor) and value.numel() for value in values)


def _have_rows(memory: Tensor, value: Tensor) -> bool:
    if memory.dtype != value.dtype or min(memory.dim(), value.dim()) < 2 or len(memory) < 2:
        return False
    return max(len(memory), len(value)) * (memory[0].numel() + value[0].numel()) <= MOST_IN_TURN


def _in_turn(to: str, memory: Tensor, value: Tensor) -> tuple[Tensor, Alias]:
    """Rows of both in one buffer, a row of the value behind each of `to`: its last element is the first of the next row."""
    first = memory[0].numel()
    period = first + value[0].numel() - 1
    strides = [(period, *one[:1].contiguous().stride()[1:]) for one in (memory, value)]
    reached, total = (len(memory) - 1) * period + first, max(len(memory), len(value)) * period + 1
    joint, shape = memory.new_zeros(total).as_strided(memory.shape, strides[0]), tuple(value.shape)

    def view(tensor: Tensor) -> Tensor:
        return tensor.as_strided(shape, strides[1], tensor.storage_offset() + first)

    view(joint.copy_(memory)).copy_(value)
    return joint, Alias(to, view, total - reached)


def _fits(memory: Tensor, value: Tensor) -> bool:
    return value.nbytes <= memory.nbytes and memory.nbytes % value.element_size() == 0


def _inside(to: str, memory: Tensor, value: Tensor) -> tuple[Tensor, Alias]:
    """The value in the first bytes of the memory of `to`."""
    memory, shape, dtype = memory.clone(), tuple(value.shape), value.dtype
    memory.flatten().view(torch.uint8)[: value.nbytes] = value.flatten().view(torch.uint8)
    return memory, Alias(to, lambda tensor: over(tensor, shape, dtype))


def _at_its_end(to: str, memory: Tensor, value: Tensor, memory_is_read: bool) -> tuple[Tensor, Alias]:
    """The value from the last element of `to` on. What they share is a number of the one that is read."""
    size, shape, dtype = memory.element_size(), tuple(value.shape), value.dtype
    behind = -(-(memory.nbytes + value.nbytes) // ALIGNED) * ALIGNED // size - memory.numel()
    larger = memory.new_zeros(memory.numel() + behind)[: memory.numel()].view(memory.shape).copy_(memory)
    at_the_end(larger, shape, dtype).copy_(value)
    if memory_is_read:
        larger.copy_(memory)
    return larger, Alias(to, lambda tensor: at_the_end(tensor, shape, dtype), behind)
