"""decode_attention: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.decode_attention.cases import DecodeAttentionCase, table_of
from properties.shared.attention_bound import attention_bound
from properties.shared.attention_values import exact_bound

SCORES_AT_ONCE = 1 << 19  # of ten matrices

# --- bound ---


def bound(case: DecodeAttentionCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A) with S splits, some requests at a time; nothing for the caches, which compare bit for bit."""
    if case.values == "equal" and case.splits == 1:
        return {}
    if case.values != "random":  # an expanded key may be hot for several
        return {"out": exact_bound(getattr(torch, case.dtype), truth["out"], 1 if case.values == "one_hot" else case.splits)}
    result, table, done = torch.zeros_like(truth["out"]), table_of(case), 0
    while done < len(case.lens):
        some = _at_once(case, table.seen[done:])
        result[done : done + some] = _bound_of(case, inputs, truth, slice(done, done + some), table.seen[done : done + some])
        done += some
    return {"out": result}


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
    pads = [pad - requests.start for pad in case.pads if requests.start <= pad < requests.stop]
    q[pads] = 0  # they may hold NaN, and see no key
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
        splits=case.splits,
        random_signs=not case.shared,
    )
    return flat.view(batch, H, Dv)
