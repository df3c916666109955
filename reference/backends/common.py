"""What the backends of this package share: lengths by mode, where keys go, and the rows of live requests."""

import torch
from torch import Tensor

from reference import checks
from serving import EXTEND_MODES, AttentionLayer, ForwardBatch, KVPool, check_batch, check_stored

FLOAT8_LIMIT = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def total_lengths(batch: ForwardBatch) -> Tensor:
    """[B] decoder tokens of each request, with those of this step."""
    if batch.mode == "target_verify":
        return batch.seq_lens.long() + batch.num_draft_tokens  # which int32 may not hold
    if batch.mode == "draft_decode":
        return batch.seq_lens.long() + batch.speculative_step_id + 1
    return batch.seq_lens


def new_lengths(batch: ForwardBatch) -> Tensor:
    """[B] tokens that each request brings."""
    if batch.mode in EXTEND_MODES:
        assert batch.extend_seq_lens is not None
        return batch.extend_seq_lens
    return torch.full_like(batch.seq_lens, batch.num_draft_tokens if batch.mode == "target_verify" else 1)


def tokens_with_pads(batch: ForwardBatch) -> int:
    """Rows of q: those of the live requests, then those of the padded ones."""
    each = batch.num_draft_tokens if batch.mode == "target_verify" else 1
    return int(new_lengths(batch).sum()) + (batch.rows - batch.size) * each


def location(layer: AttentionLayer, batch: ForwardBatch) -> tuple[str, Tensor | None]:
    """Name and value of the slots that take this layer's new keys."""
    if layer.is_cross:
        return "encoder_out_cache_loc", batch.encoder_out_cache_loc
    return "out_cache_loc", batch.out_cache_loc


def check_lengths(batch: ForwardBatch, req_to_token: Tensor, slots: int, page_size: int) -> None:
    """All of a batch's lengths, rows and slots, before anything is written. ValueError, IndexError."""
    check_batch(batch)
    for name, loc in (("out_cache_loc", batch.out_cache_loc), ("encoder_out_cache_loc", batch.encoder_out_cache_loc)):
        if loc is not None:
            _check_location(name, loc, slots)
    new, total = new_lengths(batch), total_lengths(batch)
    checks.in_range("req_pool_indices", batch.req_pool_indices, len(req_to_token))
    for b, row in enumerate(batch.req_pool_indices.tolist()):
        if new[b] > total[b]:
            raise ValueError(f"extend_seq_lens[{b}] = {int(new[b])} is more than seq_lens[{b}] = {int(total[b])}")
        encoder = 0 if batch.encoder_lens is None else int(batch.encoder_lens[b])
        first = -(-encoder // page_size) * page_size
        if first + int(total[b]) > req_to_token.shape[1]:
            raise IndexError(f"seq_lens[{b}] = {int(total[b])} behind {first} columns passes those of req_to_token")
        used = torch.cat([req_to_token[row, :encoder], req_to_token[row, first : first + int(total[b])]])
        if len(used) and not (int(used.min()) >= 0 and int(used.max()) < slots):
            raise IndexError(f"req_to_token: row {row} of request {b} names a slot outside [0, {slots})")


def _check_location(name: str, loc: Tensor, slots: int) -> None:
    if len(loc) and not (int(loc.min()) >= 0 and int(loc.max()) < slots):
        raise IndexError(f"{name} holds a slot outside [0, {slots})")
    if len(loc.unique()) < len(loc):
        raise ValueError(f"{name} holds a slot more than once")


def check_static_lengths(batch: ForwardBatch, num_draft_tokens: int, max_context_len: int, max_encoder_len: int) -> None:
    """ValueError, IndexError for a replayed batch whose lengths static buffers of these sizes do not hold."""
    if batch.padded_size is None:
        return
    longest = int(total_lengths(batch).max()) if batch.size else 0
    if batch.mode == "draft_decode":  # all steps of a draft are replayed together
        longest += max(num_draft_tokens - 2, 0) - batch.speculative_step_id if batch.size else 0
    if longest > max_context_len:
        raise IndexError(f"seq_lens: {longest} tokens are more than max_context_len {max_context_len}")
    if batch.encoder_lens is None:
        return
    if max_encoder_len == 0:
        raise ValueError("encoder_lens given, but the buffers were made with max_encoder_len 0")
    if batch.size and int(batch.encoder_lens.max()) > max_encoder_len:
        raise IndexError(f"encoder_lens: {int(batch.encoder_lens.max())} is more than max_encoder_len {max_encoder_len}")


def store(pool: KVPool, layer: AttentionLayer, k: Tensor, v: Tensor, loc: Tensor | None, name: str) -> None:
    """Write the rows of live requests, converted where the cache is float8. ValueError, IndexError before anything is written."""
    if loc is None:
        raise ValueError(f"{name} must be given to store the keys of layer {layer.layer_id}")
    check_stored(layer, pool, k, v)
    slots = loc.long()
    _check_location(name, slots, len(pool.k))
    for cache, rows, scale in ((pool.k, k, layer.k_scale), (pool.v, v, layer.v_scale)):
        if layer.latent and cache is pool.v:
            continue  # it is part of k
        cache[slots] = stored(rows[: len(slots)], cache.dtype, scale)


def stored(rows: Tensor, dtype: torch.dtype, scale: float | None) -> Tensor:
    """The rows as the cache holds them: divided by the layer's scale in float32 and saturated, if that is float8."""
    if dtype not in FLOAT8_LIMIT:
        return rows
    scaled = rows.float() / (1.0 if scale is None else torch.tensor(scale, dtype=torch.float32))
    return scaled.clamp(-FLOAT8_LIMIT[dtype], FLOAT8_LIMIT[dtype]).to(dtype)


def padded(out: Tensor, rows: int) -> Tensor:
    """Zeros for the tokens of padded requests."""
    return torch.cat([out, out.new_zeros(rows - len(out), *out.shape[1:])])
