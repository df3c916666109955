"""Where the elements of a logical tensor lie in memory: every layout that a contract may allow, as sizes and strides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

STRIDED = "strided"
EXPANDED = "expanded"
SHARED = "shared"
FLAT = "flat"
FAR = "far"
FAR_COLUMNS = "far_columns"
ODD_STRIDE = 13  # of a dimension of size 1 or 0, where any stride is legal
PAD = 5  # elements between the rows of a padded tensor
MARGIN = 1  # rows and heads before and after a slice of a larger tensor
FAR_SPAN = 2**31  # elements: an offset of 32 bits, in elements or bytes, overflows on the way
MOST_FAR_COLUMNS = 300  # each takes a page of memory
OFFSET = 3  # elements in front of a tensor whose storage starts misaligned


@dataclass(frozen=True)
class Layout:
    """Strides and offset in elements, and the number of elements of the buffer."""

    strides: tuple[int, ...]
    offset: int
    total: int


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to one past the last that is addressed; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _odd_ones(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(ODD_STRIDE if size <= 1 else stride for size, stride in zip(shape, strides))


def _dense(shape: Sequence[int]) -> Layout:
    return Layout(tuple(_contiguous(shape)), 0, prod(shape))


def _offset(shape: Sequence[int]) -> Layout:
    return Layout(tuple(_contiguous(shape)), OFFSET, prod(shape) + OFFSET)


def _padded(shape: Sequence[int]) -> Layout:
    """Rows a few elements apart."""
    strides = _contiguous([*shape[:-1], shape[-1] + PAD]) if shape else []
    return Layout(_odd_ones(shape, strides), 0, reach(shape, strides))


def _sliced(shape: Sequence[int]) -> Layout:
    """The middle of a larger tensor: a head range and a column range, with other data on all sides."""
    if not shape:
        return _dense(shape)
    outer = [*shape[:1], *(size + 2 * MARGIN for size in shape[1:-1])] if len(shape) > 1 else []
    larger = [*outer, shape[-1] + 2 * PAD]
    strides = _contiguous(larger)
    offset = PAD + sum(MARGIN * stride for stride in strides[1:-1])
    return Layout(_odd_ones(shape, strides), offset, prod(larger))


def _swapped(shape: Sequence[int]) -> Layout:
    """Outer dimensions in reversed order in memory, the last one dense."""
    if len(shape) < 3:
        return _dense(shape)
    *inner, last = _contiguous([*reversed(shape[:-1]), shape[-1]])
    return Layout((*reversed(inner), last), 0, prod(shape))


def _strided(shape: Sequence[int]) -> Layout:
    """Every second element: for indices and vectors, of which any stride is legal."""
    strides = tuple(2 * stride for stride in _contiguous(shape))
    return Layout(_odd_ones(shape, strides), 1, 1 + reach(shape, strides))


def _transposed(shape: Sequence[int]) -> Layout:
    """All dimensions in reversed order: the last is not dense."""
    strides = _contiguous([*reversed(shape)])[::-1]
    return Layout(tuple(strides), 0, prod(shape))


def _exchanged(layout: Callable[[Sequence[int]], "Layout"]) -> Callable[[Sequence[int]], "Layout"]:
    """A layout of the tensor with its last two dimensions exchanged: the one before the last becomes dense."""

    def exchanged(shape: Sequence[int]) -> Layout:
        if len(shape) < 2:
            return layout(shape)
        found = layout([*shape[:-2], shape[-1], shape[-2]])
        *outer, last, dense = found.strides
        return Layout((*outer, dense, last), found.offset, found.total)

    return exchanged


def _apart(shape: Sequence[int]) -> Layout:
    """Entries of the first dimension a few elements apart, each dense: heads of one part of a fused projection."""
    if len(shape) < 2:
        return _dense(shape)
    strides = [prod(shape[1:]) + PAD, *_contiguous(shape[1:])]
    return Layout(_odd_ones(shape, strides), 0, reach(shape, strides))


def _far(shape: Sequence[int]) -> Layout:
    """Rows of the first dimension so far apart that the last one lies beyond 2^31 elements: a pool as large as a machine's
    memory. The memory between the rows is never touched, so it takes no pages."""
    if len(shape) < 2 or shape[0] < 2 or 0 in shape:
        return _dense(shape)
    inner = _contiguous(shape[1:])
    step = prod(shape[1:]) + FAR_SPAN // (shape[0] - 1) + ODD_STRIDE
    strides = (step, *inner)
    return Layout(_odd_ones(shape, strides), 0, reach(shape, strides))


def _far_columns(shape: Sequence[int]) -> Layout:
    """The entries of the last dimension so far apart that an offset of 32 bits does not reach the last of them."""
    if not shape or not 2 <= shape[-1] <= MOST_FAR_COLUMNS or 0 in shape:
        return _dense(shape)
    *outer, columns = shape
    strides = (*_contiguous(outer), prod(outer) + FAR_SPAN // (columns - 1) + ODD_STRIDE)
    return Layout(_odd_ones(shape, strides), 0, reach(shape, strides))


def _expanded(shape: Sequence[int]) -> Layout:
    """Stride 0 along the first dimension: all its entries are one."""
    if not shape:
        return _dense(shape)
    strides = _contiguous(shape)
    return Layout((0, *strides[1:]), 0, prod(shape[1:]) if 0 not in shape else 0)


def _shared(shape: Sequence[int]) -> Layout:
    """Stride 0 along the dimension before the last, of at least three: all heads of a token have one row."""
    if len(shape) < 3:
        return _dense(shape)
    outer = _contiguous([*shape[:-2], shape[-1]])
    return Layout((*outer[:-1], 0, 1), 0, prod(shape[:-2]) * shape[-1] if shape[-2] else 0)


def _flat(shape: Sequence[int]) -> Layout:
    """Stride 0 along the last dimension, of at least two: all entries of a row are one."""
    if len(shape) < 2:
        return _dense(shape)
    return Layout((*_contiguous(shape[:-1]), 0), 0, prod(shape[:-1]) if shape[-1] else 0)


LAYOUTS: dict[str, Callable[[Sequence[int]], Layout]] = {
    "dense": _dense,
    "offset": _offset,
    "padded": _padded,
    "apart": _apart,
    "sliced": _sliced,
    "swapped": _swapped,
    STRIDED: _strided,
    "transposed": _transposed,
    EXPANDED: _expanded,
    SHARED: _shared,
    FLAT: _flat,
    FAR: _far,
    FAR_COLUMNS: _far_columns,
    "turned": _exchanged(_dense),
    "turned_padded": _exchanged(_padded),
    "turned_sliced": _exchanged(_sliced),
}
REPEATED = (EXPANDED, SHARED, FLAT)
"""Layouts in which several rows, or all entries of a row, are one."""
DENSE_LAST = ("offset", "padded", "apart", "sliced", "swapped")
"""Layouts that keep the last dimension dense: for float tensors that a kernel writes or reads."""
READ_ONLY = (*DENSE_LAST, EXPANDED)
"""The same with stride 0, for tensors that are only read."""
ANY_STRIDES = ("offset", STRIDED, "transposed")
"""For indices and lengths."""
PARAMETERS = (*ANY_STRIDES, EXPANDED)
"""For vectors of numbers or flags: one may stand for all of them."""
TURNED = ("turned", "turned_padded", "turned_sliced")
"""Layouts that make the dimension before the last one dense, as in channels-last activations."""
READ_ROWS = (*READ_ONLY, SHARED, FAR)
"""For rows that are only read: offsets of 32 bits do not reach the last one."""
POOL = (*DENSE_LAST, FAR)
"""For those that are written, pools of slots and pages foremost."""
TABLE = (*ANY_STRIDES, FAR, FAR_COLUMNS)
"""For tables of indices."""
FAR_VECTOR = (*ANY_STRIDES, FAR_COLUMNS)
"""For vectors of indices and lengths that may be a column of a table as large as a machine's memory."""
FAR_PARAMETERS = (*PARAMETERS, FAR_COLUMNS)
"""The same of numbers or flags."""
FUSED = "fused"
"""Of a tensor whose next argument shares its buffer row by row, as k and v halves of one projection (`Signature.fused`)."""
