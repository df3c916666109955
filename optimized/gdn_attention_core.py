"""The attention of a gated-delta-net layer over the compiled operators; no cache is copied or re-strided."""

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.causal_conv1d import causal_conv1d_fwd, causal_conv1d_update
from optimized.checks import (
    FLOAT_DTYPES,
    INDEX_DTYPES,
    check_disjoint,
    check_offsets,
    check_slots,
    check_tensor,
)
from optimized.operators import operator
from serving.checks import check_count, check_dense_last, check_positive
from serving.metadata import GdnMetadata
from serving.packed import PackedConvWeight


@dataclass(frozen=True)
class _Heads:
    """Numbers and widths of heads, and how the convolution's channels divide into q, k and v."""

    HK: int
    K: int
    HV: int
    V: int

    @property
    def dim(self) -> int:
        return 2 * self.HK * self.K + self.HV * self.V

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = mixed.split([self.HK * self.K, self.HK * self.K, self.HV * self.V], dim=-1)
        keys = (self.HK, self.K)
        return q.unflatten(-1, keys), k.unflatten(-1, keys), v.unflatten(-1, (self.HV, self.V))


def gdn_attention_core(
    mixed_qkv: Tensor, a: Tensor, b: Tensor, core_attn_out: Tensor, conv_state: Tensor, ssm_state: Tensor,
    conv_weight: PackedConvWeight, conv_bias: Tensor | None, A_log: Tensor, dt_bias: Tensor, metadata: GdnMetadata | None, *,
    num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int, conv_layout: str = "SD", state_layout: str = "vk",
    silu_activation: bool = True, use_qk_l2norm: bool = True, eps: float = 1e-5,
) -> None:  # fmt: skip
    """Write the rows of `core_attn_out` that hold tokens, and the state slots of the batch's requests, in both caches.

    Shapes as in reference.gdn_attention_core: mixed_qkv [>= T, 2 HK K + HV V], core_attn_out [>= T, HV, V]; ssm_state is float32
    or bfloat16. Raises TypeError, ValueError and IndexError before anything is written.

        gdn_attention_core(mixed_qkv, a, b, out, conv_state, ssm_state, PackedConvWeight.pack(conv.weight), None, A_log,
                           dt_bias, metadata, num_k_heads=16, head_k_dim=128, num_v_heads=32, head_v_dim=128)
    """
    if metadata is None or metadata.num_actual_tokens == 0:
        return
    m, heads = metadata, _Heads(num_k_heads, head_k_dim, num_v_heads, head_v_dim)
    _check_scalars(heads, conv_layout, state_layout, silu_activation, use_qk_l2norm, eps)
    offsets = _check_metadata(m)
    _check_tensors(mixed_qkv, a, b, core_attn_out, conv_weight, conv_bias, A_log, dt_bias, heads, m.num_actual_tokens)
    conv_states = _check_states(mixed_qkv, conv_state, ssm_state, conv_weight, heads, conv_layout, state_layout)
    slots = m.state_indices.tolist()
    live = [slot != m.pad_slot and end > begin for slot, begin, end in zip(slots, offsets, offsets[1:])]
    check_slots("state_indices", slots, live, min(len(conv_state), len(ssm_state)))
    mutated = {"core_attn_out": core_attn_out, "conv_state": conv_state, "ssm_state": ssm_state}
    read = {"mixed_qkv": mixed_qkv, "a": a, "b": b, "conv_weight": conv_weight.data, "conv_bias": conv_bias, "A_log": A_log}
    tables = {"state_indices": m.state_indices, "query_start_loc": m.query_start_loc, "has_initial_state": m.has_initial_state}
    check_disjoint(mutated, {**read, "dt_bias": dt_bias, **tables})

    core_attn_out = core_attn_out.detach()  # written whether or not it is a leaf of a graph
    nd, n = m.num_decodes, m.num_actual_tokens
    rule = {"state_layout": state_layout, "use_qk_l2norm": use_qk_l2norm, "eps": eps, "pad_slot": m.pad_slot}
    if nd:
        indices = m.state_indices[:nd]
        conv = causal_conv1d_update(mixed_qkv[:nd], conv_states, conv_weight, conv_bias, indices, silu_activation, m.pad_slot)
        q, k, v = heads.split(conv)
        update = operator("gated_delta_rule_update")
        core_attn_out[:nd] = update(A_log, dt_bias, q, k, v, a[:nd], b[:nd], ssm_state, indices, **rule)
    if m.num_prefills:
        starts = m.query_start_loc[nd:] - m.num_decode_tokens
        indices, flags = m.state_indices[nd:], m.has_initial_state[nd:]
        conv = causal_conv1d_fwd(
            mixed_qkv[nd:n].t(), conv_weight, conv_bias, conv_states, starts, indices, flags, silu_activation, m.pad_slot
        ).t()
        q, k, v = heads.split(conv if conv.stride(-1) == 1 else conv.contiguous())
        g, beta = operator("gdn_gating")(A_log, a[nd:n], b[nd:n], dt_bias)
        prefill = operator("chunk_gated_delta_rule_pool")
        core_attn_out[nd:n] = prefill(q, k, v, g, beta, ssm_state, indices, flags, starts, **rule)


def _check_scalars(heads: _Heads, conv_layout: str, state_layout: str, silu: bool, l2norm: bool, eps: float) -> None:
    names = {"num_k_heads": heads.HK, "head_k_dim": heads.K, "num_v_heads": heads.HV, "head_v_dim": heads.V}
    for name, value in names.items():
        check_count(name, value, 1)
    if heads.HV % heads.HK:
        raise ValueError(f"num_v_heads = {heads.HV} must be a multiple of num_k_heads = {heads.HK}")
    layouts = (("conv_layout", conv_layout, ("SD", "DS")), ("state_layout", state_layout, ("kv", "vk")))
    for name, tag, allowed in layouts:
        if not isinstance(tag, str):
            raise TypeError(f"{name} must be a string, got {type(tag).__name__}")
        if tag not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {tag!r}")
    for name, flag in (("silu_activation", silu), ("use_qk_l2norm", l2norm)):
        if not isinstance(flag, int):
            raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
    if not isinstance(eps, (int, float)):
        raise TypeError(f"eps must be a number, got {type(eps).__name__}")
    check_positive("eps", eps)


def _check_metadata(m: GdnMetadata) -> list[int]:
    """The offsets of all requests, once counts and tables agree with each other."""
    for name in ("num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens"):
        check_count(name, getattr(m, name))
    if m.num_decode_tokens != m.num_decodes:
        raise ValueError(f"num_decode_tokens = {m.num_decode_tokens} must equal num_decodes = {m.num_decodes}")
    if m.num_actual_tokens != m.num_decode_tokens + m.num_prefill_tokens:
        raise ValueError(f"num_actual_tokens = {m.num_actual_tokens} must be the sum of both parts' tokens")
    if m.pad_slot is not None and not isinstance(m.pad_slot, int):
        raise TypeError(f"pad_slot must be an int or None, got {type(m.pad_slot).__name__}")
    requests = m.num_decodes + m.num_prefills
    check_tensor("state_indices", m.state_indices, 1, INDEX_DTYPES, [requests])
    check_tensor("query_start_loc", m.query_start_loc, 1, INDEX_DTYPES, [requests + 1])
    check_tensor("has_initial_state", m.has_initial_state, 1, [torch.bool], [requests])
    offsets: list[int] = m.query_start_loc.tolist()
    check_offsets("query_start_loc", offsets, m.num_actual_tokens)
    if offsets[: m.num_decodes + 1] != list(range(m.num_decodes + 1)) or offsets[-1] != m.num_actual_tokens:
        raise ValueError(f"query_start_loc must give each decode one token from 0 on and end at num_actual_tokens, got {offsets}")
    return offsets


def _check_tensors(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    core_attn_out: Tensor,
    conv_weight: PackedConvWeight,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    heads: _Heads,
    tokens: int,
) -> None:
    if not isinstance(conv_weight, PackedConvWeight):
        raise TypeError(f"conv_weight must be a PackedConvWeight, got {type(conv_weight).__name__}")
    check_tensor("mixed_qkv", mixed_qkv, 2, FLOAT_DTYPES, [None, heads.dim])
    dtype = mixed_qkv.dtype
    check_tensor("a", a, 2, [dtype], [None, heads.HV])
    check_tensor("b", b, 2, [dtype], [None, heads.HV])
    check_tensor("core_attn_out", core_attn_out, 3, [dtype], [None, heads.HV, heads.V])
    for name, value in {"mixed_qkv": mixed_qkv, "a": a, "b": b, "core_attn_out": core_attn_out}.items():
        if len(value) < tokens:
            raise ValueError(f"{name} has {len(value)} rows for num_actual_tokens = {tokens}")
    check_dense_last("mixed_qkv", mixed_qkv)
    check_dense_last("core_attn_out", core_attn_out)
    vectors: dict[str, tuple[Tensor | None, int]] = {
        "A_log": (A_log, heads.HV),
        "dt_bias": (dt_bias, heads.HV),
        "conv_bias": (conv_bias, heads.dim),
    }
    for name, (vector, size) in vectors.items():
        if vector is not None or name != "conv_bias":
            check_tensor(name, vector, 1, [dtype, torch.float32], [size])
    if conv_weight.dim != heads.dim:
        raise ValueError(f"conv_weight holds {conv_weight.dim} channels, mixed_qkv has {heads.dim}")
    if conv_weight.dtype != dtype:
        raise TypeError(f"conv_weight has dtype {conv_weight.dtype}, but mixed_qkv has {dtype}")


def _check_states(
    mixed_qkv: Tensor, conv_state: Tensor, ssm_state: Tensor, weight: PackedConvWeight, heads: _Heads, conv_layout: str, tag: str
) -> Tensor:
    """The conv cache as a view [slots, dim, S], whatever its layout."""
    declared = [None, None, heads.dim] if conv_layout == "SD" else [None, heads.dim, None]
    check_tensor("conv_state", conv_state, 3, [mixed_qkv.dtype], declared)
    columns = conv_state.shape[1 if conv_layout == "SD" else 2]
    if columns < weight.width - 1:
        raise ValueError(f"conv_state has {columns} columns, a convolution of width {weight.width} needs {weight.width - 1}")
    widths = (heads.K, heads.V) if tag == "kv" else (heads.V, heads.K)
    check_tensor("ssm_state", ssm_state, 4, (torch.float32, torch.bfloat16), [None, heads.HV, *widths])
    check_dense_last("conv_state", conv_state)
    check_dense_last("ssm_state", ssm_state)
    return conv_state.transpose(1, 2) if conv_layout == "SD" else conv_state
