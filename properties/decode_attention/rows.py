"""decode_attention: the numbers of a case. `table` is its `SlotTable`."""

from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import EXPANDED
from kernelpair.call.values import generator, small_integers, uniform
from properties.shared.attention_values import even_key, extreme, far_latents, joint, level, lose, loses, make_extreme, rising

HOT = 16.0  # q.k of a one-hot case is 0 or 256: exp(-256) is 0 in float32, and no trace of it is left in a float64 sum


def rows_of(case: Any, name: str, count: int, width: int, scale: float) -> Tensor:
    """[count, Hkv, width] of random numbers, or of small integers for an exact case."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.values == "random":
        rows = uniform(case.seed, name, (count, case.kv_heads, width), dtype, scale)
        return level(case, name, rows) if name == "k" else rows
    return small_integers(case.seed, name, (count, case.kv_heads, width), dtype)


def scales_of(case: Any) -> tuple[float, float, float]:
    """sm_scale, and the sizes of q and k that make scores of the wanted spread (uniform numbers: variance 1/3 each)."""
    sm_scale = 1.0 if case.values == "one_hot" else case.width**-0.5
    product = 3 * case.spread / (sm_scale * case.width**0.5)
    return sm_scale, case.size / far_latents(case), product / case.size * far_latents(case)


def mark_keys(case: Any, table: Any, k: Tensor, v: Tensor) -> None:
    """Make the keys that a call may get wrong visible: the first, the last, the window's edge on both sides, and a few more.

    One of n equal keys would drown in the rounding of the others: a marked one has a value n times as large. In a one-hot
    case a key for each request and head gets all the weight.
    """
    if case.values == "one_hot":
        k[..., 0] = 0
        for b, slots in enumerate(table.seen):
            if len(slots):
                hot = generator(case.seed, f"hot{b}").integers(0, len(slots), size=case.kv_heads)
                k[slots[torch.from_numpy(hot)], torch.arange(case.kv_heads), 0] = HOT
        return
    if case.values == "equal":
        k[..., 0] = even_key(case)
        return
    largest = 3e4 / (float(v.abs().max()) if v.numel() else 1.0)  # float16 ends at 65504
    done = torch.zeros(table.slots, dtype=torch.bool)  # requests that share a row would mark its keys again and again
    for b, slots in enumerate(table.seen):
        if not len(slots):
            continue
        more = generator(case.seed, f"marked{b}").integers(0, len(slots), size=3).tolist()
        marked = torch.unique(slots[[0, len(slots) - 1, *more]])
        marked = torch.cat([marked, table.hidden[b][-1:]])
        marked = marked[~done[marked]]
        done[marked] = True
        factor = min(max(len(slots) / 4, 1.0), largest)
        if case.shared:  # a longer key: for some heads it has much of the weight
            k[marked] *= 3
        else:
            v[marked] = (v[marked].float() * factor).to(v.dtype)


def loses_keys(case: Any) -> bool:
    """Whether some keys are of no weight, in an element that is no value; of requests that share keys others would lose all."""
    shares = case.same_row or (case.write and case.layout.get("key") == EXPANDED)
    return loses(case) and not shares and not (case.shared and case.width_v == case.width)


def lose_keys(case: Any, table: Any, q: Tensor, k: Tensor) -> None:
    """The raw scores of some of each request's keys become -inf."""
    rising(q, -1)
    for b, slots in enumerate(table.seen):
        keys = k[slots]
        lose(case, f"lost{b}", keys, torch.tensor([0]), torch.tensor([len(slots)]), -1)
        k[slots] = keys


def make_keys_extreme(case: Any, table: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """The values of each request's keys as `extreme` says; faint keys are so by the first element of each query."""
    if extreme(case) == "faint":
        q[..., 0] = case.size
    longest = max(map(len, table.seen), default=0)
    for b, slots in enumerate(table.seen):
        keys, values = k[slots], v[slots]
        make_extreme(case, f"k{b}", keys, values, longest)
        if not joint(case):
            k[slots], v[slots] = keys, values
