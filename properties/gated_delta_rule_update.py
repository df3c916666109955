"""gated_delta_rule_update on trial: one recurrent step on a pool of states, two layouts, two state dtypes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, POOL, READ_ONLY, TURNED
from kernelpair.pair import Bound, Inputs, Outputs, Pair, every_argument
from kernelpair.values import permutation, poison, small_integers, uniform
from optimized import operator
from properties import _gated_delta_rule_update_bad, _gated_delta_rule_update_bench, _gated_delta_rule_update_relations
from properties.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error, rounding
from properties.strategies import any_of, around, between, common, either, float_dtypes, kernel_paths, together
from reference.gated_delta_rule_update import gated_delta_rule_update

REQUESTS = (1, 2, 0, 4, 17)
KEY_SIZES = (1, 16, 32, 40, 64, 128, 600)  # 600: more than the kernel's buffer for q and k
VALUE_SIZES = (1, *around(16, 32), 40, 64, 96, 128)
GROUPS = (1, 2, 3, 4)  # value heads that share a key head
SCALES = (1.0, 1e-3, 1e2)
MOST_ELEMENTS = 150_000  # of all states; beyond it requests are fewer
PAD = -7

MATRIX = (*READ_ONLY, *TURNED, "strided", "transposed")
ARGUMENT_LAYOUTS = {
    "A_log": ANY_STRIDES,
    "dt_bias": ANY_STRIDES,
    "q": READ_ONLY,
    "k": READ_ONLY,
    "v": READ_ONLY,
    "a": MATRIX,
    "b": MATRIX,
    "state": POOL,
    "state_indices": ANY_STRIDES,
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
    """What the gates make of the old state: some, none (gamma = 1), all (gamma = 0)."""
    exact: bool = False
    """Small integers, gamma = 1, beta 1/2 or 1, no norm, scale 1: every sum is exact."""
    wide: tuple[str, ...] = ()
    """The parameter vectors in float32 instead of the call's dtype."""
    pads: tuple[int, ...] = ()
    pad_in_range: bool = False
    spare: int = 0


@st.composite
def _sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes within the budget, largest first to be cut: requests, heads."""
    K, V = draw(any_of(*KEY_SIZES), label="K"), draw(any_of(*VALUE_SIZES), label="V")
    V = V if K < 600 else min(V, 40)
    group, key_heads = draw(any_of(*GROUPS), label="group"), draw(any_of(1, 2), label="key_heads")
    room = max(MOST_ELEMENTS // (K * V * group * key_heads), 1)
    requests = draw(any_of(*REQUESTS), label="requests")
    return {"key_size": K, "value_size": V, "group": group, "key_heads": key_heads, "requests": min(requests, room)}


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, ["state_indices"], [("q", "k")])})
SIZES = _sizes()


@st.composite
def cases(draw: st.DrawFn) -> DeltaCase:
    """Any call that the contract allows."""
    fields, sizes = draw(FIELDS), draw(SIZES)
    count = sizes["requests"]
    exact = draw(between(0, 4)) == 4
    pads = draw(any_of("none", "none", "some", "all"), label="pads")
    spare = draw(between(0, 3), label="spare")
    return DeltaCase(
        **fields,
        **sizes,
        state_dtype=draw(any_of("float32", "bfloat16"), label="state_dtype"),
        state_layout=draw(any_of("kv", "vk"), label="state_layout"),
        l2norm=not exact and draw(either, label="l2norm"),
        eps=draw(any_of(1e-6, 1e-3)),
        scale=1.0 if exact else draw(any_of(None, 0.3)),
        softplus_beta=draw(any_of(1.0, 0.5, 2.0)),
        softplus_threshold=draw(any_of(20.0, 0.5)),
        size=1.0 if exact else draw(any_of(*SCALES), label="size"),
        decay="none" if exact else draw(any_of("some", "some", "none", "all"), label="decay"),
        exact=exact,
        wide=draw(any_of((), VECTORS, ("A_log",), ("dt_bias",))),
        pads={"none": (), "some": tuple(range(0, count, 3)), "all": tuple(range(count))}[pads],
        pad_in_range=pads != "none" and spare > 0 and draw(either),
        spare=spare,
    )


def pad_slot(case: DeltaCase) -> int | None:
    """A number outside the pool, or its last slot."""
    if not case.pads:
        return None
    return case.requests + case.spare - 1 if case.pad_in_range else PAD


def _numbers(case: DeltaCase, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Unnormalised keys and queries have a norm about one or below, so that float16 outputs stay in range."""
    if case.exact:
        return small_integers(case.seed, name, shape, dtype)
    keys = name in ("q", "k") and not case.l2norm
    return uniform(case.seed, name, shape, dtype, min(case.size, 1.0) * (3 / shape[-1]) ** 0.5 if keys else case.size)


def _gates(case: DeltaCase) -> Inputs:
    """Decay and write strength; a low threshold's jump is kept at a distance, where a formula switch is no matter of rounding."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    vector = {name: torch.float32 if name in case.wide else dtype for name in VECTORS}
    heads = case.key_heads * case.group
    rate = {"some": 0.0, "none": -200.0, "all": 8.0}[case.decay]
    dt_bias = uniform(case.seed, "dt_bias", (heads,)).to(vector["dt_bias"])
    a = uniform(case.seed, "a", (case.requests, heads), scale=2.0).to(dtype)
    if case.layout.get("a") == "expanded":
        a = a[:1].expand(a.shape).contiguous()
    z = case.softplus_beta * (a.double() + dt_bias.double())
    a = torch.where((z - case.softplus_threshold).abs() < 2.0**-4, a.float() - 1, a.float()).to(dtype)
    b = uniform(case.seed, "b", (case.requests, heads), dtype, 4.0)
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
    slots = max(B + case.spare, 1)
    order = permutation(case.seed, "slots", slots - case.pad_in_range)[:B]
    inner = (K, V) if case.state_layout == "kv" else (V, K)
    state = poison(case.poison, (slots, HV, *inner), state_dtype)
    live = [row for row in range(B) if row not in case.pads]
    state[order[live]] = _numbers(case, "state", (B, HV, K, V), state_dtype).reshape(B, HV, *inner)[live]
    order[list(case.pads)] = pad_slot(case) or PAD
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
        "softplus_threshold": case.softplus_threshold,
        "pad_slot": pad_slot(case),
    }


def live_rows(given: Inputs) -> Tensor:
    """The requests that are no pads."""
    indices = given["state_indices"]
    used = torch.ones(len(indices), dtype=torch.bool) if given["pad_slot"] is None else indices != given["pad_slot"]
    return used.nonzero()[:, 0]


def written(case: DeltaCase, given: Inputs) -> Tensor:
    """Slots of requests that are no pads."""
    mask = torch.zeros(len(given["state"]), 1, 1, 1, dtype=torch.bool)
    mask[given["state_indices"][live_rows(given)].long()] = True
    return mask


def bound(case: DeltaCase, given: Inputs, truth: Outputs) -> Bound:
    """|dS| <= c (G |S0| + |k| W^T) + t(0) =: E, |do| <= u |o| + scale (E + c |S|)^T |q| + t(0); a bfloat16 state adds 2^-8 |S|.

    With c = g(2 K + 16) + 2^-14, G = gamma (1 + |g|) + 2^-100 and W = beta (|v| + G |S0|^T |k|): the decay errs relatively by
    the error of g, at most 2^-15 |g|, and of one exp; S^T k and S^T q are float32 sums of K products of normalised numbers,
    whose norms are sums of K squares (2 K + 16 roundings in all); w inherits both, beta adds 2^-16; o is rounded once. Rows of
    pads are exact zeros.
    """
    if case.exact:
        dtypes = {"out": getattr(torch, case.dtype), "state": getattr(torch, case.state_dtype)}
        return {name: rounding(truth[name], dtype) for name, dtype in dtypes.items()}
    rows = live_rows(given)
    slots = given["state_indices"][rows].long()
    turn = (lambda t: t.transpose(2, 3)) if given["state_layout"] == "vk" else (lambda t: t)
    before, after = turn(given["state"])[slots].abs(), turn(truth["state"])[slots].abs()
    K = given["q"].shape[2]
    q, k = (given[name][rows].abs() for name in ("q", "k"))
    if case.l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + case.eps) for x in (q, k))
    group = given["v"].shape[1] // given["q"].shape[1]
    q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    x = given["a"][rows] + given["dt_bias"]
    z = case.softplus_beta * x
    softplus = torch.where(z > case.softplus_threshold, x, (z.clamp(min=0) + (-z.abs()).exp().log1p()) / case.softplus_beta)
    g = -given["A_log"].exp() * softplus
    c = accumulation_error(2 * K + 16) + 2.0**-14
    G = (g.exp() * (1 + g.abs()) + 2.0**-100)[..., None, None]
    p = torch.einsum("nhkv,nhk->nhv", G * before, k)
    W = given["b"][rows].sigmoid()[..., None] * (given["v"][rows].abs() + p)
    E = c * (G * before + k[..., None] * W[..., None, :]) + flush_error(torch.zeros_like(before), torch.float32)
    scale = K**-0.5 if case.scale is None else case.scale
    dtype = getattr(torch, case.dtype)
    o = truth["out"][rows].abs()
    read = scale * torch.einsum("nhkv,nhk->nhv", E + c * after, q)
    out = torch.zeros_like(truth["out"])
    out[rows] = UNIT_ROUNDOFF[dtype] * o + read + flush_error(torch.zeros_like(o), dtype)
    state = torch.zeros_like(truth["state"])
    turn(state)[slots] = E + (2.0**-8 * after if case.state_dtype == "bfloat16" else 0.0)
    return {"out": out, "state": state}


def _says(**wanted: Any) -> Callable[[Any], bool]:
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


PAIR = Pair(
    name="gated_delta_rule_update",
    version=1,
    case=DeltaCase,
    cases=cases(),
    inputs=inputs,
    reference=gated_delta_rule_update,
    optimized=operator("gated_delta_rule_update"),
    bound=bound,
    mutates={"state": written},
    layouts=ARGUMENT_LAYOUTS,
    fused=[("q", "k")],
    indices=["state_indices"],
    relations=_gated_delta_rule_update_relations.RELATIONS,
    paths=kernel_paths("step_"),
    bad=_gated_delta_rule_update_bad.BAD,
    fuzz=every_argument,
    edges={
        "no requests": _says(requests=0),
        "all requests are pads": lambda case: 0 < case.requests == len(case.pads),
        "some requests are pads": lambda case: 0 < len(case.pads) < case.requests,
        "pad is a slot in range": _says(pad_in_range=True),
        "unused slots": lambda case: case.spare > 0,
        "K != V": lambda case: case.key_size != case.value_size,
        "K = 1": _says(key_size=1),
        "V = 1": _says(value_size=1),
        "K beyond a block": _says(key_size=600),
        "a partial vector": lambda case: case.value_size % 16 > 0 and case.key_size % 16 > 0,
        "padded pool": lambda case: case.layout.get("state") in ("padded", "sliced"),
        "strided a or b": lambda case: any(case.layout.get(name) in ("strided", "transposed", *TURNED) for name in "ab"),
        "q and k fused": lambda case: case.layout.get("q") == "fused",
        "gamma = 1": _says(decay="none"),
        "gamma = 0": _says(decay="all"),
        "no norm": _says(l2norm=False),
        "eps 1e-3": _says(eps=1e-3),
        "a given scale": lambda case: case.scale is not None,
        "exact sums": _says(exact=True),
        "17 requests": _says(requests=17),
        **{
            f"{layout} state in {dtype}": _says(state_layout=layout, state_dtype=dtype)
            for layout in ("kv", "vk")
            for dtype in ("float32", "bfloat16")
        },
        **{f"group of {group}": _says(group=group) for group in GROUPS},
        **{f"softplus_beta {s}": _says(softplus_beta=s) for s in (0.5, 2.0)},
        "threshold 0.5": _says(softplus_threshold=0.5),
        **{f"size {size:g}": _says(size=size) for size in SCALES},
        **{f"dtype {d}": _says(dtype=d) for d in ("float32", "bfloat16", "float16")},
    },
    sharp=lambda case: case.exact or case.dtype == "float32",
    bench=_gated_delta_rule_update_bench.ROWS,
    bench_case=DeltaCase(
        seed=8, dtype="bfloat16", requests=4, key_heads=2, group=2, key_size=128, value_size=128, eps=1e-5, wide=("A_log",),
        int32=("state_indices",),
    ),
    memory="on the stack of each thread: 512 normalised elements of q and k, 4 KiB",
)
