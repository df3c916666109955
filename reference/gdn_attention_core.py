"""gdn_attention_core: the attention of a gated-delta-net layer for a batch of decodes and prefills, composed from its kernels'
references. It does no projections and no output gate."""

from typing import Any

import torch
from torch import Tensor

from reference import checks
from reference.causal_conv1d import causal_conv1d_fwd, causal_conv1d_update
from reference.chunk_gated_delta_rule import chunk_gated_delta_rule_pool
from reference.gated_delta_rule_update import gated_delta_rule_update
from reference.gdn_gating import gdn_gating
from serving.metadata import GdnMetadata
from serving.packed import PackedConvWeight


def gdn_attention_core(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, core_attn_out: Tensor, conv_state: Tensor, ssm_state: Tensor,
    conv_weight: PackedConvWeight, conv_bias: Tensor | None, A_log: Tensor, dt_bias: Tensor, metadata: GdnMetadata | None, *,
    num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int, conv_layout: str = "SD", state_layout: str = "vk",
    silu_activation: bool = True, use_qk_l2norm: bool = True, eps: float = 1e-5,
) -> None:  # fmt: skip
    """Write `core_attn_out[:num_actual_tokens]` and the addressed slots of both caches.

    mixed_qkv [>= T, 2 HK K + HV V]; a, b [>= T, HV]; core_attn_out [>= T, HV, V]; conv_state [slots, S, dim] ("SD") or
    [slots, dim, S] ("DS"), S >= w-1; ssm_state [slots, HV, V, K] ("vk") or [slots, HV, K, V] ("kv").
    A prefill whose has_initial_state is False starts from zeros whatever its slots hold; pad requests give rows of 0.
    Raises TypeError, ValueError (also a slot used twice across both parts), IndexError (slot outside a cache).
    """
    if metadata is None or metadata.num_actual_tokens == 0:
        return
    m, HK, K, HV, V = metadata, num_k_heads, head_k_dim, num_v_heads, head_v_dim
    _check_heads(HK, K, HV, V)
    checks.one_of("conv_layout", conv_layout, ("SD", "DS"))
    checks.one_of("state_layout", state_layout, ("kv", "vk"))
    checks.is_bool("silu_activation", silu_activation)
    checks.is_bool("use_qk_l2norm", use_qk_l2norm)
    checks.positive("eps", eps)
    _check_tensors(mixed_qkv, a, b, core_attn_out, ssm_state, conv_state, conv_weight, conv_bias, A_log, dt_bias)
    _check_metadata(m, len(mixed_qkv), len(a), len(b), len(core_attn_out))
    checks.has_shape("mixed_qkv", mixed_qkv, [len(mixed_qkv), 2 * HK * K + HV * V])
    checks.has_shape("a", a, [len(a), HV])
    checks.has_shape("b", b, [len(b), HV])
    checks.has_shape("core_attn_out", core_attn_out, [len(core_attn_out), HV, V])
    checks.parameter_vector("A_log", A_log, HV, mixed_qkv.dtype)
    checks.parameter_vector("dt_bias", dt_bias, HV, mixed_qkv.dtype)
    conv_states = conv_state.transpose(1, 2) if conv_layout == "SD" else conv_state
    _check_convolution(mixed_qkv, conv_weight, conv_bias, conv_states)
    checks.has_shape("ssm_state", ssm_state, [len(ssm_state), HV, *((K, V) if state_layout == "kv" else (V, K))])
    lengths = m.query_start_loc[1:] - m.query_start_loc[:-1]
    slots = min(len(conv_state), len(ssm_state))
    checks.written_slots("state_indices", m.state_indices, slots, m.pad_slot, lengths > 0)
    mutated = {"core_attn_out": core_attn_out, "conv_state": conv_state, "ssm_state": ssm_state}
    read = {"mixed_qkv": mixed_qkv, "a": a, "b": b, "conv_weight": conv_weight.data, "conv_bias": conv_bias, "A_log": A_log}
    tables = {"state_indices": m.state_indices, "query_start_loc": m.query_start_loc, "has_initial_state": m.has_initial_state}
    checks.disjoint(mutated, {**read, "dt_bias": dt_bias, **tables})

    def heads(mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = mixed.split([HK * K, HK * K, HV * V], dim=-1)
        return q.unflatten(-1, (HK, K)), k.unflatten(-1, (HK, K)), v.unflatten(-1, (HV, V))

    nd, n = m.num_decodes, m.num_actual_tokens
    rule: dict[str, Any] = {"state_layout": state_layout, "use_qk_l2norm": use_qk_l2norm, "eps": eps, "pad_slot": m.pad_slot}
    if nd:
        slots_d = m.state_indices[:nd]
        conv = causal_conv1d_update(mixed_qkv[:nd], conv_states, conv_weight, conv_bias, slots_d, silu_activation, m.pad_slot)
        core_attn_out[:nd] = gated_delta_rule_update(A_log, dt_bias, *heads(conv), a[:nd], b[:nd], ssm_state, slots_d, **rule)
    if m.num_prefills:
        offsets = m.query_start_loc[nd:] - m.num_decode_tokens
        slots_p, flags = m.state_indices[nd:], m.has_initial_state[nd:]
        conv = causal_conv1d_fwd(
            mixed_qkv[nd:n].t(), conv_weight, conv_bias, conv_states, offsets, slots_p, flags, silu_activation, m.pad_slot
        )
        g, beta = gdn_gating(A_log, a[nd:n], b[nd:n], dt_bias)
        core_attn_out[nd:n] = chunk_gated_delta_rule_pool(
            *heads(conv.t().contiguous()), g, beta, ssm_state, slots_p, flags, offsets, **rule
        )


def _check_heads(HK: int, K: int, HV: int, V: int) -> None:
    for name, value in {"num_k_heads": HK, "head_k_dim": K, "num_v_heads": HV, "head_v_dim": V}.items():
        checks.is_count(name, value, 1)
    if HV % HK:
        raise ValueError(f"num_v_heads = {HV} must be a multiple of num_k_heads = {HK}")


def _check_convolution(
    mixed_qkv: Tensor, conv_weight: PackedConvWeight, conv_bias: Tensor | None, conv_states: Tensor
) -> None:
    """Weight, bias and states [slots, dim, S] of as many channels as mixed_qkv has, and enough columns."""
    dim = mixed_qkv.shape[1]
    if conv_bias is not None:
        checks.parameter_vector("conv_bias", conv_bias, dim, mixed_qkv.dtype)
    if conv_weight.dim != dim:
        raise ValueError(f"conv_weight holds {conv_weight.dim} channels, mixed_qkv has {dim}")
    slots, _, columns = conv_states.shape
    if columns < conv_weight.width - 1:
        needed = conv_weight.width - 1
        raise ValueError(f"conv_state has {columns} columns, a convolution of width {conv_weight.width} needs {needed}")
    checks.has_shape("conv_state", conv_states, [slots, dim, columns])


def _check_metadata(m: GdnMetadata, *rows: int) -> None:
    """Counts that agree with each other, with the tables, and with the rows of the token tensors."""
    for name in ("num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens", "num_actual_tokens"):
        checks.is_count(name, getattr(m, name))
    requests = m.num_decodes + m.num_prefills
    if m.num_decode_tokens != m.num_decodes:
        raise ValueError(f"num_decode_tokens = {m.num_decode_tokens} must equal num_decodes = {m.num_decodes}")
    if m.num_actual_tokens != m.num_decode_tokens + m.num_prefill_tokens:
        raise ValueError(f"num_actual_tokens = {m.num_actual_tokens} must be the sum of both parts' tokens")
    for count, name in zip(rows, ("mixed_qkv", "a", "b", "core_attn_out")):
        if count < m.num_actual_tokens:
            raise ValueError(f"{name} has {count} rows for num_actual_tokens = {m.num_actual_tokens}")
    checks.is_index("state_indices", m.state_indices, [requests])
    checks.is_index("query_start_loc", m.query_start_loc, [requests + 1])
    checks.offsets("query_start_loc", m.query_start_loc, m.num_actual_tokens)
    if m.query_start_loc[: m.num_decodes + 1].tolist() != list(range(m.num_decodes + 1)):
        raise ValueError("query_start_loc must give each decode one token, from 0 on")
    if int(m.query_start_loc[-1]) != m.num_actual_tokens:
        raise ValueError(f"query_start_loc ends at {int(m.query_start_loc[-1])}, num_actual_tokens is {m.num_actual_tokens}")
    checks.is_tensor("has_initial_state", m.has_initial_state)
    checks.has_dtype("has_initial_state", m.has_initial_state, [torch.bool])
    checks.has_shape("has_initial_state", m.has_initial_state, [requests])


def _check_tensors(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    core_attn_out: Tensor,
    ssm_state: Tensor,
    conv_state: Tensor,
    conv_weight: PackedConvWeight,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
) -> None:
    """Types, ranks, dtypes and dense last dimensions."""
    if not isinstance(conv_weight, PackedConvWeight):
        raise TypeError(f"conv_weight must be a PackedConvWeight, got {type(conv_weight).__name__}")
    ranks = {"mixed_qkv": (mixed_qkv, 2), "a": (a, 2), "b": (b, 2), "core_attn_out": (core_attn_out, 3)}
    for name, (tensor, rank) in (ranks | {"ssm_state": (ssm_state, 4), "conv_state": (conv_state, 3)}).items():
        checks.is_tensor(name, tensor, rank)
    floats = {"mixed_qkv": mixed_qkv, "a": a, "b": b, "core_attn_out": core_attn_out, "conv_state": conv_state}
    checks.same_dtype(floats | {"conv_weight": conv_weight.data})
    checks.state_dtype("ssm_state", ssm_state, mixed_qkv.dtype)
    for name, tensor in {"mixed_qkv": mixed_qkv, "core_attn_out": core_attn_out, "ssm_state": ssm_state}.items():
        checks.dense_last_dim(name, tensor)
    checks.dense_last_dim("conv_state", conv_state)
