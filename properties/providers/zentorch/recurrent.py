"""Convolutions and gated delta rules by zentorch. Limits are those of the operators' own checks and of its layer for Qwen3-Next
(`forward_cpu_zen`), which takes them in float16; slot 0 of their caches is nobody's, so slots are handed over one higher."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.causal_conv1d.cases import ConvCase
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase
from properties.gdn_gating.cases import GatingCase
from properties.providers.zentorch.library import OPS, Given
from reference.causal_conv1d import causal_conv1d_unpack_weight

CHUNK = 64  # FLA_CHUNK_SIZE
EPS = 1e-6  # kL2NormEps
NO_EPS = "eps 1e-6 (not an argument of it)"
VK = "state layout vk (checked)"


def _behind_slot_0(state: Tensor) -> Tensor:
    """A pool with one more slot, ahead of the others."""
    return torch.cat([torch.zeros_like(state[:1]), state])


def _one_higher(slots: Tensor, pad_slot: int | None) -> Tensor:
    """The slots in such a pool, of pads slot 0."""
    higher = slots.to(torch.int32) + 1
    return higher if pad_slot is None else torch.where(slots == pad_slot, 0, higher).to(torch.int32)


# --- convolution ---

CONV_LAYOUTS = {"x": DENSE_LAST + ("turned",), "conv_states": ("turned",), "packed_weight": ("offset",)}


def _fit_conv(case: ConvCase) -> ConvCase:
    form = case.form if case.form in ("update", "varlen") else "varlen"
    wanted: ConvCase = fitted(
        case, (), CONV_LAYOUTS, ("query_start_loc",) if form == "varlen" else (), form=form, width=max(case.width, 2),
        states=True, wider=0, before=0, after=0, pads=(), pad_in_range=False, bias="none" if case.bias == "none" else "call",
        single_row=False,
    )
    return wanted


def _conv_call(given: Given) -> Any:
    """The call, ready to be made again and again."""
    if given["form"] not in ("update", "varlen") or given["conv_states"] is None:
        raise Unsupported("single tokens, or sequences end to end, on states")
    weight = causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"])
    x, bias, states = given["x"], given["bias"], given["conv_states"]
    slots, pad = given["cache_indices"], given.get("pad_slot")
    activation, pad = "silu" if given["silu_activation"] else "", -1 if pad is None or slots is None else pad
    if given["form"] == "update":
        slots = torch.arange(len(x)) if slots is None else slots
        return lambda: OPS.gdn_causal_conv1d_update(x, states, weight, bias, activation, slots, pad, pad)
    starts = given["query_start_loc"].to(torch.int32)
    count = len(starts) - 1
    slots = torch.arange(count) if slots is None else slots
    flags = given.get("has_initial_state")
    flags = torch.zeros(count, dtype=torch.bool) if flags is None else flags
    return lambda: OPS.gdn_causal_conv1d_fn(x, weight, bias, states, starts, slots, flags, activation, pad)


def _timed_conv(given: Given) -> Calls:
    name = "gdn_causal_conv1d_" + ("update" if given["form"] == "update" else "fn")
    return {name: _conv_call({"silu_activation": True, **given})}


@adapts(
    "causal_conv1d",
    limits={
        "single tokens, or sequences end to end, on states (no other form)":
            lambda case: case.form not in ("update", "varlen") or not case.states,
        "at least two taps (checked)": lambda case: case.width < 2,
        "bias in x's dtype (so does the layer hold it)": lambda case: case.bias == "float32" and case.dtype != "float32",
        "states of w - 1 columns (so does the layer hold them)": lambda case: case.wider > 0,
        "no pads, of which it gives back x; sequences cover all tokens (so does the layer call it)":
            lambda case: bool(case.pads or case.before or case.after),
        "weight, bias and indices contiguous (so does the layer hold them)": other_layouts(CONV_LAYOUTS),
        "offsets are int32 (checked)": lambda case: case.form == "varlen" and "query_start_loc" not in case.int32,
    },
    fit=_fit_conv,
    timed=_timed_conv,
)
def causal_conv1d(
    form: str, x: Tensor, packed_weight: Tensor, dim: int, width: int, bias: Tensor | None, conv_states: Tensor | None,
    cache_indices: Tensor | None, has_initial_state: Tensor | None = None, query_start_loc: Tensor | None = None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:
    """gdn_causal_conv1d_fn and gdn_causal_conv1d_update"""
    out: Tensor = _conv_call(locals())()
    return out


# --- gating ---


def _fit_gating(case: GatingCase) -> GatingCase:
    wanted: GatingCase = fitted(case, (), {}, softplus_beta=1.0, softplus_threshold=20.0)
    return wanted


def _gating_call(given: Given) -> Callable[[], tuple[Tensor, Tensor]]:
    A_log, a, b, dt_bias = (given[name] for name in ("A_log", "a", "b", "dt_bias"))
    mixed = torch.zeros(len(a), 2 + a.shape[1], dtype=a.dtype)

    def run() -> tuple[Tensor, Tensor]:
        g, beta = OPS.gdn_fused_post_conv_prep(mixed, a, b, A_log, dt_bias, 1, 1, 1, False, False)[3:]
        return g, beta.to(b.dtype)

    return run


def _timed_gating(given: Given) -> Calls:
    return {"gdn_fused_post_conv_prep": _gating_call(given)}


@adapts(
    "gdn_gating",
    limits={
        "softplus_beta 1 and threshold 20 (not arguments of it)":
            lambda case: (case.softplus_beta, case.softplus_threshold) != (1.0, 20.0),
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
    },
    fit=_fit_gating,
    silent={
        name: "whole vectors and what is left of them go through different functions of torch; nothing says that their bits agree"
        for name in ("permute", "constant")
    },
    timed=_timed_gating,
)
def gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """gdn_fused_post_conv_prep beside q, k and v of one column"""
    return _gating_call({"A_log": A_log, "a": a, "b": b, "dt_bias": dt_bias})()


# --- gated delta rule ---


def _fit_delta(case: DeltaCase) -> DeltaCase:
    wanted: DeltaCase = fitted(
        case, (), {}, ("state_indices",), eps=EPS, state_layout="vk", softplus_beta=1.0, softplus_threshold=20.0,
        requests=max(case.requests, 1),
    )
    return wanted


def _delta_call(given: Given, state: Tensor, slots: Tensor) -> Callable[[], Tensor]:
    """The call, ready to be made again and again."""
    q, k, v, scale = given["q"], given["k"], given["v"], given.get("scale")
    mixed = torch.cat([part.flatten(1) for part in (q, k, v)], dim=1)
    out, scale = torch.empty_like(v)[:, None], q.shape[-1] ** -0.5 if scale is None else scale
    a, b, A_log, dt_bias = (given[name] for name in ("a", "b", "A_log", "dt_bias"))

    def run() -> Tensor:
        OPS.gdn_fused_recurrent_gated_delta_rule_packed_decode(
            mixed, a, b, A_log, dt_bias, scale, state, out, slots, given["use_qk_l2norm"])
        return out[:, 0]

    return run


def _on_a_pool(call: Callable[[Given, Tensor, Tensor], Callable[[], Tensor]], given: Given) -> Tensor:
    """The result of a call on a pool with one more slot; the states come back from there."""
    if given["state_layout"] != "vk":
        raise Unsupported(VK)
    if given["use_qk_l2norm"] and given["eps"] != EPS:
        raise Unsupported(NO_EPS)
    pool = _behind_slot_0(given["state"])
    out = call(given, pool, _one_higher(given["state_indices"], given["pad_slot"]))()
    given["state"].copy_(pool[1:])
    return out


def _in_vk(given: Given) -> Tensor:
    """The states of a timed row as the operators take them."""
    state: Tensor = given["state"]
    return state if given.get("state_layout") == "vk" else state.transpose(-1, -2)


def _moved_behind_slot_0(given: Given) -> Tensor:
    """A pool in vk with one more slot, to which the states of a timed row move."""
    pool = _behind_slot_0(_in_vk(given).contiguous())
    given["state"].set_(_in_vk({**given, "state": pool[1:]}))
    return pool


def _timed_delta(given: Given) -> Calls:
    call = _delta_call({"use_qk_l2norm": True, **given}, _moved_behind_slot_0(given), _one_higher(given["state_indices"], None))
    return {"gdn_fused_recurrent_gated_delta_rule_packed_decode": call}


@adapts(
    "gated_delta_rule_update",
    limits={
        NO_EPS: lambda case: case.l2norm and case.eps != EPS,
        VK: lambda case: case.state_layout != "vk",
        "softplus_beta 1 and threshold 20 (not arguments of it)":
            lambda case: (case.softplus_beta, case.softplus_threshold) != (1.0, 20.0),
        "at least one request (so does the layer call it)": lambda case: not case.requests,
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
        "state_indices are int32 (checked)": lambda case: case.int32 != ("state_indices",),
    },
    fit=_fit_delta,
    timed=_timed_delta,
)
def gated_delta_rule_update(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5, scale: float | None = None,
    softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """gdn_fused_recurrent_gated_delta_rule_packed_decode"""
    return _on_a_pool(_delta_call, locals())


DELTA_INDICES = ("state_indices", "num_accepted_tokens", "query_start_loc")


def _fit_drafts(case: DeltaSpecCase) -> DeltaSpecCase:
    lengths = case.lengths or (1,)
    wanted: DeltaSpecCase = fitted(
        case, (), {}, DELTA_INDICES, eps=EPS, state_layout="vk", pads=(), pad_in_range=False, lengths=lengths,
        requests=sum(lengths), before=0, after=0, accepted=case.accepted or (1,),
    )
    return wanted


def _drafts_call(given: Given, state: Tensor, slots: Tensor) -> Callable[[], Tensor]:
    q, scale = given["q"], given.get("scale")
    tokens = [given[name][None] for name in ("a", "b")]
    heads = [given[name][None] for name in ("q", "k", "v")]
    starts, accepted = (given[name].to(torch.int32) for name in ("query_start_loc", "num_accepted_tokens"))
    gate = given.get("softplus_beta", 1.0), given.get("softplus_threshold", 20.0)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rest = scale, state, starts, slots, accepted, given["use_qk_l2norm"]
    return lambda: OPS.gdn_fused_sigmoid_gating_delta_rule_update(
        given["A_log"], *tokens, given["dt_bias"], *heads, *gate, *rest)[0]


def _timed_drafts(given: Given) -> Calls:
    slots = _one_higher(given["state_indices"], None)
    call = _drafts_call({"use_qk_l2norm": True, **given}, _moved_behind_slot_0(given), slots)
    return {"gdn_fused_sigmoid_gating_delta_rule_update": call}


@adapts(
    "gated_delta_rule_update_spec",
    limits={
        NO_EPS: lambda case: case.l2norm and case.eps != EPS,
        VK: lambda case: case.state_layout != "vk",
        "no pads (its rows of slots have none), at least one request (checked)": lambda case: bool(case.pads) or not case.lengths,
        "requests cover all tokens (so do its tests)": lambda case: bool(case.before or case.after),
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
        "slots, counts and offsets are int32 (checked)": lambda case: set(case.int32) != set(DELTA_INDICES),
    },
    fit=_fit_drafts,
    timed=_timed_drafts,
)
def gated_delta_rule_update_spec(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    num_accepted_tokens: Tensor, query_start_loc: Tensor, state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5,
    scale: float | None = None, softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """gdn_fused_sigmoid_gating_delta_rule_update with accepted tokens"""
    return _on_a_pool(_drafts_call, locals())


def _fit_chunk(case: ChunkCase) -> ChunkCase:
    lengths = tuple(max(n, 1) if case.form == "pool" else n for n in case.lengths) or (1,)
    wanted: ChunkCase = fitted(
        case, (), {}, ("state_indices", "cu_seqlens"), lengths=lengths, before=0, after=0, state_layout="vk",
        pads=(), pad_in_range=False, accurate=False,
    )
    return wanted


def _chunks(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Sequence and number of each chunk [NT, 2], and where those of each sequence begin."""
    counts = (starts.diff() + CHUNK - 1) // CHUNK
    pairs = [(n, i) for n, count in enumerate(counts.tolist()) for i in range(count)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2), offsets


def _chunk_call(given: Given, initial: Tensor | None) -> Any:
    q, k, scale = given["q"], given["k"], given.get("scale")
    starts = given["cu_seqlens"].to(torch.int32)
    indices, offsets = _chunks(starts)
    scale, normed = q.shape[-1] ** -0.5 if scale is None else scale, given["use_qk_l2norm"]
    v, g, beta = (given[name][None] for name in ("v", "g", "beta"))

    def run() -> tuple[Tensor, Tensor]:
        heads = [OPS.gdn_l2norm_fwd(x, given["eps"]) if normed else x for x in (q, k)]
        out, final = OPS.gdn_chunk_gated_delta_rule_fwd(
            *(x[None] for x in heads), v, g, beta, scale, initial, True, CHUNK, starts, indices, offsets)
        return out[0].to(q.dtype), final

    return run


def _initial(given: Given) -> tuple[Tensor, Tensor]:
    """The states of the sequences, zeros for new ones, and their slots."""
    slots, flags = given["state_indices"].long(), given.get("has_initial_state")
    initial = given["state"][slots].to(torch.float32)
    initial[~flags if flags is not None else slice(None)] = 0
    return initial, slots


def _timed_chunk(given: Given) -> Calls:
    if "state_indices" in given:
        given = {"eps": EPS, "use_qk_l2norm": True, **given, "state": _in_vk(given), "state_layout": "vk"}
    return {"gdn_chunk_gated_delta_rule_fwd": lambda: chunk_gated_delta_rule(**given)}


@adapts(
    "chunk_gated_delta_rule",
    limits={
        "one form only (accurate is no argument of it)": lambda case: case.accurate,
        VK: lambda case: case.state_layout != "vk",
        "at least one sequence, on a pool each with a token, and together they cover all (so does the layer call it)":
            lambda case: not case.lengths or bool(case.before or case.after) or (case.form == "pool" and 0 in case.lengths),
        "no pads (so does the layer call it)": lambda case: bool(case.pads),
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
        "offsets are int32 (checked)": lambda case: "cu_seqlens" not in case.int32,
    },
    fit=_fit_chunk,
    timed=_timed_chunk,
)
def chunk_gated_delta_rule(**given: Any) -> dict[str, Tensor]:
    """gdn_chunk_gated_delta_rule_fwd behind gdn_l2norm_fwd, its states gathered and scattered as the layer does"""
    if given["state_layout"] != "vk":
        raise Unsupported(VK)
    if "state_indices" not in given:
        initial = given.get("initial_state")
        out, final = _chunk_call(given, initial)()
        return {"out": out, "final_state": final if initial is None else final.to(initial.dtype)}
    initial, slots = _initial(given)
    out, final = _chunk_call(given, initial)()
    given["state"][slots] = final.to(given["state"].dtype)
    return {"out": out}


