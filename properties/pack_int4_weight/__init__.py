"""pack_int4_weight and its inverse on trial: two codes in a byte, scales and zero points of panels, zeros around them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import FAR, FAR_PARAMETERS
from kernelpair.call.values import generator, uniform
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Relation, Signature
from kernelpair.trial.session import Session
from optimized.int4_linear import PackedInt4Weight
from properties.shared import packed_weights
from properties.shared.strategies import any_of, around, common, either, float_dtypes, together
from properties.shared.wrong_calls import INF, NAN, anywhere, cast, grown, made, replaced, setting
from properties.thresholds import branches
from reference import pack_int4_weight as reference

RESULTS = ("data", "packed_scales", "packed_zeros", "unpacked", "unpacked_scales", "unpacked_zeros")
DEPTHS = (1, 2, 3, *around(32, 64, 128), 1023)  # K
SHAPES = ((28_672, 24), (70, 14_336), (1, 65_536), (4096, 256))
GROUPS = (128, 32, 64, 96, 2, 48, 5, 1, -1, packed_weights.WIDE + 48)
SMALLEST = 1e-40  # of scales that are subnormal
LAYOUTS = {"codes": packed_weights.WEIGHT_LAYOUTS, "scales": (*FAR_PARAMETERS, FAR), "zeros": (*FAR_PARAMETERS, FAR)}


@dataclass(frozen=True, kw_only=True)
class PackInt4Case(packed_weights.WeightCase):
    """Codes [N, K] with a scale, and perhaps a zero point, for each group of columns."""

    group: int = 128
    points: bool = True
    """Zero points; without them all are 8."""
    magnitude: float = 1.0
    """Of the scales, as far as their dtype holds it."""


FIELDS = together({
    **common(LAYOUTS, []),
    "dtype": float_dtypes,
    "group": any_of(*GROUPS),
    "points": either,
    "magnitude": any_of(1.0, 1.0, 3e38, SMALLEST),
})  # fmt: skip


def _sized(**fields: Any) -> PackInt4Case:
    """Of half of the longest weights each column is a group."""
    case = PackInt4Case(**fields)
    return replace(case, group=1) if case.K >= packed_weights.LONG and case.seed % 2 else case


def inputs(case: PackInt4Case) -> Inputs:
    """All codes, zero points up to 16, and scales of either sign."""
    groups = 1 if case.group == -1 else -(-case.K // case.group)
    codes = generator(case.seed, "codes").integers(0, 15, size=(case.N, case.K), dtype="uint8", endpoint=True)
    zeros = generator(case.seed, "zeros").integers(0, 16, size=(case.N, groups), dtype="uint8", endpoint=True)
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.magnitude == SMALLEST:
        scales = (uniform(case.seed, "scales", (case.N, groups)) * SMALLEST).to(dtype)
    else:
        scales = uniform(case.seed, "scales", (case.N, groups), dtype, min(case.magnitude, torch.finfo(dtype).max))
    points = torch.from_numpy(zeros) if case.points else None
    return {"codes": torch.from_numpy(codes), "scales": scales, "zeros": points, "group_size": case.group}


def _turned(name: str, tensor: Tensor) -> Tensor:
    """Packed or unpacked scales, zero points or codes whose packed bits are turned; scales get another sign, and 0 is none."""
    if tensor.is_floating_point():
        return torch.where(tensor == 0, 3.0, -tensor)
    return packed_weights.turned(tensor) & 15 if name == "unpacked" else packed_weights.turned(tensor)


def _wrongly(packed: Tensor, how: str) -> Tensor:
    """Packed scales or zero points [panels, groups, 32], or in a wrong call something else in their place."""
    if how == "fewer":
        return packed[:, :-1].clone()
    if how == "narrower":
        return packed[..., :-1].clone()
    if how == "flat":
        return packed.flatten(1)
    if how == packed_weights.TURNED_BITS:
        return _turned("", packed)
    if how == "spread":
        return packed.repeat_interleave(2, -1)[..., ::2]
    return packed.view(packed_weights.OTHER_DTYPES[packed.dtype]) if how == "bits" else packed


def _parts(scales: Tensor, zeros: Tensor, unpacked_as: str) -> dict[str, Any]:
    """Packed scales and zero points as unpacking gets them, in a wrong call as something else."""
    named = (("scales", scales), ("zeros", zeros))
    return {name: _wrongly(packed_weights.moved(part), unpacked_as.removeprefix(f"{name} ")) for name, part in named}


def _reference(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, unpacked_as: str = ""
) -> tuple[Tensor, ...]:
    packed = reference.pack_int4_weight(codes, scales, zeros, group_size)
    data, N, K = packed_weights.given_back(packed_weights.moved(packed[0]), codes, unpacked_as)
    parts = _parts(*packed[1:], unpacked_as)
    return (*packed, *reference.unpack_int4_weight(data, **parts, N=N, K=K, group_size=group_size))


def packed_and_back(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, unpacked_as: str = ""
) -> tuple[Tensor, ...]:
    """The kernel: packed, and unpacked again, in a wrong call as something else."""
    packed = PackedInt4Weight.pack(codes, scales, zeros, group_size)
    given = replace(packed, **_parts(packed.scales, packed.zeros, unpacked_as))
    return packed.data, packed.scales, packed.zeros, *packed_weights.back_from(given, codes, unpacked_as)


def _part(given: Inputs, first: int) -> Inputs:
    rest = {name: given[name][first:].clone() for name in ("codes", "scales", "zeros") if given[name] is not None}
    return given | rest


def _eights(case: PackInt4Case, session: Session) -> None:
    """Zero points of 8 are none, and none are 8."""
    given = session.inputs()
    wanted = None if case.points else torch.full(given["scales"].shape, 8, dtype=torch.uint8)
    base = session.first.outputs
    if case.points:
        eights = given | {"zeros": torch.full(given["scales"].shape, 8, dtype=torch.uint8)}
        base = session.run(replace(case, layout={}), eights, judged=False).outputs
    got = session.run(replace(case, layout={}, points=not case.points), given | {"zeros": wanted}, judged=False).outputs
    for name in RESULTS:
        session.expect_same(name, got[name], base[name], "no zero points are 8")


def _too_long(case: PackInt4Case, given: Inputs) -> Inputs:
    """One column more than sums have room for."""
    return {"codes": torch.zeros(1, 2**20 + 1, dtype=torch.uint8), "scales": torch.ones(1, 1), "zeros": None, "group_size": -1}


def _dtype(case: PackInt4Case, result: str) -> torch.dtype:
    return torch.float32 if "scales" in result else torch.uint8


PAIR = Pair(
    name="pack_int4_weight",
    reference=_reference,
    optimized=packed_and_back,
    cases=Cases(
        type=PackInt4Case,
        version=1,
        strategy=packed_weights.of_sizes(_sized, FIELDS, packed_weights.OUTPUTS, DEPTHS),
        inputs=inputs,
        models=packed_weights.of_models(PackInt4Case, FIELDS, SHAPES),
    ),
    signature=Signature(results=RESULTS, result_dtype=_dtype, layouts=LAYOUTS),
    truth=Exact(),
    relations={
        **packed_weights.relations(
            {"unpacked": "codes", "unpacked_scales": "scales", "unpacked_zeros": "zeros"},
            RESULTS,
            _part,
            {"data": 32, "packed_scales": 32, "packed_zeros": 32, "unpacked": 1},
            _turned,
        ),
        "eights": Relation(_eights, "no zero points are 8"),
    },
    wrong_calls={
        **packed_weights.wrong_calls("codes", groups=("scales", "zeros")),
        "too_long": made(_too_long, ValueError, "codes", "K"),
        "signed": cast("codes", torch.int8),
        "code_above": anywhere("codes", 16),
        "scales_outputs": grown("scales", 0),
        "scales_groups": grown("scales", 1),
        "scales_integers": cast("scales", torch.int32),
        "scales_none": replaced("scales", None, TypeError),
        "scales_nan": anywhere("scales", NAN),
        "scales_infinite": anywhere("scales", INF, -INF),
        "zeros_groups": grown("zeros", 1),
        "zeros_dtype": cast("zeros", torch.int8),
        "zero_above": anywhere("zeros", 17),
        **{
            f"unpacked_{name}_{how}": packed_weights.unpacked(
                f"{name} {how}", TypeError if how == "bits" else ValueError, name, "N", "K", "group_size"
            )
            for name in ("scales", "zeros")
            for how in ("fewer", "narrower", "flat", "spread", "bits")
        },
        "group_zero": made(setting(group_size=0), ValueError, "group_size", "scales", "zeros"),
        "group_below": made(setting(group_size=-2), ValueError, "group_size", "scales", "zeros"),
    },
    coverage=Coverage(
        edges={
            **packed_weights.edges("codes"),
            "several groups": lambda case: 0 < case.group < case.K,
            "more groups than 16 bits count": lambda case: case.group == 1 and case.K > 2**16,
            "short last group": lambda case: case.group > 0 and case.K % case.group > 0,
            "no zero points": lambda case: not case.points,
            "zero points": lambda case: case.points,
            "subnormal scales": lambda case: case.magnitude == SMALLEST and case.dtype != "float16",
            "one group": lambda case: case.group == -1 and case.K > 1,
        },
        measures=packed_weights.MEASURES,
        branches=partial(branches, "pack_int4_weight"),
    ),
)
