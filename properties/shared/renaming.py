"""A cache whose slots or pages have other names: the relation that names do not matter, for every kernel that reads a table."""

import torch
from torch import Tensor

from kernelpair.call.values import permutation


def new_names(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """A permutation `order` of the slots, and what each is then called: the cache becomes cache[order], its slot s names[s]."""
    order = permutation(seed, "rename", count)
    return order, order.argsort()


def renamed(entries: Tensor, names: Tensor) -> Tensor:
    """Entries of a table under the new names, int64; what is no slot, such as a pad, stays as it is."""
    entries, count = entries.long(), len(names)
    real = (entries >= 0) & (entries < count)
    return torch.where(real, names[entries.clamp(0, count - 1)], entries)
