"""decode_attention: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.decode_attention.cases import DecodeAttentionCase, table_of
from properties.shared.attention_bound import attention_bound
from properties.shared.attention_values import exact_bound

# --- bound ---


def bound(case: DecodeAttentionCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A) with S splits; nothing for the caches, which compare bit for bit."""
    if case.values == "equal" and case.splits == 1:
        return {}
    if case.values == "one_hot":
        return {"out": exact_bound(getattr(torch, case.dtype), truth["out"])}  # an expanded key may be hot for several
    if not case.lens:
        return {"out": torch.zeros_like(truth["out"])}
    batch, H, D = inputs["q"].shape
    table = table_of(case)
    Hkv, Dv, N = case.kv_heads, case.width_v, max(map(len, table.seen), default=0)
    keys, values = torch.zeros(batch, N, Hkv, D, dtype=torch.float64), torch.zeros(batch, N, Hkv, Dv, dtype=torch.float64)
    seen = torch.zeros(batch, N, dtype=torch.bool)
    for b, slots in enumerate(table.seen):
        keys[b, : len(slots)], values[b, : len(slots)] = truth["k_cache"][slots], truth["v_cache"][slots]
        seen[b, : len(slots)] = True
    q = inputs["q"].clone()
    q[list(case.pads)] = 0  # they may hold NaN, and see no key
    # Requests stand side by side as heads of one query row, so that the whole batch costs one evaluation.
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
    return {"out": flat.view(batch, H, Dv)}
