"""decode_attention: one query token per request over a slot cache. It does not split the keys: `attn_logits` stays unused."""

import torch
from torch import Tensor

from reference import checks
from reference.attention_core import attention_core, check_core


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor | None,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    sm_scale: float,
    logit_cap: float = 0.0,
    sliding_window: int = 0,
    is_cross_attn: bool = False,
    pad_slot: int | None = None,
) -> None:
    """Write key and value to slots loc, then attend: out[b] = attention of q[b] over the slots that request b's table row names.

    q [B, H, D], out [B, H, Dv]; k_cache [P, Hkv, D], v_cache [P, Hkv, Dv]; key [B, Hkv, D], value [B, Hkv, Dv], loc [B] or None;
    attn_logits [B, H, S, Dv + 1] float32 scratch; req_to_token [R, C]; req_pool_indices, seq_lens, encoder_lens [B]; sinks [H].
    Self: table columns encoder_lens[b] + j, j < seq_lens[b] (the current token is the last), of which a window keeps the last
    `sliding_window`. Cross: columns j < encoder_lens[b]. A request with loc[b] == pad_slot is a pad: it stores nothing, its row,
    lengths and tokens are never interpreted, and out[b] is 0. v_cache may be k_cache[..., :Dv] itself (MLA's shared buffer).
    Raises TypeError (dtypes), ValueError (shapes, strides, scalars, lengths, overlap), IndexError (lengths past C, slots, rows).
    """
    checks.is_bool("is_cross_attn", is_cross_attn)
    shared = shares_buffer(k_cache, v_cache)
    _check_tensors(q, k_cache, v_cache, out, key, value, attn_logits, shared)
    live = _live_requests(len(q), k_cache, key, loc, pad_slot)
    check_core(q.shape[1], k_cache.shape[1], q.shape[2], v_cache.shape[2], q.dtype, sm_scale, logit_cap, sinks)
    slots = _visible_slots(
        live, k_cache, req_to_token, req_pool_indices, seq_lens, encoder_lens, sliding_window, is_cross_attn
    )
    written = {} if key is None else {"k_cache": k_cache} | ({} if shared else {"v_cache": v_cache})
    tensors = {"q": q, "k_cache": k_cache, "key": key, "value": value, "sinks": sinks}
    tensors |= {"loc": None if key is None and pad_slot is None else loc}
    tensors |= {"req_to_token": req_to_token, "req_pool_indices": req_pool_indices, "seq_lens": seq_lens}
    tensors |= {"encoder_lens": encoder_lens} | ({} if shared else {"v_cache": v_cache})
    others = {name: tensor for name, tensor in tensors.items() if name not in written}
    checks.disjoint(written | {"out": out, "attn_logits": attn_logits}, others)
    if not shared:
        checks.apart("k_cache", k_cache, "v_cache", v_cache)

    if key is not None:
        assert loc is not None
        k_cache[loc[live].long()] = key[live]
        if not shared:
            assert value is not None
            v_cache[loc[live].long()] = value[live]
    out[~live] = 0
    for b, keys in slots.items():
        out[b] = attention_core(
            q[b : b + 1], k_cache[keys], v_cache[keys], sm_scale=sm_scale, logit_cap=logit_cap, sinks=sinks
        )[0]


def shares_buffer(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether v_cache is k_cache[..., :Dv]: the same first byte and equal outer strides, those of size-1 dimensions aside."""
    checks.is_tensor("k_cache", k_cache, 3)
    checks.is_tensor("v_cache", v_cache, 3)
    outer = zip(k_cache.shape[:2], v_cache.shape[:2], k_cache.stride(), v_cache.stride())
    same_rows = all(n == m and (n == 1 or s == t) for n, m, s, t in outer)
    return same_rows and k_cache.data_ptr() == v_cache.data_ptr() and v_cache.shape[2] <= k_cache.shape[2]


def _check_tensors(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    attn_logits: Tensor,
    shared: bool,
) -> None:
    """Types, shapes and layouts of the float tensors."""
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out, "key": key, "value": value}
    for name, tensor in (tensors | {"attn_logits": attn_logits}).items():
        if tensor is not None or name not in ("key", "value"):
            checks.is_tensor(name, tensor, 4 if name == "attn_logits" else 3)
            assert tensor is not None
            checks.dense_last_dim(name, tensor)
    checks.same_dtype(tensors)
    checks.has_dtype("attn_logits", attn_logits, (torch.float32, torch.promote_types(q.dtype, torch.float32)))
    B, H, D = q.shape
    P, Hkv, Dv = v_cache.shape
    checks.has_shape("k_cache", k_cache, [P, Hkv, D])
    checks.has_shape("out", out, [B, H, Dv])
    if attn_logits.shape[2] < 1:
        raise ValueError(f"attn_logits must have room for one split, got shape {list(attn_logits.shape)}")
    checks.has_shape("attn_logits", attn_logits, [B, H, attn_logits.shape[2], Dv + 1])
    if value is not None:
        checks.has_shape("value", value, [B, Hkv, Dv])
    if key is None:
        return None if value is None else checks.fail(ValueError, "value is given without key")
    checks.has_shape("key", key, [B, Hkv, D])
    if value is None and not shared:
        raise ValueError("key is given without value, but v_cache is not part of k_cache")


def _live_requests(B: int, k_cache: Tensor, key: Tensor | None, loc: Tensor | None, pad_slot: int | None) -> Tensor:
    """The mask [B] of the requests that are no pads; where key is given their slots are checked, which are written."""
    if pad_slot is not None:
        checks.is_integer("pad_slot", pad_slot)
    if loc is None:
        if key is not None or pad_slot is not None:
            raise ValueError(f"{'pad_slot' if key is None else 'key'} is given without loc")
        return torch.ones(B, dtype=torch.bool)
    if key is not None:
        checks.is_index("loc", loc, [B])
        return checks.written_slots("loc", loc, k_cache.shape[0], pad_slot)
    if pad_slot is None:  # nobody reads it
        checks.is_tensor("loc", loc)
        return torch.ones(B, dtype=torch.bool)
    checks.is_index("loc", loc, [B])
    return ~checks.are_pads(loc, pad_slot)


def _visible_slots(
    live: Tensor,
    k_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    encoder_lens: Tensor | None,
    sliding_window: int,
    is_cross_attn: bool,
) -> dict[int, Tensor]:
    """For each live request the cache slots of the keys that it sees, every one checked."""
    B = len(live)
    checks.is_index("req_to_token", req_to_token)
    checks.is_tensor("req_to_token", req_to_token, 2)
    R, C = req_to_token.shape
    for name, tensor in {"req_pool_indices": req_pool_indices, "seq_lens": seq_lens, "encoder_lens": encoder_lens}.items():
        if tensor is not None or name != "encoder_lens":
            checks.is_index(name, tensor, [B])
    if is_cross_attn and encoder_lens is None:
        raise ValueError("encoder_lens is required in cross attention")
    checks.in_range("req_pool_indices", req_pool_indices, R, live)
    checks.is_integer("sliding_window", sliding_window)
    lengths = seq_lens if encoder_lens is None or not is_cross_attn else encoder_lens
    offsets = None if is_cross_attn else encoder_lens
    slots = {}
    for b in live.nonzero().flatten().tolist():
        row, L = int(req_pool_indices[b]), int(lengths[b])
        start = 0 if offsets is None else int(offsets[b])
        name = "encoder_lens" if is_cross_attn else "seq_lens"
        if L < 0 or start < 0:
            raise ValueError(f"{name if L < 0 else 'encoder_lens'}[{b}] = {min(L, start)} is negative")
        if start + L > C:
            raise IndexError(f"{name}[{b}] = {L} behind encoder_lens {start} exceeds the {C} columns of req_to_token")
        first = max(0, L - sliding_window) if sliding_window > 0 and not is_cross_attn else 0
        keys = req_to_token[row, start + first : start + L]
        outside = ((keys < 0) | (keys >= k_cache.shape[0])).nonzero()
        if len(outside):
            column = start + first + int(outside[0])
            raise IndexError(f"req_to_token[{row}, {column}] = {int(req_to_token[row, column])} (batch row {b}) is outside "
                             f"[0, {k_cache.shape[0]})")
        slots[b] = keys.long()
    return slots
