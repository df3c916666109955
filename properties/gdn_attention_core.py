"""gdn_attention_core on trial: a layer of decodes and prefills, in which each kernel reads what another one rounded.

The truth is the layer in float64 throughout. Every value that a kernel hands on rounded differs from it by an ulp, which the
bounds of both parts admit: the decode's with c + 8 max(u, 2^-17), the prefill's with twice the working unit and output rounding.
Where the convolution's terms cancel, its error is no ulp of the sum: that is handed to them element by element.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import optimized.causal_conv1d
import optimized.gdn_attention_core
import reference.causal_conv1d
import reference.gdn_attention_core
from kernelpair.pair import BenchRow, Inputs, Outputs, Pair
from properties._causal_conv1d_batch import through_silu
from properties._gdn_attention_core_bad import BAD
from properties._gdn_attention_core_cases import INDICES, LAYOUTS, GdnCase, cases, inputs, small_enough, written_slots
from properties._gdn_attention_core_relations import RELATIONS
from properties.attention_bound import HALF_FP16_SUBNORMAL, accumulation_error
from properties.delta_rule_bound import BF16_STORE, UNIT, Moved, Rule, step_bound, walk
from reference.causal_conv1d import PackedConvWeight, causal_conv1d_fwd, causal_conv1d_update
from reference.gdn_gating import gdn_gating

METADATA = (
    "num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens", "num_actual_tokens", "state_indices",
    "query_start_loc", "has_initial_state", "pad_slot",
)  # fmt: skip


def _layer(core: Callable[..., None], metadata: type, weight: type) -> Callable[..., None]:
    """The layer with the metadata's fields and the packed weight's data and width as arguments of their own."""

    def call(conv_weight: Any, conv_width: int, **given: Any) -> None:
        packed: Any = conv_weight
        if isinstance(conv_weight, Tensor) and conv_weight.dim() == 4:
            sizes = [given[name] for name in ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")]
            HK, K, HV, V = sizes if all(isinstance(size, int) for size in sizes) else (0, 0, 0, 0)  # a wrong call
            packed = weight(conv_weight, "pairs-n32", 2 * HK * K + HV * V, conv_width)
        about = metadata(**{name: given.pop(name) for name in METADATA})
        core(conv_weight=packed, metadata=about, **given)

    return call


call_reference = _layer(
    reference.gdn_attention_core.gdn_attention_core,
    reference.gdn_attention_core.GdnMetadata,
    reference.causal_conv1d.PackedConvWeight,
)
call_optimized = _layer(
    optimized.gdn_attention_core.gdn_attention_core,
    optimized.gdn_attention_core.GdnMetadata,
    optimized.causal_conv1d.PackedConvWeight,
)


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


def _written_rows(case: GdnCase, given: Inputs) -> Tensor:
    return (torch.arange(len(given["core_attn_out"])) < case.tokens)[:, None, None]


# --- bench ---


def _bench_inputs(decodes: int, prefills: tuple[int, ...]) -> Inputs:
    case = GdnCase(
        dtype="bfloat16", decodes=decodes, prefills=prefills, key_heads=16, group=2, K=128, V=128,
        cold=tuple(range(len(prefills))), poison="outlier",
    )  # fmt: skip
    return inputs(case)


BENCH = [
    BenchRow("64 decodes, 16/32 heads, 128x128", lambda: _bench_inputs(64, ()), bytes=2.0 * 64 * 32 * 128 * 128 * 4),
    BenchRow("prefill of 1024, 16/32 heads, 128x128", lambda: _bench_inputs(0, (1024,)), flops=6.0 * 1024 * 32 * 128 * 128),
    BenchRow("8 decodes + prefill of 512", lambda: _bench_inputs(8, (512,)), flops=6.0 * 520 * 32 * 128 * 128),
]


PAIR = Pair(
    name="gdn_attention_core",
    fuzz=lambda case, inputs: inputs.keys() - {"conv_weight", "conv_width"},
    version=1,
    case=GdnCase,
    cases=cases(),
    inputs=inputs,
    reference=call_reference,
    optimized=call_optimized,
    bound=bound,
    mutates={
        "core_attn_out": _written_rows,
        "conv_state": lambda case, given: written_slots(case, given)[:, None, None],
        "ssm_state": lambda case, given: written_slots(case, given)[:, None, None, None],
    },
    layouts=LAYOUTS,
    indices=INDICES,
    relations=RELATIONS,
    bad=BAD,
    sharp=lambda case: case.dtype == "float32",
    emulated=small_enough,
    idle=lambda case: case.tokens == 0,
    edges={
        "nothing to do": lambda case: case.tokens == 0,
        "only decodes": lambda case: case.decodes > 0 and not case.prefills,
        "only prefills": lambda case: case.decodes == 0 and len(case.prefills) > 0,
        "both": lambda case: case.decodes > 0 and len(case.prefills) > 0,
        "a prefill without tokens": lambda case: 0 in case.prefills and case.tokens > 0,
        "a prefill shorter than the history": lambda case: 1 in case.prefills and case.width > 2,
        "more than a chunk": lambda case: max(case.prefills, default=0) > 64,
        "dirty slots start from zeros": lambda case: bool(case.cold) and any(case.prefills[n] for n in case.cold),
        "pads": lambda case: bool(case.pads) and case.tokens > 0,
        "pad is a slot in range": lambda case: case.pad_in_range and case.tokens > 0,
        "rows beyond the tokens": lambda case: case.extra > 0,
        "SD": lambda case: case.conv_layout == "SD",
        "DS": lambda case: case.conv_layout == "DS",
        "kv": lambda case: case.state_layout == "kv" and case.K != case.V,
        "vk": lambda case: case.state_layout == "vk" and case.K != case.V,
        "HV != HK": lambda case: case.group > 1,
        "bfloat16 states": lambda case: case.state == "bfloat16",
        **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in UNIT},  # type: ignore[misc]
    },
    bench=BENCH,
)
