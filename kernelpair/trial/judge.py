"""Pure functions that compare what a call left behind with what the contract says. Every condition is one that NaN fails."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelpair.call.defaults import defaults_of, other_defaults
from kernelpair.call.memory import Arena, Placed
from kernelpair.call.outcome import Outcome
from kernelpair.call.place import Buffer, Placement, element_mask
from kernelpair.call.torch_memory import as_handed_out
from kernelpair.call.values import rounded_once
from kernelpair.contract.pair import RoundedOnce
from kernelpair.contract.verdict import Difference, Failure, Tightness
from kernelpair.names import count

SHOWN = 12  # differing elements kept for the table of `replay -v`
FURTHER = 2.5  # times as many bounds: where others are so much further off, a wrong value may be the old one by chance
SHARED = "lies where a result of another call does, which is still held"
MOVED = "the call changed the argument's sizes, strides or data pointer"
STEPS = 4  # of the dtype's grid: so near to the truth, too


@dataclass(frozen=True)
class Compared:
    """What is compared: an output, the truth (float64) and the bound. `mask` limits it to the elements that the contract
    writes; `before` is what the tensor held, so that an element which was not written is told from one that is wrong."""

    name: str
    got: Tensor
    truth: Tensor
    bound: Tensor | RoundedOnce | None
    """None: compared as bits; RoundedOnce: compared as values (no contract says the sign of a zero sum)."""
    mask: Tensor | None = None
    before: Tensor | None = None
    note: str = ""
    any_nan: bool = False
    """Whether of bits a NaN's may be any that make one."""

    @cached_property
    def rounded(self) -> Tensor:
        """The truth in the output's dtype."""
        return rounded_once(self.truth, self.got.dtype)

    @cached_property
    def wide(self) -> Tensor:
        """The output in float64."""
        return self.got.to(torch.float64)

    @cached_property
    def error(self) -> Tensor:
        """Element by element, how far the output is from the truth."""
        return (self.wide - self.truth).abs_()

    def right(self) -> Tensor:
        """Element by element, whether it is right, or not to be judged."""
        if isinstance(self.bound, RoundedOnce):
            good = _equal_values(self.got, self.rounded)
        elif self.bound is None:
            # A truth that went through float64 has lost the payload of a NaN.
            equal = _equal_bits if self.truth.dtype == self.got.dtype and not self.any_nan else _equal_but_payloads
            good = equal(self.got, self.rounded)
        else:
            good = (self.error <= self.bound) & (self.error < math.inf)
            good |= self.wide == self.truth
        return good if self.mask is None else good | ~self.mask

    def kinds(self, good: Tensor) -> dict[str, Tensor]:
        """Kind of failure -> the elements that are not good and wrong in that way: each in one of them."""
        bad, truth = ~good, self.truth if isinstance(self.bound, Tensor) else self.rounded
        stale = self._stale(bad)
        floating = self.got.dtype.is_floating_point and self.got.element_size() > 1
        strange = bad & ~stale & (~self.got.isfinite() & truth.isfinite()) if floating else torch.zeros_like(bad)
        return {"unwritten": stale, "nonfinite": strange, "value": bad & ~stale & ~strange}

    def _stale(self, bad: Tensor) -> Tensor:
        """Of the elements that are not good those that were not written.

        On the grid of a narrow dtype a value that is a little wrong may be the old one. So an element that holds what it held
        has been written too where others are much further off, and all have where none of them is many steps of the grid off.
        """
        if self.before is None:
            return torch.zeros_like(bad)
        stale = bad & _equal_bits(self.got, self.before)
        if not isinstance(self.bound, Tensor) or not bool(stale.any()):
            return stale
        others = bad & ~stale
        if bool(others.any()):
            ratio = self.error / self.bound
            stale &= ~(FURTHER * ratio <= ratio[others].nan_to_num(0.0, posinf=0.0).max())
        step = torch.finfo(self.got.dtype).eps * self.truth.abs() if self.got.dtype.is_floating_point else 0.0
        far = stale & ~(self.error <= STEPS * step)
        return stale if bool(far.any()) else torch.zeros_like(stale)


def values(
    name: str,
    got: Tensor,
    truth: Tensor,
    bound: Tensor | RoundedOnce | None,
    mask: Tensor | None = None,
    before: Tensor | None = None,
) -> tuple[list[Failure], Tightness | None]:
    """Failures of an output, and how near it came to its bound; the arguments are those of `Compared`."""
    compared = Compared(name, got, truth, bound, mask, before)
    return judged(compared), tightness_of(compared)


def judged(compared: Compared) -> list[Failure]:
    """One failure for each kind that some element has."""
    if compared.got.shape != compared.truth.shape:
        return [Failure("layout", compared.name, f"shape {list(compared.got.shape)}, expected {list(compared.truth.shape)}")]
    good = compared.right()
    if bool(good.all()):
        return []
    got, truth, bound = compared.got, compared.truth, compared.bound
    if isinstance(bound, Tensor):
        ratio = compared.error / bound
    else:
        truth = compared.rounded
        bound = torch.zeros((), dtype=torch.float64).expand(good.shape)
        ratio = torch.full(good.shape, math.inf)
    failures = []
    for kind, where in compared.kinds(good).items():
        count = int(where.sum())
        if count:
            shown = _differences(got, truth, bound, ratio, where)
            fresh = compared.before is None and as_handed_out(got[shown[0].index])
            says = _say(kind, count, got.numel(), shown[0]) + ("; memory that nobody has written holds this" if fresh else "")
            failures.append(Failure(kind, compared.name, says, shown))
    return failures


def tightness_of(compared: Compared) -> Tightness | None:
    """How near the output came to its bound, where it has one."""
    if not isinstance(compared.bound, Tensor):
        return None
    return _tightness(compared.error, compared.bound, compared.truth, compared.mask)


def _tightness(error: Tensor, bound: Tensor, truth: Tensor, mask: Tensor | None) -> Tightness | None:
    if mask is not None:
        error, bound, truth = error[mask], bound[mask], truth[mask]
    size = float(truth.square().mean().sqrt()) if truth.numel() else 0.0
    if not size > 0.0 or not math.isfinite(size):
        return None
    ratio = (error / bound).nan_to_num_(0.0, math.inf)
    return Tightness(float(ratio.max()), float(bound.median()) / size)


def _equal_values(got: Tensor, expected: Tensor) -> Tensor:
    """Element by element, equal numbers; NaN equals NaN."""
    return (got == expected) | (got.isnan() & expected.isnan())


def _equal_but_payloads(got: Tensor, expected: Tensor) -> Tensor:
    """Element by element, the same bits, or NaN of any payload."""
    same = _equal_bits(got, expected)
    return same | (got.isnan() & expected.isnan()) if got.dtype.is_floating_point else same


def _equal_bits(got: Tensor, expected: Tensor) -> Tensor:
    """Element by element, the same bits."""
    if not got.dtype.is_floating_point:
        return got == expected
    if got.element_size() == 1:
        return got.view(torch.uint8) == expected.view(torch.uint8)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return got.view(integer) == expected.view(integer)


def same_bits(got: Tensor, expected: Tensor) -> bool:
    """Bit for bit, NaN payloads included."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if not got.numel():
        return True
    return bool(torch.equal(_bytes(got), _bytes(expected)))


def unsigned_zeros(x: Tensor) -> Tensor:
    """The same numbers, with zeros of a plain sign: weights of 0 give them the sign of what they meet."""
    return x.masked_fill(x == 0, 0) if x.is_floating_point() and x.element_size() > 1 else x


def different_bits(got: Tensor, expected: Tensor) -> int:
    """How many elements, of all where shape or dtype differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return got.numel()
    return int((~_equal_bits(got, expected)).sum())


def same_plain(got: Any, expected: Any) -> bool:
    """Equal values, and of the same kind: 3.0 is no 3, and neither is True 1. A subclass, such as numpy's of float, will do."""
    if not isinstance(got, type(expected)) or isinstance(got, bool) != isinstance(expected, bool):
        return False
    if isinstance(expected, tuple | list):
        return len(got) == len(expected) and all(map(same_plain, got, expected))
    return bool(got == expected)


def same(outputs: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """The same outputs, bit for bit."""
    return outputs.keys() == others.keys() and all(
        same_bits(value, others[name]) if isinstance(value, Tensor) else same_plain(value, others[name])
        for name, value in outputs.items()
    )


def shown(outputs: Mapping[str, Any], name: str) -> str:
    """An output in a word or two."""
    value = outputs.get(name)
    return "no result" if name not in outputs else "a tensor" if isinstance(value, Tensor) else repr(value)


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.flatten()
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def _differences(got: Tensor, truth: Tensor, bound: Tensor, ratio: Tensor, mask: Tensor) -> tuple[Difference, ...]:
    """The worst elements of the mask, worst first."""
    where = mask.nonzero()
    order = ratio[mask].nan_to_num(math.inf).argsort(descending=True, stable=True)[:SHOWN]
    return tuple(
        Difference(tuple(i), _number(truth[tuple(i)]), _number(got[tuple(i)]), float(bound[tuple(i)]), float(ratio[tuple(i)]))
        for i in where[order].tolist()
    )


def _number(element: Tensor) -> float | int | bool:
    value = element.item() if element.dtype.itemsize > 1 or not element.dtype.is_floating_point else float(element.float())
    return value


def _say(kind: str, count: int, total: int, worst: Difference) -> str:
    index = list(worst.index)
    if kind == "unwritten":
        return f"{count} of {total} elements keep their old content, the first {index}"
    if kind == "nonfinite":
        return f"{count} of {total} elements are not finite, the first {index}: {worst.got} for {worst.expected:.6g}"
    expected, got = worst.told()
    tail = f", bound {worst.bound:.3g}, ratio {worst.ratio:.3g}" if worst.bound else ", must be equal"
    return f"{count} of {total} elements differ, the worst {index}: {got} for {expected}{tail}"


def memory(placement: Placement, arena: Arena, masks: Mapping[str, Tensor | bool], scratch: tuple[str, ...]) -> list[Failure]:
    """Bytes that may not change: inputs, the unwritten part of mutated arguments, and what lies around every buffer."""
    failures = []
    owners = _owners(placement)
    for buffer in placement.buffers:
        if buffer.has_gaps and arena.resident(buffer.block.first, buffer.block.last) != buffer.resident:
            kind = "untouched" if any(name in masks or name in scratch for name in owners[id(buffer)]) else "input_changed"
            what = " and ".join(buffer.arguments)
            failures.append(Failure(kind, buffer.arguments[0], f"memory between the rows of {what} was written or read"))
        after = buffer.content(arena)
        if after == buffer.before:
            continue
        changed = np.frombuffer(after, np.uint8) != np.frombuffer(buffer.before, np.uint8)
        names = [name for name in owners[id(buffer)] if name in masks or name in scratch]
        for name in names:
            changed &= ~element_mask(buffer, placement.arguments[name], masks.get(name, True))
        if changed.any():
            failures.append(_trespass(buffer, placement, changed, bool(names)))
    return failures


def _owners(placement: Placement) -> dict[int, list[str]]:
    """Buffer -> the tensor arguments that lie in it, aliases included."""
    owners: dict[int, list[str]] = {id(buffer): [] for buffer in placement.buffers}
    for name, placed in placement.arguments.items():
        if isinstance(placed, Placed):
            for buffer in placement.buffers:
                if name in buffer.arguments or buffer.block.first <= placed.start < buffer.block.last:
                    owners[id(buffer)].append(name)
                    break
    return owners


def _trespass(buffer: Buffer, placement: Placement, changed: Any, mutated: bool) -> Failure:
    where = np.flatnonzero(changed)
    name = buffer.arguments[0]
    kind = "untouched" if mutated else "input_changed"
    what = " and ".join(buffer.arguments)
    if buffer.has_gaps:
        return Failure(kind, name, f"{count(len(where), 'byte')} around the rows of {what} changed that must not")
    left = buffer.block.start - buffer.block.first
    first = int(where[0]) - left
    side = "left of" if first < 0 else "right of" if first >= buffer.block.nbytes else "inside"
    width = placement.arguments[name].dtype.itemsize
    position = first if first < 0 else first - buffer.block.nbytes if first >= buffer.block.nbytes else first // width
    unit = "byte" if side != "inside" else "element"
    detail = f"{count(len(where), 'byte')} of {what} changed that must not, the first {side} the buffer ({unit} {position})"
    return Failure(kind, name, detail)


def result_shape(name: str, sizes: tuple[int, ...], dtype: torch.dtype, truth: Tensor, expected: torch.dtype) -> list[Failure]:
    """The result has the shape and dtype that the contract says."""
    if tuple(truth.shape) != sizes:
        return [Failure("layout", name, f"shape {list(sizes)}, expected {list(truth.shape)}")]
    if dtype != expected:
        return [Failure("layout", name, f"dtype {dtype}, expected {expected}")]
    return []


def is_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements of these sizes lie densely in their order; the stride of a size of 1 says nothing."""
    if 0 in sizes:
        return True
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size > 1 and stride != step:
            return False
        step *= max(size, 1)
    return True


def left(outcome: Outcome) -> list[Failure]:
    """What a call, also one that was refused, did to earlier results and to the form of its arguments, and what it left."""
    return [
        *(Failure("overwritten", name, "the result of an earlier call changed") for name in outcome.overwritten),
        *(Failure("overwritten", name, SHARED) for name in outcome.shared if name not in outcome.overwritten),
        *(Failure("layout", name, MOVED) for name in outcome.moved),
        *(Failure("argument_form", name, says) for name, says in outcome.reformed),
        *([Failure("left_behind", "", outcome.left)] if outcome.left else []),
        *([Failure("untouched", "", outcome.damage)] if outcome.damage else []),
    ]


def declared(reference: Callable[..., Any], outcome: Outcome) -> list[Failure]:
    """What the candidate says of itself wrongly: results by its operators' fake implementations, and defaults."""
    wrong = other_defaults(outcome.defaults, defaults_of(reference))
    return [Failure("fake", operator, says) for operator, says in outcome.fakes.items()] + [
        Failure("default", name, says) for name, says in wrong.items()
    ]
