"""Numbers for attention cases: random ones of a wanted spread of scores, or such that the result is exact.

In both kinds the keys that a wrong kernel may lose or gain are visible: one of n equal keys would drown in the rounding of
the others, so a marked key has a value n / 4 times as large, or a score that takes all the weight.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from kernelpair.call.values import generator, small_integers, uniform
from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.shared.attention_bound import EXP_ERROR, UNIT_ROUNDOFF

Values = Literal["random", "one_hot", "equal"]
HOT = 16.0  # q.k of hot keys is 256, 512, ..: exp(-256) is 0 in float32, and of no weight in a float64 sum
TRACE = 1e-100  # what keys without weight do leave in the truth of an element whose value is 0
MOST_HOT = 4
MOST_SMALL = 2  # of values that are whole numbers
EVEN = 128.0  # of q and k where all scores are the same, and far from 0
FAR = {"float32": 129 * 2.0**25, "bfloat16": 129 * 2.0**25, "float16": 129 * 2.0**8}  # of q, seldom: z is rounded by more than 1
CAPS = (0.0, 0.0, 0.0, 2.0, 30.0, 100.0, 600.0, 1e-15)  # by the last one the largest scale of random keys can still be divided
LARGEST = 3e4  # float16 ends at 65504
WIDE_WINDOWS = (2**31, 2**32 + 1, 2**63 - 1)  # they cut nothing; read in 32 bits they would
NO_WINDOWS = (-5, -(2**63))  # below the usual -1
LARGE_SCALE = 1.75 * 2.0**127  # times log2(e) it leaves float32
MOST_SUM, SMALL_VALUES = 2.0**126, 2.0**-110  # of a row's values, in all; and each where all are small
FAINT = (20.0, 40.0, 60.0)  # how far the scores of faint keys lie below the others
FAINT_SEED = 15  # of 16: the keys are faint, if nothing stands against it
MANY_HEADS = ((300, 300), (300, 2), (300, 300), (300, 1))  # more of either, or of a group, than a byte counts
UNEVEN = (41, 47, 55, 61)  # groups whose size times its reciprocal, rounded to float32, is below 1
FAR_LATENTS = 2.0**90  # or its inverse: of latents, which are keys and values


def sm_scale(case: Any, width: int) -> float:
    """The scale of the scores; for seldom cases near the ends of what float32 holds."""
    return (1.0 if case.values == "one_hot" else width**-0.5) * stretch(case)[0]


def stretch(case: Any) -> tuple[float, float]:
    """What multiplies the scale, and what the queries, so that scores stay where they are; those of one hot key may grow.

    Of random numbers no product that counts becomes subnormal. float16 has no room for queries so far from 1.
    """
    half, far = case.dtype == "float16", {6: 1, 14: 1, 9: -1}.get(case.seed % 16, 0)
    if not far or not (getattr(case, "scaled", True) or case.values == "one_hot"):
        return 1.0, 1.0
    if case.values == "random":
        return (1.0, 1.0) if half else (2.0 ** (60 * far), 2.0 ** (-60 * far))
    if far < 0:
        if half:
            return (2.0**-100, 1.0) if case.values == "equal" else (1.0, 1.0)
        return 2.0**-80, 2.0**80
    if half:
        return LARGE_SCALE if case.values == "one_hot" else 2.0**100, 2.0**-18
    return LARGE_SCALE, 2.0**-120


def unusual_heads(seed: int) -> tuple[int, int] | None:
    """(H, Hkv) of two cases in 32: very many of them, or a group of any size up to 64, which no power of two need divide."""
    if seed % 32 == 27:
        return MANY_HEADS[seed // 32 % len(MANY_HEADS)]
    if seed % 32 != 13:
        return None
    group, kv_heads = UNEVEN[seed // 128 % len(UNEVEN)] if seed // 64 % 2 else 1 + seed // 128 % 64, 1 + seed // 32 % 2
    return group * kv_heads, kv_heads


def cap_of(case: Any) -> float:
    """The cap of the scores. None is 0, of either sign."""
    return -0.0 if case.cap == 0 and case.seed % 8 == 5 else float(case.cap)


def steep(fields: dict[str, Any], cap: float) -> dict[str, Any]:
    """The fields with scores far beyond the cap, of half of the cases that have one."""
    room = fields["size"] >= 0.1  # the keys of smaller queries are large as they are
    return fields | {"spread": 16 * fields["spread"]} if cap and room and fields["seed"] % 2 else fields


def extreme(case: Any) -> Literal["", "large", "small", "faint"]:
    """What is unusual about the values of seldom random cases: all as large as a row's sum allows, or as small as leaves results
    normal numbers; or a run of keys has weights near 0 and values that make up for it."""
    if case.values != "random" or getattr(case, "cache", "same") != "same" or getattr(case, "same_row", False):
        return ""
    kinds: dict[int, Literal["", "large", "small", "faint"]] = {7: "large", 8: "small", FAINT_SEED: "faint"}
    found = kinds.get(case.seed % 16, "")
    if case.dtype == "float16" and found != "large":  # it has no room for them
        return ""
    return "" if found == "faint" and (bool(getattr(case, "cap", 0.0)) or joint(case)) else found


def joint(case: Any) -> bool:
    """Whether a value is part of its key: in a shared buffer, or a latent (of mla_decode `latent` is its width)."""
    return bool(getattr(case, "shared", False) or getattr(case, "latent", False))


def far_latents(case: Any) -> float:
    """What multiplies keys that are values too, and divides the queries: scores stay where they are."""
    if case.dtype == "float16" or not joint(case):
        return 1.0
    return {"large": FAR_LATENTS, "small": 1 / FAR_LATENTS}.get(extreme(case), 1.0)


def make_extreme(case: Any, name: str, k: Tensor, v: Tensor, most: int) -> None:
    """The values of a request's keys [n, Hkv, ..] as `extreme` says, in place; no row of the call sees more than `most` keys."""
    kind = "" if joint(case) else extreme(case)
    largest = float(v.abs().max()) if v.numel() else 0.0
    if not kind or not largest:
        return
    if kind == "faint":
        n, one = len(k), int(generator(case.seed, f"{name} faint").integers(0, len(k)))
        runs = (slice(one, one + 1), slice(0, n - n // 4), slice(n // 4, n), slice(n // 4, n - n // 4))  # whole splits and blocks
        faint, below = runs[case.seed // 64 % len(runs)], FAINT[case.seed // 16 % len(FAINT)]
        k[faint, :, 0] -= below / (case.size * sm_scale(case, k.shape[-1]))
        v[faint] *= math.exp(below)
    elif case.dtype == "float16":
        v *= (1 if any(getattr(case, "descale", ())) else 2) * LARGEST / largest
    else:
        factor = 2.0 ** math.floor(math.log2((MOST_SUM / most if kind == "large" else SMALL_VALUES) / largest))
        v[:] = (v.double() * factor).to(v.dtype)  # the factor may be beyond float32


def even_key(case: Any) -> float:
    """The first element of all keys of a case of equal scores: 0, or such that scores are so far off that only the difference to
    the largest can be raised to a power. Merging splits would round it, and of a key that is its own value not one element is
    free."""
    free = case.values == "equal" and getattr(case, "splits", 1) == 1 and not getattr(case, "shared", False)
    return (0.0, EVEN, -EVEN)[case.seed % 3] if free else 0.0


def even_query(case: Any) -> float:
    """What it meets in each query."""
    return FAR[case.dtype] if case.seed % 5 == 2 else EVEN


def level(case: Any, name: str, k: Tensor) -> Tensor:
    """Random keys, in every eighth case all the same but for a few: many small weights beside a few large ones. In place."""
    if case.values == "random" and case.seed % 8 == 3 and len(k):
        others = k[generator(case.seed, f"{name} level").integers(0, len(k), size=3)].clone()
        at = generator(case.seed, f"{name} others").integers(0, len(k), size=3)
        k[:] = k[0].clone()
        k[at] = others
    return k


def queries(case: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """Random; or such that only element 0 of a key counts, or nothing does."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.values == "random":
        q = uniform(case.seed, name, shape, dtype, case.size) / far_latents(case)
        if extreme(case) == "faint":
            q[..., 0] = case.size
        return rising(q * stretch(case)[1], 0) if loses(case) else q * stretch(case)[1]
    q = torch.zeros(shape, dtype=dtype)
    q[..., :1] = (HOT if case.values == "one_hot" else even_query(case)) * stretch(case)[1]
    return q


def keys(case: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Random, so that scores have the case's spread (uniform numbers have variance 1/3); or whole numbers, the first of which
    alone counts."""
    dtype = dtype or getattr(torch, case.dtype)
    if case.values == "random":
        size = 3 * case.spread / case.size * far_latents(case)
        return level(case, name, uniform(case.seed, name, shape, torch.float32, size).to(dtype))
    k = small_integers(case.seed, name, shape, dtype, MOST_SMALL)
    k[..., :1] = even_key(case)
    return k


def values(case: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Random of the case's size, or small whole numbers."""
    dtype = dtype or getattr(torch, case.dtype)
    if case.values == "random":
        return uniform(case.seed, name, shape, torch.float32, case.size * far_latents(case)).to(dtype)
    return small_integers(case.seed, name, shape, dtype, MOST_SMALL)


def loses(case: Any) -> bool:
    """Whether some keys of a random case hold -inf, in an element that all queries have above 0: their raw scores are -inf."""
    return bool(case.values == "random" and case.seed % 8 == 5)


def rising(q: Tensor, column: int) -> Tensor:
    """The queries with one column above 0. In place."""
    q[..., column] = q[..., column].abs().clamp_min(float(q.abs().max()) / 16 if q.numel() else 0.0)
    return q


def lose(case: Any, name: str, k: Tensor, low: Tensor, high: Tensor, column: int = 0) -> None:
    """-inf in a run of the keys [n, Hkv, ..] of a request, of which row i sees those from low[i] up to high[i]. In place.

    Each row that sees a key sees one that is none of these: without any its result would be unspecified. All but one of the
    keys, or about half of them, stand in front, in the middle or behind: whole blocks where there are several.
    """
    n = len(k)
    if not loses(case) or n < 2 or not k.dtype.is_floating_point or not torch.isinf(k.new_full((), -torch.inf)):
        return
    low, high = low.clamp(0, n), high.clamp(0, n)
    runs = [(0, n - 1), (1, n), (1, n - 1), (0, n // 2), (n - n // 2, n), (n // 4, n - n // 4)]
    start = int(generator(case.seed, name).integers(0, len(runs)))
    for first, end in runs[start:] + runs[:start]:
        if first < end and bool(((low >= high) | (low < first) | (high > end)).all()):
            k[first:end, :, column] = -torch.inf
            return


def seen_from_to(p: Tensor, left: int, right: int, most: int) -> tuple[Tensor, Tensor]:
    """The first key that each row at position p sees, and the end of those that it sees, however far outside; -1 is no window,
    and `most` is more than any row is away from any key."""
    left, right = (most if side < 0 else min(side, most) for side in (left, right))
    return p - left, p + right + 1


def mark(case: Any, name: str, k: Tensor, v: Tensor, edges: Iterable[int], count: int,
         limit: float = LARGEST) -> None:
    """Make some of the keys [n, Hkv, ..] of a request visible, in place: those in `edges` and three at random.

    `count` is how many keys a row sees at most, `limit` the largest value that the cache holds. In a one-hot case a key further
    on has the higher score: a row's result is the value of the last hot key that it sees.
    """
    n = len(k)
    if not n or case.values == "equal":
        return
    drawn = generator(case.seed, name).integers(0, n, size=3).tolist()
    marked = sorted({j for j in (*edges, *drawn) if 0 <= j < n})
    if case.values == "random":
        largest = float(v.float().abs().max()) if v.numel() else 1.0
        factor = min(max(count / 4, 1.0), limit / max(largest, 1e-30))
        v[marked] = (v[marked].float() * factor).to(v.dtype)
        return
    for rank, j in enumerate(marked[-MOST_HOT:]):
        k[j, :, 0] = HOT * (rank + 1)


def sharp(case: Any) -> bool:
    """For `Within.sharp`: the result is exact, or nothing is rounded to 16 bits."""
    return bool(case.values != "random" or case.dtype == "float32")


def exact_bound(dtype: torch.dtype, truth: Tensor, splits: int = 1) -> Tensor:
    """Of an exact case: a quotient of whole numbers. It may be computed in float32 as a product with the rounded reciprocal, two
    roundings, and is then rounded to a 16-bit dtype. Merging several splits errs by eight exps, as attention_bound derives, of
    values up to MOST_SMALL."""
    cast = UNIT_ROUNDOFF[dtype] if dtype != torch.float32 else 0.0
    merged = 8 * EXP_ERROR * MOST_SMALL if splits != 1 else 0.0
    return (2.0**-23 + cast) * truth.abs() + merged + TRACE


def divided_last(bound: Callable[[Any, Inputs, Outputs], Bound], bits: bool = False) -> Callable[[Any, Inputs, Outputs], Bound]:
    """For `Within.ours`: our kernels divide last. Where one key has all the weight, or all have the same, they round at the end
    alone; with `bits` a mean that is not merged of splits is the truth, rounded."""

    def ours(case: Any, inputs: Inputs, truth: Outputs) -> Bound:
        if case.values == "random":
            return bound(case, inputs, truth)
        splits = getattr(case, "splits", 1) if case.values == "equal" else 1  # an expanded key may be hot for several
        if bits and case.values == "equal" and splits == 1:
            return {}
        return {"out": exact_bound(getattr(torch, case.dtype), truth["out"], splits)}

    return ours


def sinks_of(case: Any) -> Tensor | None:
    """A sink for each head, in the call's dtype or float32: some of them -inf, and of half of the cases one that is nearly the
    largest or the lowest number of its dtype; all the weight goes to a large one."""
    if case.sinks == "none":
        return None
    sinks = uniform(case.seed, "sinks", (case.heads,), getattr(torch, case.dtype) if case.sinks == "same" else torch.float32, 4.0)
    sinks[::5] = -torch.inf
    far = (0.0, 1.0, 0.0, -1.0)[case.seed % 4]
    if case.heads > (far > 0) and far:  # no call in which keys have no weight at all
        sinks[case.seed // 4 % case.heads] = 0.99 * far * torch.finfo(sinks.dtype).max
    return sinks
