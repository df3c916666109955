"""Metadata of a batch: what attention and gated-delta-net layers read beside activations and caches. Plain data."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class LocalAttentionMetadata:
    """Virtual requests of chunked local attention; all tensors int32."""

    seqlens_q: Tensor  # [V]
    cu_seqlens_q: Tensor  # [V + 1]
    seqlens_k: Tensor  # [V]
    block_table: Tensor  # [V, pages of a chunk]
    max_seq_len_q: int
    max_seq_len_k: int


@dataclass
class AttentionMetadata:
    """Arguments of one paged_attention call; all tensors int32. Encoder fields are None without encoder lengths."""

    cache_seqlens: Tensor  # [B]
    cu_seqlens_q: Tensor  # [B + 1]
    cu_seqlens_k: Tensor  # [B + 1]
    page_table: Tensor  # [B, ceil(max_seq_len_k / page_size)]
    max_seq_len_q: int
    max_seq_len_k: int
    encoder_lens: Tensor | None = None  # [B]
    encoder_cu_seqlens_k: Tensor | None = None  # [B + 1]
    encoder_page_table: Tensor | None = None  # [B, ceil(encoder_max_seq_len_k / page_size)]
    encoder_max_seq_len_k: int = 0
    local: LocalAttentionMetadata | None = None


@dataclass(frozen=True)
class GdnMetadata:
    """A batch: num_decodes requests of one token, then num_prefills requests; all per-request tensors in that order."""

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    num_actual_tokens: int
    state_indices: Tensor  # [num_decodes + num_prefills], int32 or int64
    query_start_loc: Tensor  # [num_decodes + num_prefills + 1], int32 or int64
    has_initial_state: Tensor  # [num_decodes + num_prefills], bool
    pad_slot: int | None = None
