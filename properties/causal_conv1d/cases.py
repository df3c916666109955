"""causal_conv1d: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.causal_conv1d
import reference.causal_conv1d
from kernelpair.call.layout import FAR_PARAMETERS, FAR_VECTOR, LAYOUTS, POOL, STRIDED, TURNED
from kernelpair.call.place import repeated
from kernelpair.call.values import generator, poison, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.causal_conv1d.batch import requests
from properties.shared.packed_weights import made_again
from properties.shared.pads import drawn_pad, entry_of, free_slots, more_slots, nobodys
from properties.shared.strategies import CROWD, CROWDS, any_of, around, between, common, crowded, either, float_dtypes, together
from serving import PackedConvWeight

FORMS = ("update", "batched", "varlen", "pack", "varlen", "varlen")  # varlen has the most corners
DIMS = (1, *around(16, 32, 64, 96), 21, 42, 160, 288)  # around a vector, a packed block, two and three of them, and beyond
MANY_CHANNELS = 128  # that a kernel may do at a time: of a vector over more of them a later part may be read elsewhere
LENGTHS = (1, 2, 3, 4, 5, 0, *around(32, 64), 129, 515)  # around the history, tiles of 8 tokens and a buffer of 512
TOKENS = 1100  # of a sequence of seldom cases: several buffers of those of a channel
COUNTS = (1, 2, 0, 3, 11) * 3 + (70,)  # of requests
MOST_ELEMENTS = 40_000  # of x: beyond it lengths are cut to 5, which keeps the reference under 2 ms
TINY = 2.0**-124  # a quarter of such numbers are subnormal in bfloat16 and float32
SCALES = (1.0, 1e-3, 1e2, TINY, 1e4)  # of 1e4 float16 holds the sums
PAD = -7
STATE_LAYOUTS = (*TURNED, *POOL)  # SD: channels dense; DS: columns dense
MATRIX_LAYOUTS = (*TURNED, *POOL, "transposed", "strided", "expanded")
ARGUMENT_LAYOUTS = {
    "x": MATRIX_LAYOUTS,
    "weight": MATRIX_LAYOUTS,
    "conv_states": STATE_LAYOUTS,
    "packed_weight": ("offset",),
    "bias": FAR_PARAMETERS,
    "query_start_loc": FAR_VECTOR,
    "cache_indices": FAR_VECTOR,
    "has_initial_state": FAR_PARAMETERS,
}
INDICES = ("query_start_loc", "cache_indices")


@dataclass(frozen=True, kw_only=True)
class ConvCase(Case):
    """Requests of some lengths over `dim` channels; `pack` moves a weight and nothing else."""

    form: str = "update"
    dim: int = 1
    width: int = 2
    lengths: tuple[int, ...] = (1,)
    """Of the requests: all 1 in an update, all equal in a batch."""
    before: int = 0
    after: int = 0
    """Uncovered tokens of the varlen form."""
    states: bool = True
    indexed: bool = False
    """cache_indices are given (permuted); else request b has slot b."""
    initial: str = "none"
    """has_initial_state: none, no, some, all."""
    pads: tuple[int, ...] = ()
    pad_in_range: bool = False
    spare: int = 0
    """Slots that nobody uses; they hold poison."""
    wider: int = 0
    """Columns of a state in front of the w-1 that enter results."""
    bias: str = "none"
    """none, call (the call's dtype), float32."""
    silu: bool = False
    scale: float = 1.0
    exact: bool = False
    """Small integers, no SiLU: every sum is exact, and nothing may differ from the truth."""
    single_row: bool = False
    """pack: the weight has shape [dim, 1, w]."""


@cache
@st.composite
def _requests(draw: st.DrawFn, form: str, dim: int) -> dict[str, Any]:
    """Lengths, slots, pads and initial states."""
    count = draw(any_of(*COUNTS), label="requests")
    length = draw(any_of(*LENGTHS), label="length")
    if form == "varlen":
        lengths = tuple(draw(any_of(*LENGTHS)) for _ in range(count))
    else:
        lengths = (1 if form == "update" else length,) * count
    if dim * sum(lengths) > MOST_ELEMENTS:
        lengths = tuple(min(length, 5) for length in lengths)
    return _states_of(draw, form, lengths)


def _states_of(draw: st.DrawFn, form: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Slots, pads and initial states of these requests."""
    count = len(lengths)
    states = form == "update" or draw(between(0, 4)) > 0
    indexed = states and draw(either, label="indexed")
    pads = draw(any_of("none", "some", "all")) if indexed else "none"
    spare = draw(between(0, 3), label="spare")
    return {
        "lengths": lengths,
        "states": states,
        "indexed": indexed,
        "initial": draw(any_of("none", "some", "all", "no")) if states and form != "update" else "none",
        "pads": {"none": (), "some": tuple(range(0, count, 3)), "all": tuple(range(count))}[pads],
        "pad_in_range": pads != "none" and spare > 0 and draw(either),
        "spare": spare,
        "wider": draw(any_of(0, 0, 1, 2, 7, 20)) if states else 0,
        "before": draw(any_of(0, 0, 3)) if form == "varlen" else 0,
        "after": draw(any_of(0, 0, 2)) if form == "varlen" else 0,
    }


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, INDICES)})


@st.composite
def strategy(draw: st.DrawFn) -> ConvCase:
    """Any call that the contract allows."""
    fields = draw(FIELDS)
    form = draw(any_of(*FORMS), label="form")
    if crowded(fields, 32) and form != "pack":
        crowd = draw(CROWDS, label="crowd")
        lengths = (1,) * crowd if form == "update" else (2,) * crowd if form == "batched" else ((1, 2) * crowd)[:crowd]
        states = _states_of(draw, form, lengths) | ({} if form == "update" else {"states": True, "initial": "some"})
        return completed(draw, fields, form, 3, draw(any_of(2, 3, 4)), states)
    dim, width = draw(any_of(*DIMS), label="dim"), draw(any_of(2, 3, 4), label="width")
    if form == "pack":
        return ConvCase(**fields, form=form, dim=dim, width=width, single_row=draw(either))
    if fields["seed"] % 32 == 7 and form != "update":
        return with_lengths(draw, fields, form, min(dim, 5), width, (TOKENS,))
    return completed(draw, fields, form, dim, width, draw(_requests(form, dim)))


def with_lengths(
    draw: st.DrawFn, fields: dict[str, Any], form: str, dim: int, width: int, lengths: tuple[int, ...]
) -> ConvCase:
    """A case with requests of these lengths."""
    return completed(draw, fields, form, dim, width, _states_of(draw, form, lengths))


def completed(
    draw: st.DrawFn, fields: dict[str, Any], form: str, dim: int, width: int, requests: dict[str, Any]
) -> ConvCase:
    """The case of these requests, with a bias and values."""
    exact = draw(between(0, 3)) == 3
    if dim > MANY_CHANNELS and draw(between(0, 3), label="bias apart") == 3:
        fields = fields | {"layout": fields["layout"] | {"bias": STRIDED}}
    if requests["indexed"]:
        columns = requests["wider"] + width - 1
        requests = requests | {"spare": requests["spare"] + more_slots(fields["seed"], fields["layout"], dim * columns)}
    return ConvCase(
        **fields,
        form=form,
        dim=dim,
        width=width,
        **requests,
        bias=draw(any_of("none", "call", "float32"), label="bias"),
        silu=not exact and draw(any_of(False, True, True)),
        scale=1.0 if exact else draw(any_of(*SCALES), label="scale"),
        exact=exact,
    )


def _numbers(case: ConvCase, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.exact:
        return small_integers(case.seed, name, shape, dtype)
    return uniform(case.seed, name, shape, dtype, of_dtype(scale, dtype))


def of_dtype(scale: float, dtype: torch.dtype) -> float:
    """The scale, or that at which numbers of this dtype are subnormal."""
    return 2.0**-15 if scale == TINY and dtype == torch.float16 else scale


def pad_slot(case: ConvCase) -> int | None:
    return drawn_pad(case, "cache_indices", len(case.lengths) + case.spare, PAD)


def _tokens(case: ConvCase) -> Tensor:
    """x, with poison where nobody may look: pads and uncovered tokens."""
    count, total = len(case.lengths), case.before + sum(case.lengths) + case.after
    shape = {"batched": (count, case.dim, case.lengths[0] if count else 4), "varlen": (case.dim, total)}
    x = _numbers(case, "x", shape.get(case.form, (count, case.dim)), case.scale)
    if case.layout.get("x") == "expanded":
        return x
    hidden = poison(case.poison, (1,), x.dtype)
    starts = [case.before + sum(case.lengths[:b]) for b in range(count)]
    for b in case.pads:
        (x[:, starts[b] : starts[b] + case.lengths[b]] if case.form == "varlen" else x[b]).copy_(hidden)
    if case.form == "varlen":
        x[:, : case.before] = hidden
        x[:, case.before + sum(case.lengths) :] = hidden
    return x


def _state_arguments(case: ConvCase) -> Inputs:
    """States whose slots hold numbers where a request has a history, poison elsewhere; and which slot is whose."""
    if not case.states:
        return {"conv_states": None, "cache_indices": None, "has_initial_state": None}
    count, dtype = len(case.lengths), getattr(torch, case.dtype)
    slots = count + case.spare
    order = free_slots(case, slots)[:count] if case.indexed else torch.arange(count)
    flags = {"all": torch.ones(count, dtype=torch.bool), "no": torch.zeros(count, dtype=torch.bool)}
    drawn = torch.from_numpy(generator(case.seed, "initial").integers(0, 2, count).astype(bool))
    initial = None if case.initial == "none" else repeated(flags.get(case.initial, drawn), case.layout.get("has_initial_state"))
    columns = case.wider + case.width - 1
    states = poison(case.poison, (slots, case.dim, columns), dtype)
    history = _numbers(case, "history", (count, case.dim, columns), case.scale)
    indices = order.clone()
    used = [int(order[b]) for b, length in enumerate(case.lengths) if length and b not in case.pads]
    for b, length in enumerate(case.lengths):
        if b in case.pads:
            indices[b] = entry_of(pad_slot(case), PAD)
        elif length == 0:
            indices[b] = nobodys(case, used)
        elif case.form == "update" or (initial is not None and initial[b]):
            states[order[b]] = history[b]
    given = {"conv_states": states, "cache_indices": indices if case.indexed else None}
    return given | ({} if case.form == "update" else {"has_initial_state": initial})


def _bias(case: ConvCase) -> Tensor:
    """In the call's dtype or float32; exact sums get a fraction that 16 bits lose, and that a sum of 0 shows."""
    bias = _numbers(case, "bias", (case.dim,), case.scale)
    if case.bias == "float32":
        bias = bias.float() + (2.0**-12 if case.exact else 0.0)
    return bias


def inputs(case: ConvCase) -> Inputs:
    """The arguments of the case's form, the weight packed by the reference."""
    weight = _numbers(case, "weight", (case.dim, case.width))
    if case.form == "pack":
        return {"form": "pack", "weight": weight[:, None] if case.single_row else weight}
    starts = [case.before + sum(case.lengths[:b]) for b in range(len(case.lengths) + 1)]
    bias = None if case.bias == "none" else _bias(case)
    return {
        "form": case.form,
        "x": _tokens(case),
        "packed_weight": reference.causal_conv1d.causal_conv1d_pack_weight(weight),
        "dim": case.dim,
        "width": case.width,
        "bias": bias,
        **_state_arguments(case),
        **({"query_start_loc": torch.tensor(starts)} if case.form == "varlen" else {}),
        "silu_activation": case.silu,
        "pad_slot": pad_slot(case),
    }


def _pack(kernels: Any, weight: Tensor) -> dict[str, Tensor]:
    packed = kernels.causal_conv1d_pack_weight(weight)
    return {"packed": packed} | _unpack(kernels, packed, weight.shape[0], weight.shape[-1])


def _unpack(kernels: Any, packed_weight: Tensor, dim: int, width: int) -> dict[str, Tensor]:
    return {"unpacked": kernels.causal_conv1d_unpack_weight(packed_weight, dim, width)}


def _call_of(kernels: Any, form: str, **given: Any) -> tuple[Callable[..., Any], Inputs]:
    """The function of a form, and its arguments with their packed weight: a `plain` one is handed over without its object and
    another `tag` names another layout (wrong calls), a `kept` one is made of its plain tensors again."""
    if form in ("pack", "unpack"):
        return partial(_pack if form == "pack" else _unpack, kernels), given
    packed, tag = given.pop("packed_weight"), given.pop("tag", kernels.LAYOUT)
    dim, width = given.pop("dim"), given.pop("width")
    if not given.pop("plain", False):
        packed = PackedConvWeight(packed, tag, dim, width)
        packed = made_again(packed) if given.pop("kept", False) else packed
    if form == "update":
        return kernels.causal_conv1d_update, given | {"packed": packed}
    return kernels.causal_conv1d_fwd, {"query_start_loc": None} | given | {"packed": packed}


def apply_reference(form: str, **given: Any) -> Any:
    """The reference of any form."""
    function, arguments = _call_of(reference.causal_conv1d, form, **given)
    return function(**arguments)


def apply_optimized(form: str, **given: Any) -> Any:
    """The compiled kernels of any form."""
    function, arguments = optimized_call(form, **given)
    return function(**arguments)


def optimized_call(form: str, **given: Any) -> tuple[Callable[..., Any], Inputs]:
    """The function of a form, and its arguments with their packed weight."""
    return _call_of(optimized.causal_conv1d, form, **given)


def written(case: ConvCase, given: Inputs) -> Tensor | bool:
    """Slots of requests with tokens, pads apart."""
    if given.get("conv_states") is None:
        return False
    mask = torch.zeros(len(given["conv_states"]), 1, 1, dtype=torch.bool)
    mask[[request.slot for request in requests(given) if request.live]] = True
    return mask


def result_layout(case: ConvCase, name: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Dense where x is: over channels (any strides elsewhere), else contiguous."""
    wanted = list(torch.empty(sizes, device="meta").stride())
    if name == "out":
        x = LAYOUTS[case.layout.get("x", "dense")](sizes).strides
        channels, others = (1, 0) if case.form == "update" else (len(sizes) - 2, len(sizes) - 1)
        dense_channels = x[channels] == 1 or (case.form == "update" and x[others] != 1)
        order = [*range(len(sizes) - 2), *((others, channels) if dense_channels else (channels, others))]
        exchanged = torch.empty([sizes[d] for d in order], device="meta").stride()
        for position, d in enumerate(order):
            wanted[d] = exchanged[position]
    return 0 in sizes or all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, wanted))


def _says(**wanted: Any) -> Callable[[Any], bool]:
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


EDGES: dict[str, Callable[[Any], bool]] = {
    **{f"form {form}": _says(form=form) for form in dict.fromkeys(FORMS)},
    **{f"width {width}": _says(width=width) for width in (2, 3, 4)},
    **{f"dtype {dtype}": _says(dtype=dtype) for dtype in ("float32", "bfloat16", "float16")},
    "many requests, some with initial states": lambda case: len(case.lengths) > 64 and case.initial == "some",
    "a crowd of requests": lambda case: len(case.lengths) == CROWD,
    "no requests": lambda case: case.form != "pack" and not case.lengths,
    "no tokens": lambda case: case.form == "batched" and bool(case.lengths) and case.lengths[0] == 0,
    "an empty sequence among others": lambda case: 0 in case.lengths and any(case.lengths),
    "shorter than the history": lambda case: any(0 < length < case.width - 1 for length in case.lengths),
    "uncovered tokens before": lambda case: case.before > 0,
    "uncovered tokens after": lambda case: case.after > 0,
    "no states": lambda case: not case.states,
    "states without has_initial_state": lambda case: (
        case.form in ("batched", "varlen") and case.states and case.initial == "none"
    ),
    "some initial states": lambda case: case.initial == "some",
    "permuted slots": lambda case: case.indexed and len(case.lengths) > 1,
    "default slots": lambda case: case.states and not case.indexed,
    "no slots": lambda case: case.states and not case.lengths and not case.spare,
    "more slots than requests": lambda case: case.spare > 0,
    "more slots than 16 bits count": lambda case: case.spare >= 2**16
    and any(n and b not in case.pads for b, n in enumerate(case.lengths)),
    "all requests are pads": lambda case: 0 < len(case.lengths) == len(case.pads),
    "some requests are pads": lambda case: 0 < len(case.pads) < len(case.lengths),
    "pad is a slot in range": lambda case: case.pad_in_range,
    "pad is slot 0 of several": lambda case: case.pad_in_range and pad_slot(case) == 0 and len(case.lengths) + case.spare > 1,
    "wider states, tokens move into the front": lambda case: case.wider > 0
    and max(case.lengths, default=0) > case.wider + case.width - 1,
    "wider states, columns of the history do": lambda case: case.wider > 0 and case.form == "update" and bool(case.lengths),
    "wider states start from zeros": lambda case: case.wider > 1 and case.initial == "no" and 1 in case.lengths,
    "SD states": lambda case: case.layout.get("conv_states") == "turned",
    "SD states, padded slots": lambda case: case.layout.get("conv_states") in TURNED[1:],
    "DS states": lambda case: case.form != "pack" and case.layout.get("conv_states", "dense") == "dense",
    "DS states, padded slots": lambda case: case.layout.get("conv_states") in ("padded", "sliced"),
    "channels dense": lambda case: case.layout.get("x") in TURNED and case.form != "update",
    "neither dimension of x dense": lambda case: case.layout.get("x") == "strided" and case.dim > 1,
    "packed weight at an odd offset": lambda case: case.layout.get("packed_weight") == "offset",
    "a partial block of channels": lambda case: case.dim % 32 > 0,
    "bias in float32 beside 16-bit x": lambda case: case.bias == "float32" and case.dtype != "float32",
    "strided bias of many channels": lambda case: case.bias != "none"
    and case.layout.get("bias") == STRIDED
    and case.dim > MANY_CHANNELS,
    "SiLU": lambda case: case.silu,
    "exact sums": lambda case: case.exact,
    "subnormals, neither channels dense nor columns": lambda case: case.scale == TINY
    and case.states
    and case.layout.get("x", "dense") not in TURNED,
    "weight [dim, 1, w]": lambda case: case.single_row,
}
