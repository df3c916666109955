"""attention_metadata: allocates the fields of a batch, or keeps them at fixed addresses, and lets one operator fill them."""

import torch
from torch import Tensor

from optimized.operators import operator
from serving.batch import EXTEND_MODES, MODES
from serving.checks import MOST_PAGE, check_sizes
from serving.metadata import AttentionMetadata, LocalAttentionMetadata
from serving.static_metadata import DraftMetadata, StaticMetadata

_FROM_EXTEND = -1  # query lengths are extend_seq_lens
_LIMIT = 2**31  # no length and no total reaches it


def build_attention_metadata(
    mode: str, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor, *, page_size: int = 1,
    extend_seq_lens: Tensor | None = None, encoder_lens: Tensor | None = None, num_draft_tokens: int = 0,
    speculative_step_id: int = 0, attn_chunk_size: int | None = None,
) -> AttentionMetadata:  # fmt: skip
    """The metadata of one batch, in tensors of its own. Arguments and errors are those of reference.attention_metadata.

        meta = build_attention_metadata("decode", seq_lens, req_pool_indices, req_to_token, page_size=128)
    """
    check_sizes(page_size, num_draft_tokens, speculative_step_id, attn_chunk_size)
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, got {type(mode).__name__}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")
    batch = (
        *(seq_lens, req_pool_indices, req_to_token, extend_seq_lens, encoder_lens),
        *(page_size, *_lengths_of(mode, num_draft_tokens, speculative_step_id)),
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
        local = _chunk(attn_chunk_size, page_size), meta.cu_seqlens_q, meta.cache_seqlens, table, page_size
        rows, *maxima = operator("local_attention_batches_plan")(*local).tolist()
        meta.local = _empty_local(rows, min(attn_chunk_size // page_size, table.shape[1]))
        _fill_local(meta.local, local)
        meta.local.max_seq_len_q, meta.local.max_seq_len_k = maxima
    return meta


def _lengths_of(mode: str, num_draft_tokens: int, speculative_step_id: int) -> tuple[int, int]:
    """What a mode adds to seq_lens, and the query length of each request."""
    if mode == "target_verify":
        return min(num_draft_tokens, _LIMIT), min(num_draft_tokens, _LIMIT)
    if mode == "draft_decode":
        return min(speculative_step_id + 1, _LIMIT), 1
    return 0, _FROM_EXTEND if mode in EXTEND_MODES else 1


def _chunk(attn_chunk_size: int, page_size: int) -> int:
    """The chunk in 64 bits: larger ones, of whole pages, act alike."""
    return min(attn_chunk_size, MOST_PAGE // page_size * page_size)


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


class MetadataBuffers(StaticMetadata):
    """Buffers that one operator fills in place; a replay allocates nothing but three numbers."""

    def capture(self, mode: str, bs: int) -> AttentionMetadata:
        self._check(mode, bs)
        if (mode, bs) not in self._captured:
            self._captured[mode, bs] = self._allocate(mode, bs)
        none = _ints(0)
        return self.replay(mode, bs, none, none, _ints(0, 0))

    def replay(
        self, mode: str, bs: int, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor,
        encoder_lens: Tensor | None = None,
    ) -> AttentionMetadata:  # fmt: skip
        self._check(mode, bs)
        meta = self._captured.get((mode, bs))
        if meta is None:
            raise ValueError(f"mode {mode}, bs {bs} has not been captured")
        if encoder_lens is not None and self.max_encoder_len == 0:
            raise ValueError("encoder_lens given, but the buffers were made with max_encoder_len 0")
        batch = (
            *(seq_lens, req_pool_indices, req_to_token, None, encoder_lens),
            *(self.page_size, *_lengths_of(mode, self.num_draft_tokens, self.speculative_step_id)),
        )
        maxima = _fill(meta, batch, self.max_context_len, self.max_encoder_len).tolist()
        meta.max_seq_len_q, meta.max_seq_len_k, meta.encoder_max_seq_len_k = maxima
        if meta.local is not None and self.attn_chunk_size is not None:  # padded requests have no keys: no virtual ones
            chunk = _chunk(self.attn_chunk_size, self.page_size)
            inputs = chunk, meta.cu_seqlens_q, meta.cache_seqlens, meta.page_table, self.page_size
            _, meta.local.max_seq_len_q, meta.local.max_seq_len_k = _fill_local(meta.local, inputs).tolist()
        return meta

    def _allocate(self, mode: str, bs: int) -> AttentionMetadata:
        width = _ceil_div(self.max_context_len, self.page_size)
        meta = _empty(bs, width)
        if self.max_encoder_len:
            _add_encoder(meta, bs, _ceil_div(self.max_encoder_len, self.page_size))
        if self.attn_chunk_size is not None:
            rows = bs * (_ceil_div(self._q_len(mode) - 1, self.attn_chunk_size) + 1)
            meta.local = _empty_local(rows, min(self.attn_chunk_size // self.page_size, width))
        return meta


class MultiStepMetadata(DraftMetadata):
    """Static metadata of every draft step; each step's buffers are filled by an operator of their own."""

    buffers = MetadataBuffers
