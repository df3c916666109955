"""Memory in huge pages, for what is read whole again and again: packed weights and caches of keys and values.

    k_cache, v_cache = (empty((slots, heads, width), torch.bfloat16) for _ in range(2))

Needs Linux with transparent huge pages on `madvise` or `always` (/sys/kernel/mm/transparent_hugepage/enabled); elsewhere it is
memory as any. docs/10-speed.md says what it gains.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from optimized.library import load, raise_as_marked

HUGE_PAGE = 2 << 20


def empty(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor that is not written yet, in huge pages from 2 MiB on. Raises TypeError (a dtype that no kernel knows), ValueError
    (a negative size)."""
    like = torch.empty(0, dtype=dtype)
    try:
        return new(like, sizes)
    except TypeError:
        raise TypeError(f"dtype must be one that a kernel knows, got {dtype}") from None


def new(like: Tensor, sizes: Sequence[int]) -> Tensor:
    """As `like.new_empty(sizes)`, in huge pages."""
    load()
    made: Tensor = raise_as_marked(torch.ops.kernelpair._new_in_huge_pages, like, list(sizes))
    return made


def begins_with_one(tensor: Tensor) -> bool:
    """Whether the memory of a tensor begins with a huge page, as `new` makes it where it is large enough."""
    return tensor.nbytes >= HUGE_PAGE and tensor.data_ptr() % HUGE_PAGE == 0


def stack(made: Iterable[Sequence[Tensor]], count: int) -> list[Tensor]:
    """Of `count` groups of tensors, 1 or more, a stack for each place in a group: as torch.stack, but no group is kept."""
    stacks: list[Tensor] = []
    for i, group in enumerate(made):
        stacks = stacks or [new(part, (count, *part.shape)) for part in group]
        for stacked, part in zip(stacks, group):
            stacked[i] = part
    return stacks
