"""How far the outputs of a run may be from the truth: all attention rows of a layer at once, recurrent layers call by call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kernelpair.contract.pair import Inputs
from kernelpair.contract.verdict import Failure, Tightness
from kernelpair.trial import judge
from properties.gdn_attention_core.bound import bound as layer_bound
from properties.gdn_attention_core.cases import GdnCase
from properties.scenarios.serving.cases import CHUNK, GDN, GDN_WIDTH, LONGEST, ServingCase
from properties.scenarios.serving.plan import Work
from properties.shared.attention_bound import attention_bound
from reference.causal_conv1d import causal_conv1d_pack_weight
from serving import AttentionLayer, GdnLayer

SPLITS = 8  # that a kernel may make of any row's keys, and more of a long one's:
LEAST_SPLIT = 64  # keys


@dataclass(frozen=True)
class LayerRows:
    """Output rows of one request in one layer, the truth of them, and what they were computed from, all but `got` in float64."""

    index: int
    """Of the step; whole requests come last."""
    says: str
    start: int
    """Position of the first row; the next ones are `apart` from each other."""
    q: Tensor
    """[t, H, D]"""
    k: Tensor
    """[n, Hkv, D], descaled; v alike"""
    v: Tensor
    got: Tensor
    """[t, H, Dv]"""
    truth: Tensor
    apart: int = 1


def judge_rows(
    case: ServingCase, layer: AttentionLayer, rows: Sequence[LayerRows]
) -> tuple[list[tuple[int, Failure]], list[Tightness]]:
    """Compare all rows of a layer with their truth: failures with the step that they belong to, and how tight the bound was."""
    failures, tightness = [], []
    thinned = [_thinned(one) for one in rows]
    for some in ([one for one in thinned if len(one.q) == 1], [one for one in thinned if len(one.q) > 1]):
        if not some:
            continue
        got, truth = (pad_sequence([getattr(one, name) for one in some], batch_first=True) for name in ("got", "truth"))
        live = torch.arange(got.shape[1]) < torch.tensor([len(one.q) for one in some])[:, None]
        mask = live[:, :, None, None].expand(got.shape)
        found, tight = judge.values("out", got, truth, _bound(case, layer, some), mask)
        for failure in found:
            worst = some[failure.differences[0].index[0]]
            says = f"{worst.says}: layer {layer.layer_id}: {failure.detail}"
            failures.append((worst.index, replace(failure, tensor=f"out{layer.layer_id}", detail=says)))
        if tight is not None:
            tightness.append(tight)
    return failures, tightness


def _thinned(rows: LayerRows) -> LayerRows:
    """Of a long prefill every so many rows, the last one among them. Its kernels are on trial by themselves; what is stretched is
    there for the decodes behind it."""
    tokens = len(rows.q)
    apart = -(-tokens // LONGEST)
    kept = torch.arange((tokens - 1) % apart, tokens, apart) if tokens else torch.arange(0)
    of_kept = {name: getattr(rows, name)[kept] for name in ("q", "got", "truth")}
    return rows if apart <= 1 else replace(rows, apart=apart, start=rows.start + int(kept[0]), **of_kept)


def _bound(case: ServingCase, layer: AttentionLayer, rows: Sequence[LayerRows]) -> Tensor:
    """[jobs, t, H, Dv]: numerics (A), with the jobs side by side as heads that see different keys."""
    q, k, v = (pad_sequence([getattr(one, name) for one in rows], batch_first=True) for name in ("q", "k", "v"))
    jobs, t, H, _ = q.shape
    n, Hkv = k.shape[1:3]
    start, apart = (torch.tensor([getattr(one, name) for one in rows])[:, None, None] for name in ("start", "apart"))
    p = start + apart * torch.arange(t)[:, None]
    j = torch.arange(n)
    visible = (j < torch.tensor([len(one.k) for one in rows])[:, None, None]).expand(jobs, t, n)
    if not layer.is_cross:
        visible = visible & (j <= p)
        if layer.sliding_window >= 0:
            visible = visible & (j >= p - layer.sliding_window)
        if layer.local:
            visible = visible & (j // CHUNK == p // CHUNK)
    q, k, v = (x.transpose(0, 1).flatten(1, 2) for x in (q, k, v))
    folded = attention_bound(
        q, k, v, visible.repeat_interleave(Hkv, 0), dtype=getattr(torch, case.dtype), sm_scale=layer.sm_scale,
        logit_cap=layer.logit_cap, sinks=None if layer.sinks is None else layer.sinks.repeat(jobs),
        splits=max(SPLITS, n // LEAST_SPLIT), random_signs=not layer.latent,
    )
    return folded.reshape(t, jobs, H, -1).transpose(0, 1)


def gdn_bounds(
    case: ServingCase, layer: GdnLayer, work: Sequence[Work], decodes: int, given: Inputs, states: tuple[Tensor, Tensor],
    slots: Sequence[int], truth: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Bounds of one call's outputs and of the delta rule's states; `states` are the pools before it, `truth` outputs and states
    after it, all float64."""
    prefills = work[decodes:]
    batch = GdnCase(
        dtype=case.dtype, state=case.state, conv_layout=case.conv_layout, state_layout=case.state_layout, width=GDN_WIDTH,
        key_heads=GDN["num_k_heads"], group=GDN["num_v_heads"] // GDN["num_k_heads"], K=GDN["head_k_dim"], V=GDN["head_v_dim"],
        decodes=decodes, prefills=tuple(len(one.rows) for one in prefills),
        cold=tuple(n for n, one in enumerate(prefills) if one.start == 0), eps=layer.eps, l2norm=layer.use_qk_l2norm,
    )  # fmt: skip
    lengths = [len(one.rows) for one in work]
    inputs: dict[str, Any] = {
        **given,
        "conv_state": states[0],
        "ssm_state": states[1],
        "conv_weight": layer.conv_weight.data,
        "conv_bias": layer.conv_bias,
        "A_log": layer.A_log,
        "dt_bias": layer.dt_bias,
        "state_indices": torch.tensor(slots, dtype=torch.int64),
        "query_start_loc": torch.tensor(list(accumulate(lengths, initial=0))),
        "has_initial_state": torch.tensor([one.start > 0 for one in work]),
    }
    bound = layer_bound(batch, inputs, {"core_attn_out": truth[0], "ssm_state": truth[1]})
    return bound["core_attn_out"], bound["ssm_state"]


def gdn_layer_bound(dtype: str, given: Inputs, n: int, totals: Sequence[int], truth: Tensor, eps: float) -> Tensor:
    """Bound of layer n's outputs [T, HV, V] for requests of `totals` tokens that start from nothing."""
    heads, V = truth.shape[1:]
    weight = given[f"conv{n}"]
    K = (weight.shape[0] - heads * V) // 2
    batch = GdnCase(
        dtype=dtype, width=weight.shape[-1], group=heads, K=K, V=V, decodes=0, prefills=tuple(totals), eps=eps,
        cold=tuple(range(len(totals))),
    )  # fmt: skip
    states = torch.zeros(len(totals), heads, V, K, dtype=torch.float64)
    inputs: dict[str, Any] = {
        **{name: given[f"{name}{n}"].double() for name in ("mixed_qkv", "a", "b", "A_log", "dt_bias")},
        "conv_state": torch.zeros(len(totals), weight.shape[-1] - 1, weight.shape[0], dtype=torch.float64),
        "ssm_state": states,
        "conv_weight": causal_conv1d_pack_weight(weight.squeeze(1)).double(),
        "conv_bias": None,
        "state_indices": torch.arange(len(totals)),
        "query_start_loc": torch.tensor(list(accumulate(totals, initial=0))),
        "has_initial_state": torch.zeros(len(totals), dtype=torch.bool),
    }
    return layer_bound(batch, inputs, {"core_attn_out": truth, "ssm_state": states})["core_attn_out"]
