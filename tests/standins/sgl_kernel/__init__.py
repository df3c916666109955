"""A stand-in for SGLang's package: operators with its published schemas, made in Python over our own kernels.

FAULTS plants one: the name of an operator -> what becomes of its result.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import optimized.fp8_linear
import optimized.fused_moe
import optimized.int4_linear
import optimized.int8_linear
import optimized.quantize_rows_int8
from reference.causal_conv1d import causal_conv1d_pack_weight
from reference.int4_codes import int4_from_awq
from reference.pack_linear_weight import pack_linear_weight, unpack_linear_weight

OURS = torch.ops.kernelpair
LIBRARY = torch.library.Library("sgl_kernel", "DEF")
SCHEMAS = {
    "store_cache_cpu": "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor indices, int? row_dim=None) -> ()",
    "extend_attention_cpu": "(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, Tensor(a!) o_extend, Tensor k_buffer, "
    "Tensor v_buffer, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
    "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()",
    "decode_attention_cpu": "(Tensor query, Tensor(b!) k_cache, Tensor(c!) v_cahce, Tensor(a!) output, Tensor? key, "
    "Tensor? value, Tensor loc, Tensor(d!) attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()",
    "flash_attn_varlen_func": "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, "
    "int max_seqlen_k, bool causal, float sm_scale=-1.0) -> Tensor",
    "convert_weight_packed": "(Tensor weight) -> Tensor",
    "weight_packed_linear": "(Tensor mat1, Tensor mat2, Tensor? bias, bool is_vnni) -> Tensor",
    "causal_conv1d_weight_pack": "(Tensor weight) -> Tensor",
    "causal_conv1d_fwd_cpu": "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!)? conv_states, Tensor? query_start_loc, "
    "Tensor? cache_indices, Tensor? has_initial_state, bool silu_activation, int pad_slot_id, bool is_vnni) -> Tensor",
    "causal_conv1d_update_cpu": "(Tensor x, Tensor(a!) conv_states, Tensor weight, Tensor? bias, bool silu_activation, "
    "Tensor? cache_seqlens, Tensor? conv_state_indices, int pad_slot_id, bool is_vnni) -> Tensor",
    "per_token_quant_int8_cpu": "(Tensor A) -> (Tensor, Tensor)",
    "int8_scaled_mm_cpu": "(Tensor mat1, Tensor mat2, Tensor scales1, Tensor scales2, Tensor? bias, ScalarType out_dtype, "
    "bool is_vnni) -> Tensor",
    "int8_scaled_mm_with_quant": "(Tensor mat1, Tensor mat2, Tensor scales2, Tensor? bias, ScalarType out_dtype, bool is_vnni) "
    "-> Tensor",
    "fp8_scaled_mm_cpu": "(Tensor mat1, Tensor mat2, Tensor scales2, int[] block_size, Tensor? bias, ScalarType out_dtype, "
    "bool is_vnni) -> Tensor",
    "convert_weight_packed_scale_zp": "(Tensor weight, Tensor qzeros, Tensor scales, int quant_method_4bit) "
    "-> (Tensor, Tensor, Tensor)",
    "int4_scaled_mm_cpu": "(Tensor x, Tensor w, Tensor w_zeros, Tensor w_scales, Tensor? bias) -> Tensor",
    "fused_experts_cpu": "(Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids, bool inplace, "
    "int moe_comp_method, Tensor? w1_scale, Tensor? w2_scale, Tensor? w1_zero, Tensor? w2_zero, int[]? block_size, "
    "Tensor? w1_bias, Tensor? w2_bias, float? alpha, float? limit, bool is_vnni, str? activation=None) -> Tensor",
    "shared_expert_cpu": "(Tensor hidden_states, Tensor w1, Tensor w2, Tensor? fused_experts_out, float? routed_scaling_factor, "
    "bool inplace, bool use_int8_w8a8, bool use_fp8_w8a16, Tensor? w1_scale, Tensor? w2_scale, int[]? block_size, "
    "bool is_vnni) -> Tensor",
    "fused_gdn_gating_cpu": "(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)",
    "fused_sigmoid_gating_delta_rule_update_cpu": "(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, "
    "Tensor a, Tensor b, Tensor(a!) initial_state_source, Tensor initial_state_indices, Tensor cu_seqlens, "
    "bool use_qk_l2norm_in_kernel, float softplus_beta=1.0, float softplus_threshold=20.0) -> Tensor",
    "chunk_gated_delta_rule_cpu": "(Tensor query, Tensor key, Tensor value, Tensor g, Tensor beta, Tensor initial_state, "
    "bool output_final_state, Tensor cu_seqlens, bool head_first, bool use_qk_l2norm_in_kernel, float eps=1e-5) "
    "-> (Tensor, Tensor)",
    "rmsnorm_cpu": "(Tensor input, Tensor weight, float eps) -> Tensor",
    "gemma_rmsnorm_cpu": "(Tensor input, Tensor weight, float eps) -> Tensor",
    "fused_rmsnorm_gated_cpu": "(Tensor input, Tensor weight, Tensor gate, float eps) -> Tensor",
    "fused_add_rmsnorm_cpu": "(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    "gemma_fused_add_rmsnorm_cpu": "(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    "topk_softmax_cpu": "(Tensor hidden_states, Tensor gating_output, int topk, bool renormalize, "
    "Tensor? correction_bias=None) -> (Tensor, Tensor)",
    "topk_sigmoid_cpu": "(Tensor hidden_states, Tensor gating_output, int topk, bool renormalize, "
    "Tensor? correction_bias=None) -> (Tensor, Tensor)",
    "grouped_topk_cpu": "(Tensor hidden_states, Tensor gating_output, int topk, bool renormalize, int num_expert_group, "
    "int topk_group, int num_fused_shared_experts, float? routed_scaling_factor, Tensor? num_token_non_padded) "
    "-> (Tensor, Tensor)",
    "biased_grouped_topk_cpu": "(Tensor hidden_states, Tensor gating_output, Tensor correction_bias, int topk, "
    "bool renormalize, int num_expert_group, int topk_group, int num_fused_shared_experts, float? routed_scaling_factor, "
    "Tensor? num_token_non_padded) -> (Tensor, Tensor)",
    "silu_and_mul_cpu": "(Tensor input) -> Tensor",
    "gelu_and_mul_cpu": "(Tensor input) -> Tensor",
    "gelu_tanh_and_mul_cpu": "(Tensor input) -> Tensor",
    "rotary_embedding_cpu": "(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin_cache, bool is_neox) "
    "-> (Tensor, Tensor)",
    "multimodal_rotary_embedding_cpu": "(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin_cache, "
    "int[]? mrope_section, bool mrope_interleaved, bool is_neox) -> (Tensor, Tensor)",
}
FAULTS: dict[str, Callable[[Any], Any]] = {}
sizes: dict[int, tuple[int, ...]] = {}  # a packed weight's address -> its shape, which the operator sees in its own packing


def store_cache_cpu(k, v, k_cache, v_cache, indices, row_dim=None):
    OURS.store_cache(k, v, k_cache, v_cache, indices, None)


def extend_attention_cpu(
    q, k, v, out, k_buffer, v_buffer, table, pool, seq_lens, extend_seq_lens, extend_start_loc, longest, sm_scale, logit_cap,
    is_cross_attn, sliding_window_size, encoder_lens, sinks,
):
    OURS.extend_attention(
        q, k, v, out, k_buffer, v_buffer, table, pool, seq_lens, extend_seq_lens, extend_start_loc, encoder_lens, sinks, sm_scale,
        logit_cap, sliding_window_size, is_cross_attn,
    )


def decode_attention_cpu(
    q, k_cache, v_cache, out, key, value, loc, logits, table, pool, seq_lens, sm_scale, logit_cap, is_cross_attn,
    sliding_window_size, encoder_lens, sinks,
):
    assert loc.dim() == 1
    OURS.decode_attention(
        q, k_cache, v_cache, out, key, value, None if key is None else loc, logits, table, pool, seq_lens, encoder_lens, sinks,
        sm_scale, logit_cap, sliding_window_size, is_cross_attn,
    )


def flash_attn_varlen_func(q, k, v, of_q, of_k, longest_q, longest_k, causal, sm_scale=-1.0):
    assert [longest_q, longest_k] == [int(offsets.diff().max()) if len(offsets) > 1 else 0 for offsets in (of_q, of_k)]
    scale = None if sm_scale < 0 else sm_scale
    return OURS.flash_attn_varlen(q, k, v, of_q, of_k, None, scale, causal, None, "bottom_right")


def convert_weight_packed(weight):
    """Weights of linear layers in our own packing; others as they are, known by their addresses."""
    packed = pack_linear_weight(weight) if weight.dim() == 2 and weight.itemsize > 1 else weight.clone()
    sizes[packed.data_ptr()] = tuple(weight.shape)
    return packed


def unpacked(packed):
    assert packed.shape == sizes[packed.data_ptr()], "is_vnni, and it was never packed"
    return packed


def weight_packed_linear(mat1, mat2, bias, is_vnni):
    return OURS.packed_linear(mat1, mat2, *sizes[mat2.data_ptr()], bias)


def per_token_quant_int8_cpu(x):
    q, scale, _ = optimized.quantize_rows_int8.quantize_rows_int8(x)
    return (q.to(torch.int16) + 128).to(torch.uint8), scale


def int8_scaled_mm_cpu(rows, weight, scale, w_scale, bias, out_dtype, is_vnni):
    q, packed = (rows.to(torch.int16) - 128).to(torch.int8), optimized.int8_linear.PackedInt8Weight.pack(unpacked(weight))
    return optimized.int8_linear.int8_matmul(q, scale, None, packed, w_scale, bias, out_dtype)


def int8_scaled_mm_with_quant(x, weight, w_scale, bias, out_dtype, is_vnni):
    packed = optimized.int8_linear.PackedInt8Weight.pack(unpacked(weight))
    return optimized.int8_linear.int8_linear(x, packed, w_scale, bias)


def fp8_scaled_mm_cpu(x, weight, scales, block_size, bias, out_dtype, is_vnni):
    packed = optimized.fp8_linear.PackedFp8Weight.pack(unpacked(weight), scales, tuple(block_size))
    return optimized.fp8_linear.fp8_linear(x, packed, bias)


def convert_weight_packed_scale_zp(words, zeros, scales, method):
    codes, points = int4_from_awq(words, zeros)
    return codes, points, scales.float().T.contiguous()


def int4_scaled_mm_cpu(x, codes, points, scales, bias):
    packed = optimized.int4_linear.PackedInt4Weight.pack(codes, scales, points, codes.shape[1] // scales.shape[1])
    return optimized.int4_linear.int4_linear(x, packed, bias, activation="int8")


def experts(weight, scale, block_size):
    """Of any kind, in our own packing. Scales of experts that nobody asks for may be NaN."""
    if weight.dtype == torch.int8:
        return optimized.fused_moe.PackedInt8Experts.pack(weight, scale)
    if weight.dtype == torch.float8_e4m3fn:
        packed = optimized.fused_moe.PackedFp8Experts.pack(weight, scale.nan_to_num(), tuple(block_size))
        return replace(packed, scales=scale)
    return optimized.fused_moe.PackedExperts.pack(weight)


def fused_experts_cpu(
    x, w1, w2, weights, ids, inplace, method, s1, s2, zero1, zero2, block_size, b1, b2, alpha, limit, is_vnni, activation=None
):
    assert (w1.dtype == torch.int8, w1.dtype == torch.float8_e4m3fn) == (method == 1, method == 2)
    w13, down = (experts(unpacked(weight), scale, block_size) for weight, scale in ((w1, s1), (w2, s2)))
    return optimized.fused_moe.fused_moe(x, w13, down, weights, ids, b1, b2)


def shared_expert_cpu(x, w1, w2, routed, factor, inplace, int8, fp8, s1, s2, block_size, is_vnni):
    if w1.dtype.itemsize > 1:
        gate_up, down = (unpack_linear_weight(weight, *sizes[weight.data_ptr()])[None] for weight in (w1, w2))
    else:
        assert (w1.dtype == torch.int8, w1.dtype == torch.float8_e4m3fn) == (int8, fp8)
        gate_up, down = unpacked(w1)[None], unpacked(w2)[None]
    s1, s2 = (scale if scale is None else scale[None] for scale in (s1, s2))
    w13, w2 = experts(gate_up, s1, block_size), experts(down, s2, block_size)
    return optimized.fused_moe.shared_expert(x, w13, w2, routed, 1.0 if factor is None else factor)


def causal_conv1d_weight_pack(weight):
    return weight.clone()


def causal_conv1d_fwd_cpu(x, weight, bias, states, offsets, indices, initial, silu, pad_slot_id, is_vnni):
    packed, width = causal_conv1d_pack_weight(weight), weight.shape[1]
    return OURS.causal_conv1d_fwd(x, packed, width, bias, states, offsets, indices, initial, silu, pad_slot_id)


def causal_conv1d_update_cpu(x, states, weight, bias, silu, cache_seqlens, indices, pad_slot_id, is_vnni):
    packed, width = causal_conv1d_pack_weight(weight), weight.shape[1]
    return OURS.causal_conv1d_update(x, states, packed, width, bias, indices, silu, pad_slot_id)


def fused_gdn_gating_cpu(A_log, a, b, dt_bias):
    g, beta = OURS.gdn_gating(A_log, a, b, dt_bias)
    return g[None], beta[None]


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log, dt_bias, q, k, v, a, b, state, indices, offsets, l2norm, softplus_beta=1.0, softplus_threshold=20.0
):
    return OURS.gated_delta_rule_update(
        A_log, dt_bias, q[0], k[0], v[0], a, b, state, indices, "kv", l2norm, 1e-5, None, softplus_beta, softplus_threshold
    )[:, None]


def chunk_gated_delta_rule_cpu(q, k, v, g, beta, state, final, offsets, head_first, l2norm, eps=1e-5):
    out, final_state = OURS.chunk_gated_delta_rule(q[0], k[0], v[0], g[0], beta[0], state, offsets, "kv", l2norm, eps)
    return out[None], final_state


def rmsnorm_cpu(x, weight, eps):
    return OURS.rms_norm(x, weight, eps)


def gemma_rmsnorm_cpu(x, weight, eps):
    return OURS.rms_norm(x, weight, eps, None, None, None, True)


def fused_rmsnorm_gated_cpu(x, weight, gate, eps):
    return OURS.rms_norm(x, weight, eps, None, gate)


def fused_add_rmsnorm_cpu(x, residual, weight, eps):
    x.copy_(OURS.rms_norm(x, weight, eps, residual))


def gemma_fused_add_rmsnorm_cpu(x, residual, weight, eps):
    x.copy_(OURS.rms_norm(x, weight, eps, residual, None, None, True))


def topk_softmax_cpu(hidden, logits, topk, renormalize, bias=None):
    return OURS.topk_gating(logits, topk, "softmax", renormalize, bias)


def topk_sigmoid_cpu(hidden, logits, topk, renormalize, bias=None):
    return OURS.topk_gating(logits, topk, "sigmoid", renormalize, bias)


def grouped_topk_cpu(hidden, logits, topk, renormalize, groups, kept, shared, scale, tokens):
    return OURS.topk_gating(logits, topk, "softmax", renormalize, None, groups, kept)


def biased_grouped_topk_cpu(hidden, logits, bias, topk, renormalize, groups, kept, shared, scale, tokens):
    return OURS.topk_gating(logits, topk, "sigmoid", renormalize, bias, groups, kept, 1.0 if scale is None else scale)


def silu_and_mul_cpu(x):
    return OURS.act_and_mul(x, "silu")


def gelu_and_mul_cpu(x):
    return OURS.act_and_mul(x, "gelu")


def gelu_tanh_and_mul_cpu(x):
    return OURS.act_and_mul(x, "gelu_tanh")


def rotary_embedding_cpu(positions, query, key, head_size, cos_sin_cache, is_neox):
    return multimodal_rotary_embedding_cpu(positions, query, key, head_size, cos_sin_cache, None, False, is_neox)


def multimodal_rotary_embedding_cpu(
    positions, query, key, head_size, cos_sin_cache, mrope_section, mrope_interleaved, is_neox
):
    heads = [flat.view(len(flat), flat.shape[1] // head_size, head_size) for flat in (query, key)]
    OURS.rotary_embedding(positions, *heads, cos_sin_cache, is_neox, mrope_section, mrope_interleaved)
    return query, key


def registered(name: str) -> Callable[..., Any]:
    """The operator, with the fault that is planted when it is called."""

    def run(*arguments: Any) -> Any:
        result = globals()[name](*arguments)
        return FAULTS[name](result) if name in FAULTS else result

    return run


for name, schema in SCHEMAS.items():
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, registered(name), "CPU")
