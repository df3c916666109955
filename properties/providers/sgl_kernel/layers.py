"""Linear layers that are not quantized, and gated delta net layers. Limits are those of the operators' own checks and of what
`_amx_process_weight_after_loading` packs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.providers.sgl_kernel.calling import call, takes
from properties.providers.vllm_cpu import layers as _vllm
from reference.causal_conv1d import causal_conv1d_unpack_weight
from reference.pack_linear_weight import unpack_linear_weight

FLOAT32_STATES = "states in float32 (checked)"


@adapts(
    "packed_linear",
    limits={
        "dtype bfloat16 (float16 needs AMX-FP16)": lambda case: case.dtype != "bfloat16",
        "N a multiple of 16 and K of 32, or N below 16": lambda case: case.N >= 16 and bool(case.N % 16 or case.K % 32),
        "rows of x dense and apart": lambda case: other_layouts(_vllm.X_LAYOUTS)(case) or ("x" in case.layout and case.K == 1),
    },
    fit=lambda case: fitted(
        case, ["bfloat16"], _vllm.X_LAYOUTS if case.K > 1 else {}, N=case.N if case.N < 16 else -(-case.N // 16) * 16,
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


@adapts("causal_conv1d", limits=_vllm.causal_conv1d.limits, fit=_vllm.causal_conv1d.fit, silent=_vllm.causal_conv1d.silent)
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


@adapts("gdn_gating", limits=_vllm.gdn_gating.limits, fit=_vllm.gdn_gating.fit, silent=_vllm.gdn_gating.silent)
def gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """fused_gdn_gating_cpu"""
    g, beta = call("fused_gdn_gating_cpu", A_log=A_log, a=a, b=b, dt_bias=dt_bias)
    return g.reshape(a.shape), beta.reshape(b.shape)


@adapts(
    "gated_delta_rule_update",
    limits={**_vllm.gated_delta_rule_update.limits, FLOAT32_STATES: lambda case: case.state_dtype != "float32"},
    fit=lambda case: replace(_vllm.gated_delta_rule_update.fit(case), state_dtype="float32"),
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
    "chunk_gated_delta_rule",
    limits={**_vllm.chunk_gated_delta_rule.limits, FLOAT32_STATES: lambda case: case.state == "bfloat16"},
    fit=lambda case: replace(_vllm.chunk_gated_delta_rule.fit(case), state="float32"),
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
    if takes("chunk_gated_delta_rule_cpu", "initial_state_indices"):
        out, _ = call("chunk_gated_delta_rule_cpu", **common, initial_state=state, initial_state_indices=state_indices)
        return {"out": out[0]}
    slots = state_indices.long()
    out, final = call("chunk_gated_delta_rule_cpu", **common, initial_state=state[slots])
    state[slots] = final.to(state.dtype)
    return {"out": out[0]}
