"""gated_delta_rule_update: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import FAR_PARAMETERS, FAR_VECTOR, POOL, READ_ROWS, TURNED
from kernelpair.call.values import poison, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.pads import drawn_pad, drawn_pads, entry_of, free_slots, more_slots
from properties.shared.softplus import NEVER, given_threshold, settled
from properties.shared.strategies import (
    CROWD,
    CROWDS,
    any_of,
    around,
    between,
    common,
    crowded,
    either,
    float_dtypes,
    one_far,
    together,
)
from reference.checks import are_pads

REQUESTS = (1, 2, 0, 4, 17, 33, 70)
CROWD_WIDTH = 7  # of keys and values of a crowd
BUFFER = 512  # of the kernel, for q and k
KEY_SIZES = (1, 16, 32, 40, 64, 128, BUFFER, 600, 2 * BUFFER, 1030)  # the last ones: one buffer, more, two, more
VALUE_SIZES = (1, 7, *around(16, 32), 21, 28, 40, 64, 96, 128, 272, 600)
MANY_HEADS, MANY_HEADS_WIDTH = 87, 20  # key heads, of widths up to this: with their groups more than a byte counts
HEADS = (1, 2, 1, 2, 1, 2, 1, MANY_HEADS)
GROUPS = (1, 2, 3, 4)  # value heads that share a key head
SCALES = (1.0, 1e-3, 1e2)
THRESHOLDS = (20.0, 0.5, NEVER, -0.25)  # the last: where softplus is x below 0, states grow a little
BETAS = (1.0, 0.5, 2.0, 1.25, 8.0)
WEAKEST, WEAK = -30.0, -8.0  # b of tokens that write little: beta is 2^-43 to 2^-12
EPS = (1e-5, 1e-6, 1e-3, 1e-16, 100.0)
SMALL_EPS = 1e-12  # with less of it keys are so small that it counts
TINY = 1e-8  # factor of such keys
LARGE = 2.0**36  # of normalised queries and keys
FAINT = 2.0**-20  # factor of states that little is written to
MOST_ELEMENTS = 150_000  # of all states; beyond it requests are fewer
MORE_BITS = 2.0**11 + 2.0**5 + 3  # one more than float16 keeps
PAD = -7
MATRIX = (*READ_ROWS, *TURNED, "strided", "transposed")
ARGUMENT_LAYOUTS = {
    "A_log": FAR_PARAMETERS,
    "dt_bias": FAR_PARAMETERS,
    "q": READ_ROWS,
    "k": READ_ROWS,
    "v": READ_ROWS,
    "a": MATRIX,
    "b": MATRIX,
    "state": POOL,
    "state_indices": FAR_VECTOR,
}
VECTORS = ("A_log", "dt_bias")


@dataclass(frozen=True, kw_only=True)
class DeltaCase(Case):
    """One token of some requests; HV = key_heads * group value heads."""

    requests: int = 1
    key_heads: int = 1
    group: int = 1
    key_size: int = 1
    value_size: int = 1
    state_dtype: str = "float32"
    state_layout: str = "kv"
    l2norm: bool = True
    eps: float = 1e-6
    scale: float | None = None
    softplus_beta: float = 1.0
    softplus_threshold: float = 20.0
    size: float = 1.0
    """Of q, k, v and the states."""
    decay: str = "some"
    """What the gates make of the old state: some, none (gamma = 1), all (gamma = 0); slow (gamma below 1 by 2^-9 to 2^-18) and
    fast (most of it between 2^-20 and 2^-120)."""
    weak: bool = False
    """Tokens write little, and what states hold before is as little or nothing: without it all that is written would be lost."""
    exact: bool = False
    """Small integers, gamma = 1, beta 1/2 or 1, no norm, scale 1: every sum is exact. In float32 one entry of each row of q has
    more bits than a 16-bit dtype."""
    wide: tuple[str, ...] = ()
    """The parameter vectors in float32 instead of the call's dtype."""
    pads: tuple[int, ...] = ()
    pad_in_range: bool = False
    spare: int = 0


def narrowed(K: int, V: int) -> int:
    """V, or of keys that fill the buffer one for which states stay small."""
    return V if K < BUFFER else min(V, 40 if K < 2 * BUFFER else 16)


@st.composite
def _sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes within the budget, largest first to be cut: requests, heads."""
    K, V = draw(any_of(*KEY_SIZES), label="K"), draw(any_of(*VALUE_SIZES), label="V")
    V = narrowed(K, V)
    group, key_heads = draw(any_of(*GROUPS), label="group"), draw(any_of(*HEADS), label="key_heads")
    if key_heads == MANY_HEADS:
        K, V = min(K, MANY_HEADS_WIDTH), min(V, MANY_HEADS_WIDTH)
    room = max(MOST_ELEMENTS // (K * V * group * key_heads), 1)
    requests = draw(any_of(*REQUESTS), label="requests")
    return {"key_size": K, "value_size": V, "group": group, "key_heads": key_heads, "requests": min(requests, room)}


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, ["state_indices"], [("q", "k")])})
SIZES = _sizes()


@st.composite
def strategy(draw: st.DrawFn) -> DeltaCase:
    """Any call that the contract allows."""
    fields, sizes = one_far(draw(FIELDS), (*VECTORS, "state_indices")), draw(SIZES)
    if crowded(fields, 64):
        requests = draw(CROWDS, label="crowd")
        sizes = {"key_size": CROWD_WIDTH, "value_size": CROWD_WIDTH, "group": 1, "key_heads": 1, "requests": requests}
    if fields["seed"] % 16 == 9:  # a result that lies as v does would not be contiguous
        fields |= {"layout": fields["layout"] | {"v": "swapped"}}
    return completed(draw, fields, sizes)


def decays(threshold: float) -> tuple[str, ...]:
    """Below a threshold of 0 a fast decay would be a growth beyond all numbers."""
    return ("some", "some", "none", "slow", *(("fast", "all") if threshold >= 0 else ()))


def completed(draw: st.DrawFn, fields: dict[str, Any], sizes: dict[str, Any]) -> DeltaCase:
    """The case of these sizes, with gates, values and pads."""
    count = sizes["requests"]
    exact = draw(between(0, 4)) == 4
    pads = drawn_pads(draw, count)
    elements = sizes["key_heads"] * sizes["group"] * sizes["key_size"] * sizes["value_size"]
    spare = draw(between(0, 3), label="spare") + more_slots(fields["seed"], fields["layout"], elements)
    threshold = draw(any_of(*THRESHOLDS), label="threshold")
    return DeltaCase(
        **fields,
        **sizes,
        state_dtype=draw(any_of("float32", "bfloat16"), label="state_dtype"),
        state_layout=draw(any_of("kv", "vk"), label="state_layout"),
        l2norm=not exact and draw(either, label="l2norm"),
        eps=draw(any_of(*EPS)),
        scale=1.0 if exact else draw(any_of(None, 0.3, 3.0)),
        softplus_beta=draw(any_of(*BETAS)),
        softplus_threshold=threshold,
        size=1.0 if exact else draw(any_of(*SCALES), label="size"),
        decay="none" if exact else draw(any_of(*decays(threshold)), label="decay"),
        weak=not exact and draw(between(0, 4)) == 4,
        exact=exact,
        wide=draw(any_of((), VECTORS, ("A_log",), ("dt_bias",))),
        pads=pads,
        pad_in_range=bool(pads) and spare > 0 and draw(either),
        spare=spare,
    )


def pad_slot(case: DeltaCase) -> int | None:
    return drawn_pad(case, "state_indices", slots_of(case), PAD)


def slots_of(case: DeltaCase) -> int:
    """One at least, or where nobody needs any, none."""
    nobody = len(case.pads) == case.requests and not case.spare
    return 0 if nobody and case.seed % 2 else max(case.requests + case.spare, 1)


def _numbers(case: DeltaCase, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Unnormalised keys and queries have a norm about one or below, so that float16 outputs stay in range; normalised ones
    are tiny where eps is, or seldom so large that their squares sum to more than 2^60."""
    if case.exact:
        numbers = small_integers(case.seed, name, shape, dtype)
        if name == "q" and case.dtype == "float32":
            numbers[..., case.seed % shape[-1]] += MORE_BITS
        return numbers
    if name == "state" and case.weak:
        return uniform(case.seed, name, shape, dtype, case.size * (0.0, FAINT)[case.seed % 2])
    if name not in ("q", "k"):
        return uniform(case.seed, name, shape, dtype, case.size)
    if case.l2norm and case.seed % 8 == 6 and dtype != torch.float16:  # it holds none so large
        return uniform(case.seed, name, shape, dtype, LARGE)
    size = case.size * (TINY if case.eps < SMALL_EPS else 1) if case.l2norm else min(case.size, 1.0) * (3 / shape[-1]) ** 0.5
    return uniform(case.seed, name, shape, dtype, size)


def state_numbers(case: DeltaCase, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What states hold before the step."""
    return _numbers(case, "state", shape, dtype)


def _gates(case: DeltaCase) -> Inputs:
    """Decay and write strength."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    vector = {name: torch.float32 if name in case.wide else dtype for name in VECTORS}
    heads = case.key_heads * case.group
    rate = {"some": 0.0, "none": -200.0, "slow": -8.0, "fast": 3.0, "all": 8.0}[case.decay]
    dt_bias = uniform(case.seed, "dt_bias", (heads,)).to(vector["dt_bias"])
    a = uniform(case.seed, "a", (case.requests, heads), scale=2.0).to(dtype)
    if case.layout.get("a") == "expanded":
        a = a[:1].expand(a.shape).contiguous()
    a = settled(a, dt_bias, case.softplus_beta, case.softplus_threshold, case.seed)
    b = uniform(case.seed, "b", (case.requests, heads), dtype, 12.0 if case.seed % 4 == 1 else 4.0)
    if case.weak:
        b = uniform(case.seed, "b", (case.requests, heads), scale=(WEAK - WEAKEST) / 2).add_((WEAK + WEAKEST) / 2).to(dtype)
    if case.exact:
        b = torch.where(b > 0, 150.0, 0.0).to(dtype)
    return {
        "A_log": (uniform(case.seed, "A_log", (heads,)) + rate).to(vector["A_log"]),
        "dt_bias": dt_bias,
        "a": a,
        "b": b,
    }


def inputs(case: DeltaCase) -> Inputs:
    """Pads hold poison in every argument of theirs, and so do the slots that nobody uses."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    state_dtype: torch.dtype = getattr(torch, case.state_dtype)
    B, HK, HV, K, V = case.requests, case.key_heads, case.key_heads * case.group, case.key_size, case.value_size
    slots = slots_of(case)
    order, free = torch.full((B,), PAD), free_slots(case, slots)[:B]
    order[: len(free)] = free
    inner = (K, V) if case.state_layout == "kv" else (V, K)
    state = poison(case.poison, (slots, HV, *inner), state_dtype)
    live = [row for row in range(B) if row not in case.pads]
    state[order[live]] = _numbers(case, "state", (B, HV, K, V), state_dtype).reshape(B, HV, *inner)[live]
    order[list(case.pads)] = entry_of(pad_slot(case), PAD)
    tokens = {
        "q": _numbers(case, "q", (B, HK, K), dtype),
        "k": _numbers(case, "k", (B, HK, K), dtype),
        "v": _numbers(case, "v", (B, HV, V), dtype),
    }
    gates = _gates(case)
    for name, value in (*tokens.items(), ("a", gates["a"]), ("b", gates["b"])):
        if case.layout.get(name) != "expanded":
            value[list(case.pads)] = poison(case.poison, (1,), dtype)
    return {
        "A_log": gates["A_log"],
        "dt_bias": gates["dt_bias"],
        **tokens,
        "a": gates["a"],
        "b": gates["b"],
        "state": state,
        "state_indices": order,
        "state_layout": case.state_layout,
        "use_qk_l2norm": case.l2norm,
        "eps": case.eps,
        "scale": case.scale,
        "softplus_beta": case.softplus_beta,
        "softplus_threshold": given_threshold(case.softplus_threshold),
        "pad_slot": pad_slot(case),
    }


def live_rows(given: Inputs) -> Tensor:
    """The requests that are no pads."""
    return (~are_pads(given["state_indices"], given["pad_slot"])).nonzero()[:, 0]


def written(case: DeltaCase, given: Inputs) -> Tensor:
    """Slots of requests that are no pads."""
    mask = torch.zeros(len(given["state"]), 1, 1, 1, dtype=torch.bool)
    mask[given["state_indices"][live_rows(given)].long()] = True
    return mask


def _says(**wanted: Any) -> Callable[[Any], bool]:
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": _says(requests=0),
    "all requests are pads": lambda case: 0 < case.requests == len(case.pads),
    "some requests are pads": lambda case: 0 < len(case.pads) < case.requests,
    "pad is a slot in range": _says(pad_in_range=True),
    "pad is slot 0 of several": lambda case: case.pad_in_range and pad_slot(case) == 0 and slots_of(case) > 1,
    "unused slots": lambda case: case.spare > 0,
    "more slots than 16 bits count": lambda case: case.spare >= 2**16 and len(case.pads) < case.requests,
    "many heads": lambda case: case.key_heads * case.group > 64 and len(case.pads) < case.requests,
    "a scale above 1": lambda case: (case.scale or 0) > 1 and len(case.pads) < case.requests,
    "K != V": lambda case: case.key_size != case.value_size,
    "K = 1": _says(key_size=1),
    "V = 1": _says(value_size=1),
    "K beyond a block": _says(key_size=600),
    "K of whole blocks": lambda case: case.key_size % BUFFER == 0,
    "a partial vector": lambda case: case.value_size % 16 > 0 and case.key_size % 16 > 0,
    "padded pool": lambda case: case.layout.get("state") in ("padded", "sliced"),
    "strided a or b": lambda case: any(case.layout.get(name) in ("strided", "transposed", *TURNED) for name in "ab"),
    "q and k fused": lambda case: case.layout.get("q") == "fused",
    "gamma = 1": _says(decay="none"),
    "gamma = 0": _says(decay="all"),
    "a slow decay": lambda case: case.decay == "slow" and case.requests > len(case.pads),
    "a fast decay": lambda case: case.decay == "fast" and case.requests > len(case.pads),
    "no norm": _says(l2norm=False),
    **{f"eps {eps:g}": lambda case, eps=eps: case.l2norm and case.eps == eps for eps in EPS[2:]},  # type: ignore[misc]
    "a given scale": lambda case: case.scale is not None,
    "little is written": _says(weak=True),
    "exact sums": _says(exact=True),
    "a crowd of requests": _says(requests=CROWD),
    "17 requests": _says(requests=17),
    "70 requests": _says(requests=70),
    **{
        f"{layout} state in {dtype}": _says(state_layout=layout, state_dtype=dtype)
        for layout in ("kv", "vk")
        for dtype in ("float32", "bfloat16")
    },
    **{f"group of {group}": _says(group=group) for group in GROUPS},
    **{f"softplus_beta {s}": _says(softplus_beta=s) for s in BETAS[1:]},
    **{f"threshold {t}": _says(softplus_threshold=t) for t in THRESHOLDS[1:]},
    **{f"size {size:g}": _says(size=size) for size in SCALES},
    **{f"dtype {d}": _says(dtype=d) for d in ("float32", "bfloat16", "float16")},
}
