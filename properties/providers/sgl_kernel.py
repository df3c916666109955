"""The CPU operators of SGLang's sgl-kernel: of the installed package, or of the library that KERNELPAIR_SGL_KERNEL names.

Written from the published schemas, which grow from version to version: each argument is handed over by its name, and a case that
needs one that the loaded version lacks is unsupported.
"""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.act_and_mul.cases import ActCase
from properties.providers.vllm_cpu import attention as attention
from properties.providers.vllm_cpu import layers as layers
from properties.rms_norm.cases import NormCase
from properties.rotary_embedding.cases import RotaryCase
from properties.store_cache.cases import StoreCacheCase
from properties.topk_gating.bound import ANY_ORDER
from properties.topk_gating.cases import TopkCase
from reference.causal_conv1d import causal_conv1d_unpack_weight
from reference.pack_linear_weight import unpack_linear_weight

NAME = "sgl_kernel"
LIBRARY = "KERNELPAIR_SGL_KERNEL"
RENAMED = {"k_cache": "k_buffer", "v_cache": "v_buffer", "v_cahce": "v_buffer", "is_packed": "is_vnni"}
"""Name of an argument in some versions -> in the others."""


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    path = os.environ.get(LIBRARY)
    if path:
        return "" if Path(path).is_file() else f"{LIBRARY} names {path}, which is no file"
    found = importlib.util.find_spec(NAME) is not None
    return "" if found else f"the package {NAME} is not installed; name its library with {LIBRARY}"


def prepare() -> None:
    """Load the library."""
    path = os.environ.get(LIBRARY)
    if path:
        torch.ops.load_library(path)
    else:
        importlib.import_module(NAME)


def call(name: str, **values: Any) -> Any:
    """Call an operator by the names of its arguments. Raises Unsupported where this version does not offer what is asked for."""
    try:
        operator = getattr(torch.ops.sgl_kernel, name).default
    except AttributeError:
        raise Unsupported(f"this version has no {name}") from None
    given: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        known = argument.name if argument.name in values else RENAMED.get(argument.name, argument.name)
        if known in values:
            value = values.pop(known)
            if value is None and "Optional" not in str(argument.type):
                raise Unsupported(f"this version of {name} needs {argument.name}")
            given[argument.name] = value
        elif not argument.has_default_value():
            raise Unsupported(f"this version of {name} wants an argument {argument.name}, of which this adapter knows nothing")
    for left, value in values.items():
        if isinstance(value, Tensor) or value:
            raise Unsupported(f"this version of {name} has no argument {left}")
    return operator(**given)


@adapts("extend_attention", limits=attention.extend_attention.limits, fit=attention.extend_attention.fit)
def extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
) -> None:
    """extend_attention_cpu"""
    call(
        "extend_attention_cpu", q_extend=q, k_extend=k, v_extend=v, o_extend=out, k_buffer=k_cache, v_buffer=v_cache,
        req_to_token=attention.named(req_to_token, k_cache, seq_lens, encoder_lens), req_pool_indices=req_pool_indices,
        seq_lens=seq_lens, extend_seq_lens=extend_seq_lens, extend_start_loc=extend_start_loc,
        max_len_extend=int(extend_seq_lens.max()) if len(extend_seq_lens) else 0, sm_scale=sm_scale, logit_cap=logit_cap,
        is_cross_attn=is_cross_attn, sliding_window_size=sliding_window, encoder_lens=encoder_lens, sinks=sinks,
    )


@adapts("decode_attention", limits=attention.decode_attention.limits, fit=attention.decode_attention.fit)
def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, key: Tensor | None, value: Tensor | None, loc: Tensor | None,
    attn_logits: Tensor, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
    pad_slot: int | None = None,
) -> None:
    """decode_attention_cpu"""
    if pad_slot is not None:
        raise Unsupported("no pads (not offered)")
    if key is not None and k_cache.data_ptr() == v_cache.data_ptr():
        value = key[..., : v_cache.shape[2]]
    call(
        "decode_attention_cpu", query=q, k_buffer=k_cache, v_buffer=v_cache, output=out, key=key, value=value, loc=loc,
        attn_logits=attn_logits, req_to_token=attention.named(req_to_token, k_cache, seq_lens, encoder_lens),
        req_pool_indices=req_pool_indices, seq_lens=seq_lens, sm_scale=sm_scale, logit_cap=logit_cap, is_cross_attn=is_cross_attn,
        sliding_window_size=sliding_window, encoder_lens=encoder_lens, sinks=sinks,
    )


@adapts(
    "packed_linear",
    limits={
        "dtype bfloat16 (float16 needs AMX-FP16)": lambda case: case.dtype != "bfloat16",
        "N a multiple of 16 and K of 32, or N below 16": lambda case: case.N >= 16 and bool(case.N % 16 or case.K % 32),
        "rows of x dense and apart": lambda case: other_layouts(layers.X_LAYOUTS)(case) or ("x" in case.layout and case.K == 1),
    },
    fit=lambda case: fitted(
        case, ["bfloat16"], layers.X_LAYOUTS if case.K > 1 else {}, N=case.N if case.N < 16 else -(-case.N // 16) * 16,
        K=case.K if case.N < 16 else -(-case.K // 32) * 32,
    ),
)
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """weight_packed_linear behind convert_weight_packed"""
    if N >= 16 and (N % 16 or K % 32):
        raise Unsupported("N a multiple of 16 and K of 32, or N below 16")
    packed = call("convert_weight_packed", weight=unpack_linear_weight(packed_weight, N, K))
    wide = None if bias is None else bias.to(torch.float32)
    out: Tensor = call("weight_packed_linear", mat1=x.reshape(-1, K), mat2=packed, bias=wide, is_vnni=True)
    return out.reshape(*x.shape[:-1], N)


@adapts("causal_conv1d", limits=layers.causal_conv1d.limits, fit=layers.causal_conv1d.fit, silent=layers.causal_conv1d.silent)
def causal_conv1d(
    form: str, x: Tensor, packed_weight: Tensor, dim: int, width: int, bias: Tensor | None, conv_states: Tensor | None,
    cache_indices: Tensor | None, has_initial_state: Tensor | None = None, query_start_loc: Tensor | None = None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:
    """causal_conv1d_fwd_cpu and causal_conv1d_update_cpu behind causal_conv1d_weight_pack"""
    weight = call("causal_conv1d_weight_pack", weight=causal_conv1d_unpack_weight(packed_weight, dim, width))
    common = {"x": x, "weight": weight, "bias": bias, "conv_states": conv_states, "silu_activation": silu_activation,
              "pad_slot_id": -1 if pad_slot is None else pad_slot, "is_vnni": True}
    if form == "update":
        out: Tensor = call("causal_conv1d_update_cpu", **common, cache_seqlens=None, conv_state_indices=cache_indices)
        return out
    out = call(
        "causal_conv1d_fwd_cpu", **common, query_start_loc=query_start_loc, cache_indices=cache_indices,
        has_initial_state=has_initial_state,
    )
    return out


@adapts("gdn_gating", limits=layers.gdn_gating.limits, fit=layers.gdn_gating.fit, silent=layers.gdn_gating.silent)
def gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """fused_gdn_gating_cpu"""
    g, beta = call("fused_gdn_gating_cpu", A_log=A_log, a=a, b=b, dt_bias=dt_bias)
    return g.reshape(a.shape), beta.reshape(b.shape)


@adapts(
    "gated_delta_rule_update", limits=layers.gated_delta_rule_update.limits, fit=layers.gated_delta_rule_update.fit
)
def gated_delta_rule_update(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5, scale: float | None = None,
    softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """fused_sigmoid_gating_delta_rule_update_cpu"""
    out: Tensor = call(
        "fused_sigmoid_gating_delta_rule_update_cpu", A_log=A_log, dt_bias=dt_bias, q=q[None], k=k[None], v=v[None], a=a, b=b,
        initial_state_source=state, initial_state_indices=state_indices, cu_seqlens=torch.arange(len(q) + 1, dtype=torch.int32),
        use_qk_l2norm_in_kernel=use_qk_l2norm, softplus_beta=softplus_beta, softplus_threshold=softplus_threshold,
    )
    return out.reshape(v.shape)


@adapts(
    "chunk_gated_delta_rule", limits=layers.chunk_gated_delta_rule.limits, fit=layers.chunk_gated_delta_rule.fit,
)
def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor,
    has_initial_state: Tensor, cu_seqlens: Tensor, state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5,
    scale: float | None = None, pad_slot: int | None = None, accurate: bool = False,
) -> Any:
    """chunk_gated_delta_rule_cpu: on the pool where this version takes indices, else on the gathered states"""
    state[state_indices[~has_initial_state].long()] = 0
    common = {"query": q[None], "key": k[None], "value": v[None], "g": g[None], "beta": beta[None], "output_final_state": True,
              "cu_seqlens": cu_seqlens, "head_first": False, "use_qk_l2norm_in_kernel": use_qk_l2norm, "eps": eps}
    operator = torch.ops.sgl_kernel.chunk_gated_delta_rule_cpu.default
    if any(argument.name == "initial_state_indices" for argument in operator._schema.arguments):
        out, _ = call("chunk_gated_delta_rule_cpu", **common, initial_state=state, initial_state_indices=state_indices)
        return {"out": out[0]}
    slots = state_indices.long()
    out, final = call("chunk_gated_delta_rule_cpu", **common, initial_state=state[slots])
    state[slots] = final.to(state.dtype)
    return {"out": out[0]}



def _fit_store(case: StoreCacheCase) -> StoreCacheCase:
    whole = {name: kind for name, kind in case.layout.items() if kind == "offset" and name != "indices"}
    wanted: StoreCacheCase = fitted(
        case, ["bfloat16", "float16", "uint8"], None, width_v=case.width_k, pads=(), pad_in_range=False, layout=whole
    )
    return wanted


@adapts(
    "store_cache",
    limits={
        "dtype bfloat16, float16 or uint8 (its dispatch)": lambda case: case.dtype not in ("bfloat16", "float16", "uint8"),
        "K as wide as V (one row length for both)": lambda case: case.width_k != case.width_v,
        "rows contiguous over heads and columns, indices contiguous (checked)":
            lambda case: any(kind != "offset" or name == "indices" for name, kind in case.layout.items()),
        "no pads (not an argument of it)": lambda case: bool(case.pads),
    },
    fit=_fit_store,
)
def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, pad_slot: int | None = None
) -> None:
    """store_cache_cpu"""
    call("store_cache_cpu", k=k, v=v, k_cache=k_cache, v_cache=v_cache, indices=indices, row_dim=None)


NORM_LAYOUTS = {"x": ("offset", "padded", "expanded"), "residual": ("offset",), "gate": ("offset",), "weight": ("offset",)}


def _fit_norm(case: NormCase) -> NormCase:
    layouts = NORM_LAYOUTS if case.form == "plain" else NORM_LAYOUTS | {"x": ("offset",)}
    wanted: NormCase = fitted(
        case, ["bfloat16", "float16"], layouts, outer=(max(prod(case.outer), 1),), width=max(case.width, 1), groups=0,
        weight="call", gemma=case.gemma and case.form != "gate",
    )
    return wanted


@adapts(
    "rms_norm",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "a weight of x's dtype (an argument that is no option, and checked)": lambda case: case.weight != "call",
        "no groups (not an argument of it)": lambda case: case.groups > 0,
        "no gate in Gemma's form (not offered)": lambda case: case.gemma and case.form == "gate",
        "two dimensions, with columns (checked)": lambda case: len(case.outer) != 1 or not case.outer[0] or not case.columns,
        "residual, gate and weight contiguous (checked)": other_layouts(NORM_LAYOUTS),
    },
    fit=_fit_norm,
)
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False,
) -> Any:
    """rmsnorm_cpu, gemma_rmsnorm_cpu, fused_rmsnorm_gated_cpu, fused_add_rmsnorm_cpu or gemma_fused_add_rmsnorm_cpu"""
    if group_size is not None or (gemma and gate is not None) or weight is None or weight.dtype != x.dtype:
        raise Unsupported("a weight of x's dtype, no groups, no gate in Gemma's form")
    if any(other is not None and not other.is_contiguous() for other in (gate, residual)):
        raise Unsupported("residual, gate and weight contiguous (checked)")
    named = {"weight": weight, "eps": eps}
    if residual is not None:
        out = x.contiguous().clone()  # it writes over its input
        call("gemma_fused_add_rmsnorm_cpu" if gemma else "fused_add_rmsnorm_cpu", input=out, residual=residual, **named)
        return out
    if gate is not None:
        return call("fused_rmsnorm_gated_cpu", input=x, gate=gate, **named)
    return call("gemma_rmsnorm_cpu" if gemma else "rmsnorm_cpu", input=x, **named)


PLAIN = (1, 2, 4, 8, 16, 32, 64, 128, 160, 256, 384, 512)  # experts that topk_softmax_cpu and topk_sigmoid_cpu dispatch on
GROUPED = tuple(size for size in PLAIN if size <= 256 and size != 160)  # grouped_topk_cpu
BIASED = (128, 192, 256, 384)  # biased_grouped_topk_cpu
DENSE = {"logits": ("offset",), "correction_bias": ("offset",)}


def _experts(case: TopkCase) -> tuple[int, ...]:
    return BIASED if case.bias != "none" else PLAIN if case.groups == 1 else GROUPED


def _fit_topk(case: TopkCase) -> TopkCase:
    biased, groups = case.bias != "none", case.groups if case.groups in (1, 2, 4, 8) else 8
    known = [size for size in _experts(replace(case, groups=groups)) if size % groups == 0 and size // groups >= 1]
    experts, kept = known[case.seed % len(known)], min(case.kept, groups)
    topk = 8 if biased else min(case.topk, kept * (experts // groups))
    if biased and topk > kept * (experts // groups):
        kept = groups
    sigmoid = biased or (topk == 1 and groups == 1 and case.scoring == "sigmoid")
    wanted: TopkCase = fitted(
        case, () if biased else ("bfloat16", "float16"), DENSE, experts=experts, groups=groups, kept=kept, topk=topk,
        scoring="sigmoid" if sigmoid else "softmax", scaling=1.0, pads=None,
    )
    return wanted


@adapts(
    "topk_gating",
    limits={
        "dtype bfloat16 or float16, float32 with a bias (its dispatch)":
            lambda case: case.dtype == "float32" and case.bias == "none",
        "numbers of experts that the operators are compiled for (checked)": lambda case: case.experts not in _experts(case),
        "with a bias sigmoid and 8 experts of a token; without one softmax, or sigmoid for 1 of one group (checked)":
            lambda case: (case.scoring, case.topk) != ("sigmoid", 8) if case.bias != "none"
            else case.scoring == "sigmoid" and (case.topk, case.groups) != (1, 1),
        "no scale (it is for shared experts)": lambda case: case.scaling != 1.0,
        "no pads": lambda case: case.pads is not None,
        "logits and bias are contiguous (checked)": other_layouts(DENSE),
    },
    fit=_fit_topk,
    rounding=ANY_ORDER,
)
def topk_gating(
    logits: Tensor, topk: int, scoring: str = "softmax", renormalize: bool = True, correction_bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, scaling_factor: float = 1.0, num_valid: int | None = None,
) -> tuple[Tensor, Tensor]:
    """topk_softmax_cpu, topk_sigmoid_cpu, grouped_topk_cpu or biased_grouped_topk_cpu"""
    logits = logits.contiguous()
    if scaling_factor != 1.0 or num_valid is not None:
        raise Unsupported("no scale, no pads")
    common = {"hidden_states": logits, "gating_output": logits, "topk": topk, "renormalize": renormalize}
    groups = {"num_expert_group": num_expert_group, "topk_group": topk_group, "num_fused_shared_experts": 0,
              "routed_scaling_factor": None, "num_token_non_padded": None}
    if correction_bias is not None:
        found = call("biased_grouped_topk_cpu", **common, **groups, correction_bias=correction_bias)
    elif num_expert_group > 1:
        found = call("grouped_topk_cpu", **common, **groups)
    else:
        found = call(f"topk_{scoring}_cpu", **common)
    weights, ids = found
    return weights, ids


ACT_LAYOUTS = {"x": ("offset",)}


def _fit_act(case: ActCase) -> ActCase:
    wanted: ActCase = fitted(case, ["bfloat16", "float16"], ACT_LAYOUTS, width=max(case.width, 1))
    return wanted


@adapts(
    "act_and_mul",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "x is contiguous, and has columns (so do all of its callers)":
            lambda case: other_layouts(ACT_LAYOUTS)(case) or not case.width,
    },
    fit=_fit_act,
    silent={"apart": "rows of x follow one another (a limit of the operator)"},
)
def act_and_mul(x: Tensor, activation: str = "silu") -> Any:
    """silu_and_mul_cpu, gelu_and_mul_cpu or gelu_tanh_and_mul_cpu"""
    return call(f"{activation}_and_mul_cpu", input=x)


HEAD_LAYOUTS = {name: ("offset",) for name in ("query", "key", "cos_sin_cache", "positions")}


def _fit_rotary(case: RotaryCase) -> RotaryCase:
    wanted: RotaryCase = fitted(case, ["bfloat16", "float16"], HEAD_LAYOUTS, (), wide=False, heads=max(case.heads, 1))
    return replace(wanted, kv_heads=case.kv_heads or 1)


@adapts(
    "rotary_embedding",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "the table in query's dtype (checked)": lambda case: case.wide,
        "positions are int64 (checked)": lambda case: bool(case.int32),
        "query and key have heads (key is no option)": lambda case: not case.heads or not case.kv_heads,
        "heads side by side: q as [T, H D] (so do its layers call it)": other_layouts(HEAD_LAYOUTS),
    },
    fit=_fit_rotary,
    silent={
        "apart": "heads side by side",
        "wide": "the table in query's dtype (checked)",
        "heads": "key is no option",
        "pairings": "each pairing is a loop of its own; nothing says that their bits agree",
    },
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, is_neox: bool = True,
    mrope_section: Sequence[int] | None = None, mrope_interleaved: bool = False,
) -> None:
    """rotary_embedding_cpu, and multimodal_rotary_embedding_cpu with sections, on flattened heads"""
    T, _, width = query.shape
    flat = {name: heads.view(T, heads.shape[1] * width) for name, heads in (("query", query), ("key", key)) if heads is not None}
    given = {"positions": positions, "head_size": width, "cos_sin_cache": cos_sin_cache, "is_neox": is_neox, **flat}
    if mrope_section is None:
        call("rotary_embedding_cpu", **given)
    else:
        sections = {"mrope_section": list(mrope_section), "mrope_interleaved": mrope_interleaved}
        call("multimodal_rotary_embedding_cpu", **given, **sections)
