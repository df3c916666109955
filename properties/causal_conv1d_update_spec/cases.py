"""causal_conv1d_update_spec: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.causal_conv1d
import reference.causal_conv1d
from kernelpair.call.layout import FAR_PARAMETERS, FAR_VECTOR, LAYOUTS
from kernelpair.call.values import poison, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.causal_conv1d.cases import MATRIX_LAYOUTS, PAD, SCALES, STATE_LAYOUTS, TINY, of_dtype
from properties.shared.drafts import DRAWN, DraftRequests, repeated
from properties.shared.pads import NOBODY, drawn_pad, drawn_pads, entry_of, free_slots, more_slots, more_tokens, nobodys
from properties.shared.strategies import (
    CROWD,
    CROWDS,
    any_of,
    around,
    between,
    common,
    crowded,
    either,
    float_dtypes,
    shrinking,
    together,
)
from serving import PackedConvWeight

DIMS = (1, *around(16, 32, 64), 96, 160)
TOKENS = (1, 2, 3, 0, 5, 8, 4, 17)  # of a request; 4 are a tile
LONG, LONG_DIM = 600, 33  # drafts of one request in one case of 32, more than a buffer of tokens holds; channels of it
CROWD_DIM = 3
ACCEPTED = (1, 2, 3, 4)
MODELS = ((8192, 4, 4), (10240, 2, 2), (1056, 9, 3), (256, 128, 4))  # channels, requests, tokens of each
ARGUMENT_LAYOUTS = {
    "x": MATRIX_LAYOUTS,
    "conv_states": STATE_LAYOUTS,
    "packed_weight": ("offset",),
    "bias": FAR_PARAMETERS,
    "query_start_loc": FAR_VECTOR,
    "cache_indices": FAR_VECTOR,
    "num_accepted_tokens": FAR_VECTOR,
}
INDICES = ("query_start_loc", "cache_indices", "num_accepted_tokens")


@dataclass(frozen=True, kw_only=True)
class ConvSpecCase(DraftRequests, Case):
    """Requests with some drafts each; of the drafts before them `accepted` were. Other fields as in ConvCase."""

    exact: bool = False
    """Small integers, no SiLU: every sum is exact."""
    scale: float = 1.0
    bias: str = "none"
    silu: bool = False
    dim: int = 1
    width: int = 2
    lengths: tuple[int, ...] = (1,)
    accepted: tuple[int, ...] = (1,)
    more_columns: int = 0
    """Of the states, beyond those that some request needs."""
    before: int = 0
    after: int = 0
    """Uncovered tokens."""
    pads: tuple[int, ...] = ()
    pad_in_range: bool = False
    spare: int = 0

    @property
    def columns(self) -> int:
        """L, the columns of a state. A pad keeps none, however many tokens it has."""
        most = max((max(self.lengths[b], self.accepted[b]) for b in self.live), default=1)
        return self.width - 2 + most + self.more_columns


FIELDS = together({
    "dtype": float_dtypes,
    **common(ARGUMENT_LAYOUTS, INDICES),
    "more_columns": any_of(0, 0, 3),
    "before": any_of(0, 0, 3),
    "after": any_of(0, 0, 2),
    "spare": any_of(0, 1, 3),
    "bias": any_of("none", "call", "float32"),
})


def _completed(draw: st.DrawFn, dim: int, width: int, lengths: tuple[int, ...]) -> ConvSpecCase:
    fields = draw(FIELDS)
    if crowded(fields, 64):
        dim, lengths = CROWD_DIM, repeated((1, 2, 1), draw(CROWDS, label="crowd"))
    pads = drawn_pads(draw, len(lengths))
    fields["before"] += more_tokens(fields["seed"], fields["layout"], dim)
    accepted = tuple(draw(any_of(*ACCEPTED)) if draw(either) else max(n, 1) for n in lengths[:DRAWN])
    accepted = repeated(accepted, len(lengths))
    exact = draw(between(0, 3)) == 3
    case = ConvSpecCase(
        **fields, dim=dim, width=width, lengths=lengths, accepted=accepted, pads=pads,
        pad_in_range=bool(pads) and fields["spare"] > 0 and draw(either),
        silu=not exact and draw(any_of(False, True, True)), scale=1.0 if exact else draw(any_of(*SCALES)), exact=exact,
    )
    return replace(case, spare=case.spare + more_slots(case.seed, case.layout, dim * case.columns))


@st.composite
def strategy(draw: st.DrawFn) -> ConvSpecCase:
    """Any call that the contract allows."""
    dim, width = draw(any_of(*DIMS), label="dim"), draw(any_of(2, 3, 4), label="width")
    lengths = tuple(draw(any_of(*TOKENS)) for _ in range(draw(any_of(1, 2, 0, 3, 11), label="requests")))
    if draw(between(0, 31), label="long") == 31:
        dim, lengths = min(dim, LONG_DIM), (*lengths[:1], draw(shrinking(LONG)), *lengths[1:2])
    return _completed(draw, dim, width, lengths)


@cache
def models(slow: bool) -> st.SearchStrategy[ConvSpecCase]:
    """Thousands of channels and large batches: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> ConvSpecCase:
    dim, requests, tokens = draw(any_of(*MODELS), label="channels, requests, tokens")
    lengths = (draw(shrinking(tokens)),) * draw(shrinking(requests))
    return _completed(draw, draw(shrinking(dim), label="channels"), draw(any_of(4, 3, 2)), lengths)


def numbers(case: ConvSpecCase, name: str, shape: tuple[int, ...]) -> Tensor:
    """Of the case's scale, or small integers."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.exact:
        return small_integers(case.seed, name, shape, dtype)
    return uniform(case.seed, name, shape, dtype, 1.0 if name == "weight" else of_dtype(case.scale, dtype))


def pad_slot(case: ConvSpecCase) -> int | None:
    return drawn_pad(case, "cache_indices", len(case.lengths) + case.spare, PAD)


def _tokens(case: ConvSpecCase) -> Tensor:
    """x, with poison where nobody may look: pads and uncovered tokens."""
    starts = case.starts
    x = numbers(case, "x", (starts[-1] + case.after, case.dim))
    if case.layout.get("x") == "expanded":
        return x
    seen = torch.zeros(len(x), dtype=torch.bool)
    for b in case.live:
        seen[starts[b] : starts[b + 1]] = True
    x[~seen] = poison(case.poison, (1,), x.dtype)
    return x


def _states(case: ConvSpecCase) -> Inputs:
    """Slots that hold numbers in the columns of their history, and poison elsewhere."""
    count, dtype = len(case.lengths), getattr(torch, case.dtype)
    slots = count + case.spare
    order = free_slots(case, slots)[:count]
    states = poison(case.poison, (slots, case.dim, case.columns), dtype)
    history = numbers(case, "history", (count, case.dim, case.width - 1))
    indices = torch.full((count,), nobodys(case, [int(order[b]) for b in case.live]))
    accepted = torch.full((count,), NOBODY)
    for b in case.live:
        first = case.accepted[b] - 1
        states[order[b], :, first : first + case.width - 1] = history[b]
        indices[b], accepted[b] = order[b], case.accepted[b]
    for b in case.pads:
        indices[b] = entry_of(pad_slot(case), PAD)
        accepted[b] = 0
    return {"conv_states": states, "cache_indices": indices, "num_accepted_tokens": accepted}


def inputs(case: ConvSpecCase) -> Inputs:
    """The weight packed by the reference."""
    weight, bias = numbers(case, "weight", (case.dim, case.width)), None
    if case.bias != "none":
        bias = numbers(case, "bias", (case.dim,))
        bias = bias if case.bias == "call" else bias.float() + (2.0**-12 if case.exact else 0.0)
    states = _states(case)
    return {
        "x": _tokens(case),
        "conv_states": states.pop("conv_states"),
        "packed_weight": reference.causal_conv1d.causal_conv1d_pack_weight(weight),
        "dim": case.dim,
        "width": case.width,
        "bias": bias,
        "query_start_loc": torch.tensor(case.starts),
        **states,
        "silu_activation": case.silu,
        "pad_slot": pad_slot(case),
    }


def arguments(
    packed_weight: Tensor, dim: int, width: int, plain: bool = False, tag: str = optimized.causal_conv1d.LAYOUT, **given: Any
) -> Inputs:
    """Of a call, its weight an object; a `plain` one is handed over without, another `tag` names another layout: wrong calls."""
    return given | {"packed": packed_weight if plain else PackedConvWeight(packed_weight, tag, dim, width)}


def apply_reference(**given: Any) -> Tensor:
    """The reference, its weight an object."""
    return reference.causal_conv1d.causal_conv1d_update_spec(**arguments(**given))


def apply_optimized(**given: Any) -> Tensor:
    """The compiled kernel, likewise."""
    return optimized.causal_conv1d.causal_conv1d_update_spec(**arguments(**given))


def written(case: ConvSpecCase, given: Inputs) -> Tensor:
    """Of each live request's slot the columns that the next call may start from."""
    states, lengths = given["conv_states"], given["query_start_loc"].diff().tolist()
    mask = torch.zeros(len(states), 1, states.shape[2], dtype=torch.bool)
    for slot, n in zip(given["cache_indices"].tolist(), lengths):
        if n and slot != given["pad_slot"]:
            mask[slot, :, : given["width"] - 2 + n] = True
    return mask


def result_layout(case: ConvSpecCase, name: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Dense over channels if x is, else over tokens."""
    x = LAYOUTS[case.layout.get("x", "dense")](sizes).strides
    wanted = (max(sizes[1], 1), 1) if x[1] == 1 else (1, max(sizes[0], 1))
    return 0 in sizes or all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, wanted))


MEASURES: dict[str, Callable[[Any], int]] = {
    "channels": lambda case: case.dim,
    "elements": lambda case: case.dim * sum(case.lengths),
}
EDGES: dict[str, Callable[[Any], bool]] = {
    **{f"width {width}": lambda case, width=width: case.width == width for width in (2, 3, 4)},  # type: ignore[misc]
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
    "no requests": lambda case: not case.lengths,
    "no slots": lambda case: not case.lengths and not case.spare,
    "a crowd of requests": lambda case: len(case.lengths) == CROWD,
    "hundreds of drafts": lambda case: any(case.lengths[b] > 512 for b in case.live),
    "more tokens than 16 bits count": lambda case: case.before >= 2**16 and len(case.live) > 0,
    "a request without tokens among others": lambda case: 0 in case.lengths and any(case.lengths),
    "a request without tokens names another's slot": lambda case: 0 in case.lengths and bool(case.live)
    and case.seed // 3 % 2 > 0,
    "one token each": lambda case: set(case.lengths) == {1} and len(case.lengths) > 1,
    "a tile of tokens": lambda case: max(case.lengths, default=0) > 4,
    "more accepted than there are tokens": lambda case: any(case.accepted[b] > case.lengths[b] for b in case.live),
    "fewer accepted than there are tokens": lambda case: any(1 < case.accepted[b] < case.lengths[b] for b in case.live),
    "columns that nobody needs": lambda case: case.more_columns > 0,
    "some requests are pads": lambda case: 0 < len(case.pads) < len(case.lengths),
    "a pad with more tokens than columns": lambda case: any(
        case.width - 2 + case.lengths[b] > case.columns for b in case.pads
    ),
    "pad is a slot in range": lambda case: case.pad_in_range,
    "pad is slot 0 of several": lambda case: case.pad_in_range and pad_slot(case) == 0 and len(case.lengths) + case.spare > 1,
    "more slots than 16 bits count": lambda case: case.spare >= 2**16 and bool(case.live),
    "uncovered tokens": lambda case: case.before > 0 and case.after > 0,
    "SD states": lambda case: case.layout.get("conv_states") == "turned",
    "DS states": lambda case: case.layout.get("conv_states", "dense") == "dense",
    "tokens dense": lambda case: case.layout.get("x") in ("turned", "transposed") and sum(case.lengths) > 1 < case.dim,
    "neither dimension of x dense": lambda case: case.layout.get("x") == "strided" and case.dim > 1,
    "bias in float32 beside 16-bit x": lambda case: case.bias == "float32" and case.dtype != "float32",
    "SiLU": lambda case: case.silu,
    "exact sums": lambda case: case.exact,
    "subnormals": lambda case: case.scale == TINY and bool(case.live),
}
