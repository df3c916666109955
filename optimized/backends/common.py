"""What the backends of this package share: lengths by mode, checks before the first write, and writing keys into a pool."""

import torch
from torch import Tensor

from optimized.operators import operator
from serving import (
    DECODE_MODES,
    EXTEND_MODES,
    AttentionLayer,
    ForwardBatch,
    KVPool,
    check_batch,
    check_keys,
    check_queries,
    check_stored,
    store_route,
)

PAD_SLOT = -1  # of padded requests: every slot of a pool may be a live request's
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def tokens_each(batch: ForwardBatch) -> int:
    """Tokens that each request brings, in modes where all bring as many."""
    return batch.num_draft_tokens if batch.mode == "target_verify" else 1


def lengths(batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """[B] decoder tokens with those of this step, and the new ones, in int64: a sum of two may pass int32."""
    total = batch.seq_lens.long()
    if batch.mode in EXTEND_MODES:
        assert batch.extend_seq_lens is not None
        return total, batch.extend_seq_lens.long()
    more = {"target_verify": batch.num_draft_tokens, "draft_decode": batch.speculative_step_id + 1}.get(batch.mode, 0)
    return total + more, torch.full_like(total, tokens_each(batch))


def row_counts(batch: ForwardBatch) -> tuple[int, int]:
    """Tokens of live requests, and rows of q with those of padded ones."""
    if batch.mode in EXTEND_MODES:
        assert batch.extend_seq_lens is not None
        live = int(batch.extend_seq_lens.sum())
        return live, live
    each = tokens_each(batch)
    return batch.size * each, batch.rows * each


def check_all(batch: ForwardBatch, req_to_token: Tensor, slots: int, page_size: int, max_bs: int) -> None:
    """Everything that a kernel would refuse later: lengths, rows, and every slot that the batch reads. ValueError, IndexError."""
    check_batch(batch)
    if batch.padded_size is not None and batch.padded_size > max_bs:
        raise ValueError(f"padded_size {batch.padded_size} is more than max_bs {max_bs}")
    total, new = lengths(batch)
    short = (new > total).nonzero()
    if len(short):
        b = int(short[0])
        raise ValueError(f"extend_seq_lens[{b}] = {int(new[b])} is more than seq_lens[{b}] = {int(total[b])}")
    for name in ("out_cache_loc", "encoder_out_cache_loc"):
        _check_location(name, getattr(batch, name), slots)
    if not batch.size:
        return
    pool, (R, C) = batch.req_pool_indices, req_to_token.shape
    if int(pool.min()) < 0 or int(pool.max()) >= R:
        raise IndexError(f"req_pool_indices holds {pool.tolist()}, outside [0, {R})")
    encoder = torch.zeros_like(total) if batch.encoder_lens is None else batch.encoder_lens.long()
    first = -(encoder // -page_size) * page_size
    end = first + total
    if int(end.max()) > C:
        b = int(end.argmax())
        raise IndexError(f"seq_lens[{b}] = {int(total[b])} behind column {int(first[b])} passes the {C} columns of req_to_token")
    columns = torch.arange(int(end.max()))
    table = req_to_token[pool.long(), : len(columns)]
    used = (columns < encoder[:, None]) | ((columns >= first[:, None]) & (columns < end[:, None]))
    wrong = (((table < 0) | (table >= slots)) & used).nonzero()
    if len(wrong):
        b, column = wrong[0].tolist()
        raise IndexError(f"req_to_token: column {column} of request {b} holds {int(table[b, column])}, outside [0, {slots})")


def _check_location(name: str, loc: Tensor | None, slots: int) -> None:
    taken = [] if loc is None else loc.flatten().tolist()
    outside = [slot for slot in taken if not 0 <= slot < slots]
    if outside:
        raise IndexError(f"{name} holds {outside[0]}, outside [0, {slots})")
    if len(set(taken)) < len(taken):
        raise ValueError(f"{name} holds a slot more than once: {taken}")


def check_call(
    q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, pool: KVPool, batch: ForwardBatch, save_kv_cache: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Check the activations of a layer; keys and values that are to be stored, with pads, and the slots of the live ones."""
    live, rows = row_counts(batch)
    check_queries(q, layer, pool, rows)
    name = "encoder_out_cache_loc" if layer.is_cross else "out_cache_loc"
    loc = batch.encoder_out_cache_loc if layer.is_cross else batch.out_cache_loc
    if layer.is_cross and batch.encoder_lens is None:
        raise ValueError("encoder_lens is None, but cross attention needs the encoder's lengths")
    new = (0 if loc is None else len(loc)) if layer.is_cross else live
    given = check_keys(k, v, layer, new if layer.is_cross else rows, loc, new, name)
    if not given or not save_kv_cache:
        return None
    if loc is None:
        raise ValueError(f"{name} must be given to store the keys of layer {layer.layer_id}")
    assert k is not None and v is not None
    return k, v, loc


class StaticLocations:
    """Slots of new keys at fixed addresses: one buffer for each mode and size, in which padded requests have the pad."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def replay(self, batch: ForwardBatch) -> Tensor | None:
        """The buffer of a decode's size, refreshed; None where the batch is not replayed, is no decode, or has no slots."""
        loc = batch.out_cache_loc
        if batch.padded_size is None or batch.mode not in DECODE_MODES or loc is None:
            return None
        buffer = self._buffers.setdefault((batch.mode, batch.rows), torch.empty(batch.rows, dtype=torch.int64))
        live = min(len(loc), batch.rows)  # a location of another length is refused by each layer
        buffer[:live], buffer[live:] = loc[:live], PAD_SLOT
        return buffer


def store(pool: KVPool, layer: AttentionLayer, k: Tensor, v: Tensor, loc: Tensor) -> None:
    """Write the first len(loc) rows of k and v into their slots, but for pads; float8 caches take them divided by the scale."""
    check_stored(layer, pool, k, v)
    live, route = len(loc), store_route(layer, pool)
    k, v = k[:live], v[:live]
    k_cache, v_cache = pool.k, pool.v
    if route == "latent":
        k, v = k[..., : layer.v_head_dim], k[..., layer.v_head_dim :]
        k_cache, v_cache = pool.k[..., : layer.v_head_dim], pool.k[..., layer.v_head_dim :]
    elif route == "float8":
        k, v = _float8(k, pool.k.dtype, layer.k_scale), _float8(v, pool.v.dtype, layer.v_scale)
    operator("store_cache")(k, v, k_cache, v_cache, loc, PAD_SLOT)


def _float8(rows: Tensor, dtype: torch.dtype, scale: float | None) -> Tensor:
    wide = rows.float() if scale is None else rows.float() / torch.tensor(scale, dtype=torch.float32)
    return wide.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)  # in place these would be the caller's rows, at times
