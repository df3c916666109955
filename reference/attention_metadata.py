"""attention_metadata: lengths, offsets and page tables for paged attention, from the state of a serving batch.

It reads lengths and the request table only; it never touches a cache, and it never changes the request table.
"""

from collections.abc import Iterable
from dataclasses import fields
from itertools import accumulate

import torch
from torch import Tensor

from reference import checks
from reference.local_attention_batches import local_attention_batches
from serving.batch import EXTEND_MODES
from serving.checks import check_sizes
from serving.metadata import AttentionMetadata, LocalAttentionMetadata
from serving.static_metadata import INT32_END, STATIC_MODES, DraftMetadata, StaticMetadata

PAD = 0  # what every row past the live requests holds: at capture, at replay, and for whoever reads the buffers


def build_attention_metadata(
    mode: str, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor, *, page_size: int = 1,
    extend_seq_lens: Tensor | None = None, encoder_lens: Tensor | None = None, num_draft_tokens: int = 0,
    speculative_step_id: int = 0, attn_chunk_size: int | None = None,
) -> AttentionMetadata:  # fmt: skip
    """Build the metadata of one batch.

    seq_lens, req_pool_indices, extend_seq_lens, encoder_lens [B]; req_to_token [R, C] holds token slots; all int32 or int64.
    Raises TypeError (types), ValueError (mode, scalars, lengths, page starts), IndexError (pool rows, lengths beyond C, slots).
    """
    check_sizes(page_size, num_draft_tokens, speculative_step_id, attn_chunk_size)
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, got {type(mode).__name__}")
    if mode not in STATIC_MODES + EXTEND_MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(STATIC_MODES + EXTEND_MODES)}")
    checks.is_tensor("req_to_token", req_to_token, 2)
    checks.is_index("req_to_token", req_to_token)
    checks.is_tensor("seq_lens", seq_lens, 1)
    lengths = {"seq_lens": seq_lens, "extend_seq_lens": extend_seq_lens, "encoder_lens": encoder_lens}
    for name, value in lengths.items():
        if value is not None:
            checks.is_index(name, value, seq_lens.shape)
            if (value < 0).any():
                raise ValueError(f"{name} holds the negative length {int(value.min())}")
    checks.is_index("req_pool_indices", req_pool_indices, seq_lens.shape)
    checks.in_range("req_pool_indices", req_pool_indices, req_to_token.shape[0])

    cache_lens, q_lens = _lengths(mode, seq_lens, extend_seq_lens, num_draft_tokens, speculative_step_id)
    pool = req_pool_indices.tolist()
    bases = [0] * len(pool)
    encoder = None
    if encoder_lens is not None:
        encoder = encoder_lens.tolist()
        bases = [-(-length // page_size) * page_size for length in encoder]
    for name, counts in (("seq_lens", cache_lens), ("query lengths", q_lens), ("encoder_lens", encoder or [])):
        if sum(counts) >= INT32_END:
            raise ValueError(f"{name}: the total {sum(counts)} does not fit int32")

    meta = AttentionMetadata(
        cache_seqlens=_int32(cache_lens),
        cu_seqlens_q=_int32(accumulate(q_lens, initial=0)),
        cu_seqlens_k=_int32(accumulate(cache_lens, initial=0)),
        page_table=_page_table("seq_lens", req_to_token, pool, bases, cache_lens, page_size),
        max_seq_len_q=max(q_lens, default=0),
        max_seq_len_k=max(cache_lens, default=0),
    )
    if encoder is not None:
        meta.encoder_lens = _int32(encoder)
        meta.encoder_cu_seqlens_k = _int32(accumulate(encoder, initial=0))
        meta.encoder_page_table = _page_table("encoder_lens", req_to_token, pool, [0] * len(pool), encoder, page_size)
        meta.encoder_max_seq_len_k = max(encoder, default=0)
    if attn_chunk_size is not None:
        local = local_attention_batches(attn_chunk_size, meta.cu_seqlens_q, meta.cache_seqlens, meta.page_table, page_size)
        longest = [max(lengths.tolist(), default=0) for lengths in (local[0], local[2])]
        meta.local = LocalAttentionMetadata(*local, *longest)
    return meta


def _lengths(
    mode: str, seq_lens: Tensor, extend_seq_lens: Tensor | None, num_draft_tokens: int, speculative_step_id: int
) -> tuple[list[int], list[int]]:
    """Tokens in the cache once this step has stored its own, and queries of this step, request by request."""
    cache_lens: list[int] = seq_lens.tolist()
    if mode == "draft_decode":
        return [length + speculative_step_id + 1 for length in cache_lens], [1] * len(cache_lens)
    if mode == "target_verify":
        return [length + num_draft_tokens for length in cache_lens], [num_draft_tokens] * len(cache_lens)
    if mode not in EXTEND_MODES:
        return cache_lens, [1] * len(cache_lens)
    if extend_seq_lens is None:
        raise ValueError(f"extend_seq_lens must be given in mode {mode}")
    q_lens = extend_seq_lens.tolist()
    for b, (q, k) in enumerate(zip(q_lens, cache_lens)):
        if q > k:
            raise ValueError(f"extend_seq_lens[{b}] = {q} is more than seq_lens[{b}] = {k}")
    return cache_lens, q_lens


def _page_table(
    name: str, req_to_token: Tensor, pool: list[int], bases: list[int], lens: list[int], page_size: int
) -> Tensor:
    """Page ids of `lens[b]` tokens from column `bases[b]` on, one row a request, 0 beyond."""
    C = req_to_token.shape[1]
    for b, (base, length) in enumerate(zip(bases, lens)):
        if base + length > C:
            raise IndexError(f"{name}[{b}]: {length} tokens from column {base} end beyond the {C} of req_to_token")
    rows = []
    for row, base, length in zip(pool, bases, lens):
        slots = req_to_token[row, base : base + length].tolist()[::page_size]
        for j, slot in enumerate(slots):
            at = f"req_to_token[{row}, {base + j * page_size}] = {slot}"
            if not 0 <= slot // page_size < INT32_END:
                raise IndexError(f"{at} is not a token slot")
            if slot % page_size:
                raise ValueError(f"{at} starts a page, but is not a multiple of page_size {page_size}")
        rows.append([slot // page_size for slot in slots])
    width = max(map(len, rows), default=0)
    padded = [row + [0] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int32).reshape(len(rows), width)


def _int32(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


class MetadataBuffers(StaticMetadata):
    """Buffers that each replay builds anew, and copies into place."""

    def capture(self, mode: str, bs: int) -> AttentionMetadata:
        self._check(mode, bs)
        if (mode, bs) not in self._captured:
            self._captured[mode, bs] = self._allocate(mode, bs)
        none = torch.zeros(0, dtype=torch.int32)
        return self.replay(mode, bs, none, none, torch.zeros(0, 0, dtype=torch.int32))

    def replay(
        self, mode: str, bs: int, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor,
        encoder_lens: Tensor | None = None,
    ) -> AttentionMetadata:  # fmt: skip
        self._check(mode, bs)
        if (mode, bs) not in self._captured:
            raise ValueError(f"mode {mode}, bs {bs} has not been captured")
        live = build_attention_metadata(
            mode,
            seq_lens,
            req_pool_indices,
            req_to_token,
            page_size=self.page_size,
            encoder_lens=encoder_lens,
            num_draft_tokens=self.num_draft_tokens,
            speculative_step_id=self.speculative_step_id,
            attn_chunk_size=self.attn_chunk_size,
        )
        if len(seq_lens) > bs:
            raise ValueError(f"seq_lens has {len(seq_lens)} live requests, but bs is {bs}")
        if live.max_seq_len_k > self.max_context_len:
            raise IndexError(f"seq_lens: {live.max_seq_len_k} tokens are beyond max_context_len {self.max_context_len}")
        if encoder_lens is not None and self.max_encoder_len == 0:
            raise ValueError("encoder_lens given, but the buffers were made with max_encoder_len 0")
        if live.encoder_max_seq_len_k > self.max_encoder_len:
            raise IndexError(
                f"encoder_lens: {live.encoder_max_seq_len_k} tokens are beyond max_encoder_len {self.max_encoder_len}"
            )
        static = self._captured[mode, bs]
        _refresh(static, live)
        static.cu_seqlens_q.copy_(self._cu_seqlens_q(mode, bs))
        return static

    def _cu_seqlens_q(self, mode: str, bs: int) -> Tensor:
        return _int32(b * self._q_len(mode) for b in range(bs + 1))

    def _allocate(self, mode: str, bs: int) -> AttentionMetadata:
        width = -(-self.max_context_len // self.page_size)
        meta = AttentionMetadata(_zeros(bs), _zeros(bs + 1), _zeros(bs + 1), _zeros(bs, width), 0, 0)
        if self.max_encoder_len:
            meta.encoder_lens, meta.encoder_cu_seqlens_k = _zeros(bs), _zeros(bs + 1)
            meta.encoder_page_table = _zeros(bs, -(-self.max_encoder_len // self.page_size))
        if self.attn_chunk_size is not None:
            rows = bs * (-(-(self._q_len(mode) - 1) // self.attn_chunk_size) + 1)
            table = _zeros(rows, min(self.attn_chunk_size // self.page_size, width))
            meta.local = LocalAttentionMetadata(_zeros(rows), _zeros(rows + 1), _zeros(rows), table, 0, 0)
        return meta


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _refresh(
    static: AttentionMetadata | LocalAttentionMetadata, live: AttentionMetadata | LocalAttentionMetadata
) -> None:
    """Copy each field of `live` into the leading part of the same field of `static` and pad what is left."""
    for field in fields(static):
        into, values = getattr(static, field.name), getattr(live, field.name)
        if isinstance(into, LocalAttentionMetadata):
            _refresh(into, values)
        elif isinstance(into, int):
            setattr(static, field.name, values)
        elif into is not None:
            values = torch.zeros([0] * into.dim(), dtype=torch.int32) if values is None else values
            into.fill_(values[-1] if "cu_seqlens" in field.name and len(values) else PAD)
            into[tuple(slice(size) for size in values.shape)] = values


class MultiStepMetadata(DraftMetadata):
    """Static metadata of every draft step."""

    buffers = MetadataBuffers
