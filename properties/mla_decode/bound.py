"""mla_decode: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.mla_decode.cases import MlaDecodeCase
from properties.shared.attention_bound import attention_bound
from properties.shared.attention_values import divided_last


def keys_of(case: MlaDecodeCase, kv_cache: Tensor, table: Tensor) -> list[Tensor]:
    """The visible latents of each request, [n, Dl + Dr]."""
    used = [-(-n // case.page) for n in case.lens]
    return [kv_cache[table[b, : used[b]].long()].reshape(-1, kv_cache.shape[-1])[:n] for b, n in enumerate(case.lens)]


def bound(case: MlaDecodeCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A) over the joint width; the value is part of its key, so its signs are not independent."""
    batch, H, Dl = truth["out"].shape
    if not batch:
        return {"out": torch.zeros_like(truth["out"])}
    q = torch.cat([inputs["q_nope"], inputs["q_pe"]], dim=-1)
    N, D = max(case.lens), q.shape[-1]
    keys, seen = torch.zeros(N, batch, D, dtype=torch.float64), torch.zeros(batch, 1, N, dtype=torch.bool)
    for b, latents in enumerate(keys_of(case, inputs["kv_cache"], inputs["page_table"])):
        keys[: len(latents), b], seen[b, :, : len(latents)] = latents, True
    flat = attention_bound(
        q.reshape(1, batch * H, D), keys, keys[..., :Dl], seen, dtype=getattr(torch, case.dtype),
        sm_scale=inputs["sm_scale"], splits=max(case.splits, 1) if case.splits != -1 else 128, two_part_weights=case.accurate,
    )
    return {"out": flat.view(batch, H, Dl)}


ours = divided_last(bound, bits=True)
