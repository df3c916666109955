"""causal_conv1d on trial: packing, whole sequences (batched or end to end), and single tokens, as one pair of five forms."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.causal_conv1d
import reference.causal_conv1d
from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, DENSE_LAST, LAYOUTS, TURNED
from kernelpair.pair import Bound, Inputs, Outputs, Pair
from kernelpair.values import generator, permutation, poison, small_integers, uniform
from properties import _causal_conv1d_bad, _causal_conv1d_bench, _causal_conv1d_relations
from properties._causal_conv1d_batch import requests, through_silu
from properties.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error, rounding
from properties.strategies import any_of, around, between, common, either, float_dtypes, kernel_paths, together

FORMS = ("update", "batched", "varlen", "pack", "varlen", "varlen")  # varlen has the most corners
DIMS = (1, *around(16, 32, 64, 96), 160)  # around a vector, a packed block, two and three of them
LENGTHS = (1, 2, 3, 4, 5, 0, *around(32, 64), 129, 515)  # around the history, tiles of 8 tokens and a buffer of 512
MOST_ELEMENTS = 40_000  # of x: beyond it lengths are cut to 5, which keeps the reference under 2 ms
SCALES = (1.0, 1e-3, 1e2)
PAD = -7
NOBODY = -(2**20)  # the index of an empty sequence: never interpreted

STATE_LAYOUTS = (*TURNED, *DENSE_LAST)  # SD: channels dense; DS: columns dense
MATRIX_LAYOUTS = (*TURNED, *DENSE_LAST, "transposed", "strided", "expanded")
ARGUMENT_LAYOUTS = {
    "x": MATRIX_LAYOUTS,
    "weight": MATRIX_LAYOUTS,
    "conv_states": STATE_LAYOUTS,
    "packed_weight": ("offset",),
    "bias": ANY_STRIDES,
    "query_start_loc": ANY_STRIDES,
    "cache_indices": ANY_STRIDES,
    "has_initial_state": ANY_STRIDES,
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
    count = draw(any_of(1, 2, 0, 3, 11), label="requests")
    length = draw(any_of(*LENGTHS), label="length")
    if form == "varlen":
        lengths = tuple(draw(any_of(*LENGTHS)) for _ in range(count))
    else:
        lengths = (1 if form == "update" else length,) * count
    if dim * sum(lengths) > MOST_ELEMENTS:
        lengths = tuple(min(length, 5) for length in lengths)
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
        "before": draw(any_of(0, 0, 3)) if form == "varlen" else 0,
        "after": draw(any_of(0, 0, 2)) if form == "varlen" else 0,
    }


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, INDICES)})


@st.composite
def cases(draw: st.DrawFn) -> ConvCase:
    """Any call that the contract allows."""
    fields = draw(FIELDS)
    form = draw(any_of(*FORMS), label="form")
    dim, width = draw(any_of(*DIMS), label="dim"), draw(any_of(2, 3, 4), label="width")
    if form == "pack":
        return ConvCase(**fields, form=form, dim=dim, width=width, single_row=draw(either))
    exact = draw(between(0, 3)) == 3
    return ConvCase(
        **fields,
        form=form,
        dim=dim,
        width=width,
        **draw(_requests(form, dim)),
        bias=draw(any_of("none", "call", "float32"), label="bias"),
        silu=not exact and draw(any_of(False, True, True)),
        scale=1.0 if exact else draw(any_of(*SCALES), label="scale"),
        exact=exact,
    )


def _numbers(case: ConvCase, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.exact:
        return small_integers(case.seed, name, shape, dtype)
    return uniform(case.seed, name, shape, dtype, scale)


def pad_slot(case: ConvCase) -> int | None:
    """A number outside the pool, or its last slot."""
    if not case.pads:
        return None
    return len(case.lengths) + case.spare - 1 if case.pad_in_range else PAD


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
    slots = max(count + case.spare, 1)
    order = permutation(case.seed, "slots", slots - case.pad_in_range)[:count] if case.indexed else torch.arange(count)
    flags = {"all": torch.ones(count, dtype=torch.bool), "no": torch.zeros(count, dtype=torch.bool)}
    drawn = torch.from_numpy(generator(case.seed, "initial").integers(0, 2, count).astype(bool))
    initial = None if case.initial == "none" else flags.get(case.initial, drawn)
    states = poison(case.poison, (slots, case.dim, case.width - 1), dtype)
    history = _numbers(case, "history", (count, case.dim, case.width - 1), case.scale)
    indices = order.clone()
    for b, length in enumerate(case.lengths):
        if b in case.pads:
            indices[b] = pad_slot(case) or PAD
        elif length == 0:
            indices[b] = NOBODY
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


def _apply(kernels: Any, form: str, **given: Any) -> Any:
    """Call the operator of a form; a `plain` packed weight is handed over without its object (a wrong call)."""
    if form == "pack":
        packed = kernels.causal_conv1d_pack_weight(given["weight"])
        dim, width = given["weight"].shape[0], given["weight"].shape[-1]
        return {"packed": packed, "unpacked": kernels.causal_conv1d_unpack_weight(packed, dim, width)}
    packed, dim, width = given.pop("packed_weight"), given.pop("dim"), given.pop("width")
    if form == "unpack":
        return {"unpacked": kernels.causal_conv1d_unpack_weight(packed, dim, width)}
    if not given.pop("plain", False):
        packed = kernels.PackedConvWeight(packed, kernels.LAYOUT, dim, width)
    if form == "update":
        return kernels.causal_conv1d_update(packed=packed, **given)
    return kernels.causal_conv1d_fwd(packed=packed, **{"query_start_loc": None, **given})


def apply_reference(form: str, **given: Any) -> Any:
    """The reference of any form."""
    return _apply(reference.causal_conv1d, form, **given)


def apply_optimized(form: str, **given: Any) -> Any:
    """The compiled kernels of any form."""
    return _apply(optimized.causal_conv1d, form, **given)


def written(case: ConvCase, given: Inputs) -> Tensor | bool:
    """Slots of requests with tokens, pads apart."""
    if given.get("conv_states") is None:
        return False
    mask = torch.zeros(len(given["conv_states"]), 1, 1, dtype=torch.bool)
    mask[[request.slot for request in requests(given) if request.live]] = True
    return mask


def bound(case: ConvCase, given: Inputs, truth: Outputs) -> Bound:
    """|error| <= u |ref| + c d + [SiLU] 2^-17 |ref| + t(w + sum (|W| + |x|)), d = g(w + 2) (sum |W x| + |bias|).

    A float32 sum of w products and a bias errs by g(w + 2) against the sum of their sizes: d. SiLU passes it on with its slope,
    c <= 1.1, and left of zero at most that of (1 - y) e^y, which grows with y; it adds 2^-17 of its own (exp and a reciprocal).
    The result is rounded once; w + 1 operands and products below 2^-126 may be flushed. Zero, hence exact: rows that nobody
    computes, and states, which are copied.
    """
    dtype = getattr(torch, case.dtype)
    if case.form == "pack":
        return {}
    if case.exact:
        return {"out": rounding(truth["out"], dtype)}
    weight = reference.causal_conv1d.causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"])
    plain = given | {"silu_activation": False, "conv_states": None, "bias": None}
    sizes = plain | {
        name: value.abs() for name, value in given.items() if name in ("x", "bias", "conv_states") and value is not None
    }
    pack = reference.causal_conv1d.causal_conv1d_pack_weight
    terms = apply_reference(**sizes | {"packed_weight": pack(weight.abs())})
    sizes |= {"bias": None, "conv_states": None if given["conv_states"] is None else given["conv_states"].abs()}
    operands = apply_reference(**sizes | {"packed_weight": pack(torch.ones_like(weight))})
    taps = weight.abs().sum(1).unsqueeze(1) if case.form in ("batched", "varlen") else weight.abs().sum(1)
    out = truth["out"].abs()
    error, moved = UNIT_ROUNDOFF[dtype] * out, accumulation_error(case.width + 2) * terms
    if given["silu_activation"]:
        states = given.get("conv_states")
        linear = given | {"silu_activation": False, "conv_states": None if states is None else states.clone()}
        error = error + (2.0**-17 * out + through_silu(apply_reference(**linear), moved))
    else:
        error = error + moved
    error = error + flush_error(case.width + taps + operands, dtype)
    computed = torch.zeros_like(out, dtype=torch.bool)
    for request in requests(given):
        if request.live:
            request.of(computed).fill_(True)
    return {"out": error * computed}


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
    "more slots than requests": lambda case: case.spare > 0,
    "all requests are pads": lambda case: 0 < len(case.lengths) == len(case.pads),
    "some requests are pads": lambda case: 0 < len(case.pads) < len(case.lengths),
    "pad is a slot in range": lambda case: case.pad_in_range,
    "SD states": lambda case: case.layout.get("conv_states") == "turned",
    "SD states, padded slots": lambda case: case.layout.get("conv_states") in TURNED[1:],
    "DS states": lambda case: case.form != "pack" and case.layout.get("conv_states", "dense") == "dense",
    "DS states, padded slots": lambda case: case.layout.get("conv_states") in ("padded", "sliced"),
    "channels dense": lambda case: case.layout.get("x") in TURNED and case.form != "update",
    "neither dimension of x dense": lambda case: case.layout.get("x") == "strided" and case.dim > 1,
    "packed weight at an odd offset": lambda case: case.layout.get("packed_weight") == "offset",
    "a partial block of channels": lambda case: case.dim % 32 > 0,
    "bias in float32 beside 16-bit x": lambda case: case.bias == "float32" and case.dtype != "float32",
    "SiLU": lambda case: case.silu,
    "exact sums": lambda case: case.exact,
    "weight [dim, 1, w]": lambda case: case.single_row,
}

PAIR = Pair(
    name="causal_conv1d",
    fuzz=lambda case, inputs: inputs.keys() - {"form", "dim", "width"},
    version=1,
    case=ConvCase,
    cases=cases(),
    inputs=inputs,
    reference=apply_reference,
    optimized=apply_optimized,
    bound=bound,
    mutates={"conv_states": written},
    result_layout=result_layout,
    layouts=ARGUMENT_LAYOUTS,
    indices=INDICES,
    relations=_causal_conv1d_relations.RELATIONS,
    paths=kernel_paths("conv_"),
    bad=_causal_conv1d_bad.BAD,
    edges=EDGES,
    sharp=lambda case: case.exact or case.dtype == "float32",
    bench=_causal_conv1d_bench.ROWS,
    bench_case=ConvCase(
        seed=8, dtype="bfloat16", form="varlen", dim=256, width=4, lengths=(100, 28), indexed=True, initial="some", silu=True,
        layout={"x": "turned", "conv_states": "turned"}, int32=("query_start_loc", "cache_indices"),
    ),
    memory="on the stack of each thread: taps and history of 1,024 channels, 34 KiB at most",
)
