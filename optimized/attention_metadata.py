"""attention_metadata: allocates the fields of a batch, or keeps them at fixed addresses, and lets one operator fill them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized._checks import check_count
from optimized.operators import operator

STATIC_MODES = ("idle", "decode", "draft_decode", "target_verify")
EXTEND_MODES = ("extend", "mixed", "draft_extend")
_FROM_EXTEND = -1  # query lengths are extend_seq_lens
_LIMIT = 2**31  # no length and no total reaches it
_MOST = 2**62  # larger chunks and pages act alike


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


def build_attention_metadata(
    mode: str,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    *,
    page_size: int = 1,
    extend_seq_lens: Tensor | None = None,
    encoder_lens: Tensor | None = None,
    num_draft_tokens: int = 0,
    speculative_step_id: int = 0,
    attn_chunk_size: int | None = None,
) -> AttentionMetadata:
    """Build the metadata of one batch.

    seq_lens, req_pool_indices, extend_seq_lens, encoder_lens [B]; req_to_token [R, C] holds token slots; all int32 or int64.
    Raises TypeError (types), ValueError (mode, scalars, lengths, page starts), IndexError (pool rows, lengths beyond C, slots).
    """
    _check_scalars(page_size, num_draft_tokens, speculative_step_id, attn_chunk_size)
    _check_mode(mode, STATIC_MODES + EXTEND_MODES)
    batch = (
        *(seq_lens, req_pool_indices, req_to_token, extend_seq_lens, encoder_lens),
        *(min(page_size, _MOST), *_lengths_of(mode, num_draft_tokens, speculative_step_id)),
    )
    max_q, max_k, max_encoder = operator("attention_metadata_plan")(*batch).tolist()
    size = len(seq_lens)
    meta = _empty(size, _ceil_div(max_k, page_size))
    meta.max_seq_len_q, meta.max_seq_len_k, meta.encoder_max_seq_len_k = max_q, max_k, max_encoder
    if encoder_lens is not None:
        _add_encoder(meta, size, _ceil_div(max_encoder, page_size))
    _fill(meta, batch, max_k, max_encoder)
    if attn_chunk_size is not None:
        table = meta.page_table
        local = min(attn_chunk_size, _MOST), meta.cu_seqlens_q, meta.cache_seqlens, table, min(page_size, _MOST)
        rows, *maxima = operator("local_attention_batches_plan")(*local).tolist()
        meta.local = _empty_local(rows, min(attn_chunk_size // page_size, table.shape[1]))
        _fill_local(meta.local, local)
        meta.local.max_seq_len_q, meta.local.max_seq_len_k = maxima
    return meta


def _check_scalars(
    page_size: int, num_draft_tokens: int, speculative_step_id: int, attn_chunk_size: int | None
) -> None:
    check_count("page_size", page_size, 1)
    check_count("num_draft_tokens", num_draft_tokens)
    check_count("speculative_step_id", speculative_step_id)
    if attn_chunk_size is not None:
        check_count("attn_chunk_size", attn_chunk_size, 1)
        if attn_chunk_size % page_size:
            raise ValueError(f"attn_chunk_size {attn_chunk_size} must be a multiple of page_size {page_size}")


def _check_mode(mode: str, modes: tuple[str, ...]) -> None:
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, got {type(mode).__name__}")
    if mode not in modes:
        raise ValueError(f"mode {mode!r} is none of {', '.join(modes)}")


def _lengths_of(mode: str, num_draft_tokens: int, speculative_step_id: int) -> tuple[int, int]:
    """What a mode adds to seq_lens, and the query length of each request."""
    if mode == "target_verify":
        return min(num_draft_tokens, _LIMIT), min(num_draft_tokens, _LIMIT)
    if mode == "draft_decode":
        return min(speculative_step_id + 1, _LIMIT), 1
    return 0, _FROM_EXTEND if mode in EXTEND_MODES else 1


def _ceil_div(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _ints(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32)


def _empty(size: int, width: int) -> AttentionMetadata:
    return AttentionMetadata(_ints(size), _ints(size + 1), _ints(size + 1), _ints(size, width), 0, 0)


def _add_encoder(meta: AttentionMetadata, size: int, width: int) -> None:
    meta.encoder_lens, meta.encoder_cu_seqlens_k, meta.encoder_page_table = (
        _ints(size),
        _ints(size + 1),
        _ints(size, width),
    )


def _empty_local(rows: int, width: int) -> LocalAttentionMetadata:
    return LocalAttentionMetadata(_ints(rows), _ints(rows + 1), _ints(rows), _ints(rows, width), 0, 0)


def _fill(meta: AttentionMetadata, batch: tuple[object, ...], max_context_len: int, max_encoder_len: int) -> Tensor:
    return operator("attention_metadata_fill")(
        *batch,
        meta.cache_seqlens,
        meta.cu_seqlens_q,
        meta.cu_seqlens_k,
        meta.page_table,
        meta.encoder_lens,
        meta.encoder_cu_seqlens_k,
        meta.encoder_page_table,
        min(max_context_len, _LIMIT),
        min(max_encoder_len, _LIMIT),
    )


def _fill_local(local: LocalAttentionMetadata, inputs: tuple[object, ...]) -> Tensor:
    return operator("local_attention_batches_fill")(
        *inputs, local.seqlens_q, local.cu_seqlens_q, local.seqlens_k, local.block_table
    )


class MetadataBuffers:
    """Metadata at fixed addresses, for graphs that record tensors once and replay on new batches.

    `capture(mode, bs)` gives the views to record; `replay(mode, bs, ...)` refreshes them for at most `bs` live requests and
    returns the same object. Every (mode, bs) has buffers of its own, wide enough for max_context_len and max_encoder_len.
    """

    def __init__(
        self,
        max_bs: int,
        max_context_len: int,
        *,
        page_size: int = 1,
        num_draft_tokens: int = 0,
        speculative_step_id: int = 0,
        attn_chunk_size: int | None = None,
        max_encoder_len: int = 0,
    ) -> None:
        _check_scalars(page_size, num_draft_tokens, speculative_step_id, attn_chunk_size)
        check_count("max_bs", max_bs)
        check_count("max_context_len", max_context_len)
        check_count("max_encoder_len", max_encoder_len)
        self.max_bs, self.max_context_len, self.max_encoder_len = max_bs, max_context_len, max_encoder_len
        self.page_size, self.num_draft_tokens, self.attn_chunk_size = page_size, num_draft_tokens, attn_chunk_size
        self.speculative_step_id = speculative_step_id
        self._captured: dict[tuple[str, int], AttentionMetadata] = {}

    def capture(self, mode: str, bs: int) -> AttentionMetadata:
        """The buffers of (mode, bs), as a batch without live requests leaves them. Raises ValueError (mode, bs)."""
        self._check(mode, bs)
        if (mode, bs) not in self._captured:
            self._captured[mode, bs] = self._allocate(mode, bs)
        none = _ints(0)
        return self.replay(mode, bs, none, none, _ints(0, 0))

    def replay(
        self,
        mode: str,
        bs: int,
        seq_lens: Tensor,
        req_pool_indices: Tensor,
        req_to_token: Tensor,
        encoder_lens: Tensor | None = None,
    ) -> AttentionMetadata:
        """Refresh the captured buffers of (mode, bs); errors as build_attention_metadata, and nothing is written then."""
        self._check(mode, bs)
        meta = self._captured.get((mode, bs))
        if meta is None:
            raise ValueError(f"mode {mode}, bs {bs} has not been captured")
        if encoder_lens is not None and self.max_encoder_len == 0:
            raise ValueError("encoder_lens given, but the buffers were made with max_encoder_len 0")
        batch = (
            *(seq_lens, req_pool_indices, req_to_token, None, encoder_lens),
            *(min(self.page_size, _MOST), *_lengths_of(mode, self.num_draft_tokens, self.speculative_step_id)),
        )
        maxima = _fill(meta, batch, self.max_context_len, self.max_encoder_len).tolist()
        meta.max_seq_len_q, meta.max_seq_len_k, meta.encoder_max_seq_len_k = maxima
        if meta.local is not None and self.attn_chunk_size is not None:  # padded requests have no keys: no virtual ones
            chunk, page_size = min(self.attn_chunk_size, _MOST), min(self.page_size, _MOST)
            inputs = chunk, meta.cu_seqlens_q, meta.cache_seqlens, meta.page_table, page_size
            _, meta.local.max_seq_len_q, meta.local.max_seq_len_k = _fill_local(meta.local, inputs).tolist()
        return meta

    def _check(self, mode: str, bs: int) -> None:
        _check_mode(mode, STATIC_MODES)
        check_count("bs", bs)
        if bs > self.max_bs:
            raise ValueError(f"bs {bs} is more than max_bs {self.max_bs}")

    def _allocate(self, mode: str, bs: int) -> AttentionMetadata:
        q_len = _lengths_of(mode, self.num_draft_tokens, self.speculative_step_id)[1]
        if bs * q_len >= _LIMIT:
            raise ValueError(f"bs {bs}: the total of query lengths does not fit int32")
        width = _ceil_div(self.max_context_len, self.page_size)
        meta = _empty(bs, width)
        if self.max_encoder_len:
            _add_encoder(meta, bs, _ceil_div(self.max_encoder_len, self.page_size))
        if self.attn_chunk_size is not None:
            rows = bs * (_ceil_div(q_len - 1, self.attn_chunk_size) + 1)
            meta.local = _empty_local(rows, min(self.attn_chunk_size // self.page_size, width))
        return meta


class MultiStepMetadata:
    """Static metadata of every draft step: a draft of num_steps tokens attends num_steps - 1 times (step ids from 0)."""

    def __init__(
        self,
        num_steps: int,
        max_bs: int,
        max_context_len: int,
        *,
        topk: int = 1,
        page_size: int = 1,
        num_draft_tokens: int = 0,
        attn_chunk_size: int | None = None,
        max_encoder_len: int = 0,
    ) -> None:
        check_count("num_steps", num_steps, 1)
        check_count("topk", topk, 1)
        if topk != 1:
            raise ValueError(f"topk {topk}: only chains of drafts (topk 1) have this form")
        self.steps = [
            MetadataBuffers(
                max_bs,
                max_context_len,
                page_size=page_size,
                num_draft_tokens=num_draft_tokens,
                speculative_step_id=step,
                attn_chunk_size=attn_chunk_size,
                max_encoder_len=max_encoder_len,
            )
            for step in range(num_steps - 1)
        ]

    def capture(self, bs: int) -> list[AttentionMetadata]:
        """The buffers of each step's draft_decode at batch size `bs`."""
        return [step.capture("draft_decode", bs) for step in self.steps]

    def replay(
        self,
        bs: int,
        seq_lens: Tensor,
        req_pool_indices: Tensor,
        req_to_token: Tensor,
        encoder_lens: Tensor | None = None,
    ) -> list[AttentionMetadata]:
        """Refresh every step for the same batch. The last step, whose lengths are the longest, goes first: what it accepts
        all accept, so that an error leaves every buffer as it was."""
        batch = seq_lens, req_pool_indices, req_to_token, encoder_lens
        return [step.replay("draft_decode", bs, *batch) for step in reversed(self.steps)][::-1]
