"""Two arguments in one storage, of which a call writes one: side by side without a shared byte, or sharing one element."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm, prod

import torch
from torch import Tensor

from kernelpair.call.layout import FUSED, reach
from kernelpair.call.place import resolve, settle
from kernelpair.call.values import generator
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Alias, Inputs, Pair

ALIGNED = 8  # bytes: a buffer of whole ones begins where elements of any dtype may
WRITTEN_BOTH, WRITTEN_ONE = 2, 3  # placements with a shared element that a trial makes where both, or one, are written
LARGE = 1 << 22  # bytes of all arguments from which a trial makes one placement of each kind
ROWS = {-1: ("padded", "sliced"), -2: ("apart", "sliced")}
"""Joint dimension -> layouts that show that an argument may be a part of a tensor wider in it; the first is the plainest."""


@dataclass(frozen=True)
class Neighbours:
    """A call with two arguments in one storage."""

    names: tuple[str, str]
    """In the order of memory."""
    shared: bool
    """Whether one element of either is one of the other."""
    surely: bool
    """Whether the call writes one of them, so that nothing may be shared."""
    says: str
    case: Case
    """Like the case of the trial, with layouts that come nearest to this placement."""
    apart: Inputs
    """The arguments with a storage each, to be placed in the layouts of `case`."""
    inputs: Inputs
    """The same values, two of them in one storage, to be placed with their own strides."""


def neighbours(pair: Pair, case: Case, given: Inputs) -> list[Neighbours]:
    """What a trial of the case makes: placements that share nothing first, then those that share an element; the same for the
    same case. Empty where the call writes into no argument that has elements."""
    settled = settle(pair, case, given)
    rng = generator(case.seed, "neighbours")
    pairs = list(_pairs(pair, settled))
    pairs = [pairs[i] for i in rng.permutation(len(pairs)).tolist()]
    touched = {*pair.signature.written, *pair.signature.scratch}
    both = [names for names in pairs if touched.issuperset(names)]
    one = [names for names in pairs if not touched.issuperset(names)]
    rows = [(names, dims) for names in pairs if (dims := _joint_dimensions(pair, settled, *names))]
    few = sum(value.nbytes for value in settled.values() if isinstance(value, Tensor)) >= LARGE
    in_turn = [(names, dims[int(rng.integers(len(dims)))]) for names, dims in rows[:2]]
    chosen = [(names, None, False) for names in pairs[:1]] + [(names, dim, False) for names, dim in in_turn[:1]]
    chosen += [(names, None, True) for names in (*both[: 1 if few else WRITTEN_BOTH], *one[: 1 if few else WRITTEN_ONE])]
    chosen += [(names, dim, True) for names, dim in in_turn[-1:]]
    writes = _written(pair, case, settled)
    found = []
    for names, dim, shared in chosen:
        if shared and not _begins_later(settled, names, dim):
            continue
        memory, alias, says = _together(settled, names, dim, shared)
        alias.view(memory).copy_(settled[names[1]])
        if shared and names[1] in touched:  # what they share is a number of the one that is read
            memory.copy_(settled[names[0]])
        inputs = settled | {names[0]: memory, names[1]: alias}
        near = _laid_out(case, names, ROWS[dim][0] if dim is not None else "")
        found.append(Neighbours(names, shared, bool(writes & set(names)), says, near, settled, inputs))
    return found


def _pairs(pair: Pair, settled: Inputs) -> Iterator[tuple[str, str]]:
    """Each two arguments of which one may be written, in both orders. A view of another argument stays where it is."""
    touched = {*pair.signature.written, *pair.signature.scratch}
    bases = {value.of for value in settled.values() if isinstance(value, Alias)}
    names = [name for name, value in settled.items() if isinstance(value, Tensor) and value.numel() and name not in bases]
    return ((a, b) for a in names for b in names if a != b and touched & {a, b})


def _written(pair: Pair, case: Case, settled: Inputs) -> set[str]:
    """The arguments of which the call writes an element."""
    logical = resolve(settled)
    masks = {name: mask for name, mask in pair.signature.written.items() if isinstance(logical.get(name), Tensor)}
    return {name for name, mask in masks.items() if bool(torch.as_tensor(mask(case, logical)).any())}


def _joint_dimensions(pair: Pair, settled: Inputs, first: str, second: str) -> list[int]:
    """The dimensions along which both may be parts of one tensor whose rows then lie in turn."""
    a, b, layouts = settled[first], settled[second], pair.signature.layouts
    if a.dtype != b.dtype or a.dim() != b.dim():
        return []
    found = []
    for dim, kinds in ROWS.items():
        rest_a, rest_b = list(a.shape), list(b.shape)
        if len(rest_a) <= -dim or prod(rest_a[:dim]) < 2:
            continue
        if any(set(kinds).isdisjoint(layouts.get(name, ())) for name in (first, second)):
            continue
        del rest_a[dim], rest_b[dim]
        if rest_a == rest_b:
            found.append(dim)
    return found


def _begins_later(settled: Inputs, names: tuple[str, str], dim: int | None) -> bool:
    """Whether the second, an element earlier than beside the first, begins behind where the first begins: a contract may permit
    that both begin at one address."""
    first, second = (settled[name] for name in names)
    return first.nbytes > second.element_size() if dim is None else prod(first.shape[dim:]) > 1


def _laid_out(case: Case, names: tuple[str, str], kind: str) -> Case:
    """The case with these two in one layout, dense unless `kind` says another."""
    others = {name: layout for name, layout in case.layout.items() if name not in names and layout != FUSED}
    return replace(case, layout=others | (dict.fromkeys(names, kind) if kind else {}))


def _together(settled: Inputs, names: tuple[str, str], dim: int | None, shared: bool) -> tuple[Tensor, Alias, str]:
    """The first with the storage of both, the second as a view of it, and in words how they lie."""
    first, second = names
    if dim is None:
        says = f"{second} begins {'in the last element' if shared else 'at the end'} of {first}"
        return *_behind(first, settled[first], settled[second], shared), says
    says = f"rows of {first} and {second} lie in turn{', and each has an element of the one before it' if shared else ''}"
    return *_in_turn(first, settled[first], settled[second], dim, shared), says


def _behind(of: str, first: Tensor, second: Tensor, shared: bool) -> tuple[Tensor, Alias]:
    """The second from the end of the first on, or from its last byte at which an element of the second may begin."""
    size, width = first.element_size(), second.element_size()
    start = (first.nbytes - 1) // width if shared else -(-first.nbytes // width)
    whole = lcm(ALIGNED, size)
    total = -(-max(first.nbytes, start * width + second.nbytes) // whole) * whole // size
    shape, dtype, strides = tuple(second.shape), second.dtype, second.stride()

    def view(tensor: Tensor) -> Tensor:
        begin = tensor.storage_offset() * size // width
        return torch.empty(0, dtype=dtype).set_(tensor.untyped_storage(), begin + start, shape, strides)

    memory = first.new_zeros(total)[: first.numel()].view(first.shape).copy_(first)
    return memory, Alias(of, view, total - first.numel())


def _in_turn(of: str, first: Tensor, second: Tensor, dim: int, shared: bool) -> tuple[Tensor, Alias]:
    """Both as parts of one tensor, along `dim`; or so that each row of the second begins in the last element of the first's."""
    shape, joint = tuple(second.shape), list(first.shape)
    joint[dim] += second.shape[dim]
    whole = first.new_zeros(joint)
    strides, start = whole.stride(), first.shape[dim] * whole.stride(dim) - shared
    memory = whole.narrow(dim, 0, first.shape[dim]).copy_(first)

    def view(tensor: Tensor) -> Tensor:
        return tensor.as_strided(shape, strides, tensor.storage_offset() + start)

    return memory, Alias(of, view, whole.numel() - reach(first.shape, strides))
