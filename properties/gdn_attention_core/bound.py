"""gdn_attention_core: how far a result may be from the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs
from properties.causal_conv1d.batch import through_silu
from properties.gdn_attention_core.cases import GdnCase
from properties.shared.attention_bound import HALF_FP16_SUBNORMAL, accumulation_error
from properties.shared.delta_rule_bound import BF16_STORE, Moved, Rule, propagated, step_bound, walk
from reference.causal_conv1d import causal_conv1d_fwd, causal_conv1d_update
from reference.gdn_gating import gdn_gating
from serving import PackedConvWeight

# --- bounds ---


def bound(case: GdnCase, given: Inputs, truth: Outputs) -> Mapping[str, Tensor]:
    """Per element of the outputs and of the delta rule's states; conv states move bits and compare bit for bit."""
    out, state = torch.zeros_like(truth["core_attn_out"]), torch.zeros_like(truth["ssm_state"])
    columns = state if case.state_layout == "kv" else state.transpose(2, 3)  # a view: [slots, HV, K, V]
    stored = truth["ssm_state"].abs() * (BF16_STORE if case.state == "bfloat16" else 0.0)
    decodes = [r for r in case.live if r < case.decodes]
    prefills = [r for r in case.live if r >= case.decodes]
    if decodes:
        out[decodes], columns[given["state_indices"][decodes].long()] = _decode_bound(case, given, decodes)
    if prefills:
        rows, final = _prefill_bound(case, given, prefills)
        out[case.decodes : case.tokens] = rows
        columns[given["state_indices"][prefills].long()] = final[..., None, :].expand(-1, -1, case.K, -1)
    return {"core_attn_out": out, "ssm_state": state + stored}


@dataclass(frozen=True)
class _Convolved:
    """q, k, v in float64, and how far each element may be off besides a rounding relative to itself."""

    values: Moved
    errors: Moved

    def of(self, rows: list[int]) -> "_Convolved":
        return _Convolved(*(tuple(x[rows] for x in three) for three in (self.values, self.errors)))  # type: ignore[arg-type]


def _convolved(case: GdnCase, given: Inputs) -> tuple[_Convolved, _Convolved]:
    """Of the decodes and of the prefills. The error is that of the sum as in causal_conv1d, and half a float16 subnormal step."""
    linear = _convolutions(case, given)
    sizes = {name: given[name].abs() for name in ("mixed_qkv", "conv_state", "conv_weight")}
    sizes["conv_bias"] = None if given["conv_bias"] is None else given["conv_bias"].abs()
    found = []
    for y, terms in zip(linear, _convolutions(case, given | sizes)):
        error = accumulation_error(case.width + 2) * terms
        error = through_silu(y, error) if case.silu else error
        error = error + (HALF_FP16_SUBNORMAL if case.dtype == "float16" else 0.0)
        found.append(_Convolved(_split(case, torch.nn.functional.silu(y) if case.silu else y), _split(case, error)))
    return found[0], found[1]


def _convolutions(case: GdnCase, given: Inputs) -> tuple[Tensor, Tensor]:
    """The convolution's sums, before SiLU, of the tokens of the decodes and of the prefills, in float64."""
    packed = PackedConvWeight(given["conv_weight"], "pairs-n32", case.dim, case.width)
    states = given["conv_state"].transpose(1, 2) if case.conv_layout == "SD" else given["conv_state"]
    nd, n, indices = case.decodes, case.tokens, given["state_indices"]
    tokens = given["mixed_qkv"][:n]
    decoded = causal_conv1d_update(
        tokens[:nd], states.clone(), packed, given["conv_bias"], indices[:nd], False, case.pad_slot
    )
    offsets, flags = given["query_start_loc"][nd:] - nd, given["has_initial_state"][nd:]
    filled = causal_conv1d_fwd(
        tokens[nd:].t(), packed, given["conv_bias"], states.clone(), offsets, indices[nd:], flags, False, case.pad_slot
    ).t()
    return decoded, filled


def _split(case: GdnCase, mixed: Tensor) -> Moved:
    q, k, v = mixed.split([case.keys, case.keys, case.heads * case.V], dim=-1)
    keys = (case.key_heads, case.K)
    return q.unflatten(-1, keys), k.unflatten(-1, keys), v.unflatten(-1, (case.heads, case.V))


def _starts(case: GdnCase, given: Inputs, requests: list[int]) -> Tensor:
    states = given["ssm_state"][given["state_indices"][requests].long()]
    states = states if case.state_layout == "kv" else states.transpose(2, 3)
    warm = torch.tensor([r in case.warm for r in requests])
    return torch.where(warm[:, None, None, None], states, torch.zeros_like(states))


def _rule(case: GdnCase) -> Rule:
    return Rule(case.dtype, case.l2norm, case.eps, case.K**-0.5, rounded_inputs=True)


def columns_of(case: GdnCase, bounds: Tensor, decoded: bool = False) -> Tensor:
    """2-norms [HV, V] that errors of a slot's columns have at most: a decode bounds each element, and after a prefill each may
    take what is its whole column's."""
    keys = 1 if case.state_layout == "kv" else 2
    return bounds.norm(dim=keys) if decoded else bounds.amax(keys)


def carried(case: GdnCase, given: Inputs, errors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Of each request with tokens: what errors of the state that it starts from, by columns [HV, V], make of its outputs, and of
    the columns that it leaves."""
    decoded, filled = _convolved(case, given)
    q, k = (torch.cat(both) for both in zip(decoded.values[:2], filled.values[:2]))
    g, beta = gdn_gating(given["A_log"], given["a"][: case.tokens], given["b"][: case.tokens], given["dt_bias"])
    found, rule = [], _rule(case)
    for (begin, end), error in zip(pairwise(given["query_start_loc"].tolist()), errors):
        rows = slice(begin, end)
        found.append(propagated(q[rows], k[rows], g[rows], beta[rows], error, rule))
    return found


def _decode_bound(case: GdnCase, given: Inputs, rows: list[int]) -> tuple[Tensor, Tensor]:
    mixed = _convolved(case, given)[0].of(rows)
    a, b = given["a"][rows], given["b"][rows]
    g, beta = gdn_gating(given["A_log"], a, b, given["dt_bias"])
    return step_bound(*mixed.values, g, beta, _starts(case, given, rows), _rule(case), mixed.errors)


def _prefill_bound(case: GdnCase, given: Inputs, requests: list[int]) -> tuple[Tensor, Tensor]:
    nd, n = case.decodes, case.tokens
    mixed = _convolved(case, given)[1]
    g, beta = gdn_gating(given["A_log"], given["a"][nd:n], given["b"][nd:n], given["dt_bias"])
    offsets = (given["query_start_loc"] - nd).tolist()
    spans = [(offsets[r], offsets[r + 1]) for r in requests]
    found = walk(*mixed.values, g, beta, _starts(case, given, requests), spans, _rule(case), mixed.errors)
    return found.out, found.state
