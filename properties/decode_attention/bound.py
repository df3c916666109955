"""decode_attention: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.decode_attention.cases import DecodeAttentionCase
from properties.shared.attention_bound import attention_bound, drawn_apart
from properties.shared.attention_values import divided_last

SCORES_AT_ONCE = 1 << 19  # of ten matrices

# --- bound ---


def bound(case: DecodeAttentionCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A) with S splits, some requests at a time; nothing for the caches, which compare bit for bit. Requests are those
    of the inputs: relations call with others than a case has."""
    result, slots, done = torch.zeros_like(truth["out"]), _seen_slots(inputs), 0
    while done < len(slots):
        some = _at_once(case, slots[done:])
        result[done : done + some] = _bound_of(case, inputs, truth, slice(done, done + some), slots[done : done + some])
        done += some
    return {"out": result}


def _seen_slots(given: Inputs) -> list[Tensor]:
    """The slots that each request sees: none where it is a pad."""
    window, cross, encoder = given["sliding_window"], given["is_cross_attn"], given["encoder_lens"]
    found = []
    for b, (pool, length) in enumerate(zip(given["req_pool_indices"].tolist(), given["seq_lens"].tolist())):
        if _is_pad(given, b):
            found.append(torch.empty(0, dtype=torch.int64))
            continue
        off = 0 if encoder is None else int(encoder[b])
        first = max(0, length - window) if window > 0 else 0
        columns = slice(0, off) if cross else slice(off + first, off + length)
        found.append(given["req_to_token"][pool, columns].long())
    return found


def _is_pad(given: Inputs, b: int) -> bool:
    return given["pad_slot"] is not None and int(given["loc"][b]) == given["pad_slot"]


def _at_once(case: DecodeAttentionCase, seen: list[Tensor]) -> int:
    """How many of these requests, each padded to the longest, fit beside each other."""
    longest = 1
    for count, slots in enumerate(seen, 1):
        longest = max(longest, len(slots))
        if count > 1 and count * longest * max(case.heads, case.kv_heads * case.width // 8) > SCORES_AT_ONCE:
            return count - 1
    return len(seen)


def _bound_of(
    case: DecodeAttentionCase, inputs: Inputs, truth: Outputs, requests: slice, seen_slots: list[Tensor]
) -> Tensor:
    q = inputs["q"][requests].clone()
    q[[_is_pad(inputs, b) for b in range(requests.start, requests.stop)]] = 0  # it may hold NaN, and sees no key
    batch, H, D = q.shape
    Hkv, Dv, N = case.kv_heads, case.width_v, max(map(len, seen_slots))
    keys, values = torch.zeros(batch, N, Hkv, D, dtype=torch.float64), torch.zeros(batch, N, Hkv, Dv, dtype=torch.float64)
    seen = torch.zeros(batch, N, dtype=torch.bool)
    for b, slots in enumerate(seen_slots):
        keys[b, : len(slots)], values[b, : len(slots)] = truth["k_cache"][slots], truth["v_cache"][slots]
        seen[b, : len(slots)] = True
    # Requests stand side by side as heads of one query row, so that they cost one evaluation.
    flat = attention_bound(
        q.reshape(1, batch * H, D),
        keys.permute(1, 0, 2, 3).reshape(N, batch * Hkv, D),
        values.permute(1, 0, 2, 3).reshape(N, batch * Hkv, Dv),
        seen.repeat_interleave(Hkv, dim=0)[:, None, :],
        dtype=getattr(torch, case.dtype),
        sm_scale=inputs["sm_scale"],
        logit_cap=case.cap,
        sinks=None if inputs["sinks"] is None else inputs["sinks"].repeat(batch),
        splits=inputs["attn_logits"].shape[2],
        random_signs=not case.shared and all(drawn_apart(truth["v_cache"][slots], slots) for slots in seen_slots),
    )
    return flat.view(batch, H, Dv)


ours = divided_last(bound, bits=True)
