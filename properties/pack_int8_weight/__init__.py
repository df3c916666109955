"""pack_int8_weight and its inverse on trial: bytes that move into panels and back, zeros around them, and sums of rows."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernelpair.call.values import generator
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Signature
from optimized.int8_linear import PackedInt8Weight
from properties.shared import packed_weights
from properties.shared.strategies import any_of, around, common, together
from properties.shared.wrong_calls import cast, changed
from properties.thresholds import branches
from reference import pack_int8_weight as reference

RESULTS = ("data", "sums", "unpacked")
DEPTHS = (1, 2, 3, 4, 5, *around(32, 64, 128), 1023)  # K
SHAPES = ((28_672, 24), (70, 14_336), (1, 65_536), (5120, 320))
VALUES = ("any", "any", "ends", "lowest")
LAYOUTS = {"weight": packed_weights.WEIGHT_LAYOUTS}


@dataclass(frozen=True, kw_only=True)
class PackInt8Case(packed_weights.WeightCase):
    """A weight [N, K] of bytes."""

    values: str = "any"
    """`ends`: -128 and 127 alone; `lowest`: -128 alone, the largest sums."""


FIELDS = together({**common(LAYOUTS, []), "values": any_of(*VALUES)})
STRATEGY = packed_weights.of_sizes(PackInt8Case, FIELDS, packed_weights.OUTPUTS, DEPTHS, 65_536)
MODELS = packed_weights.of_models(PackInt8Case, FIELDS, SHAPES)


def inputs(case: PackInt8Case) -> Inputs:
    """Bytes."""
    drawn = generator(case.seed, "weight").integers(-128, 127, size=(case.N, case.K), dtype="int8", endpoint=True)
    weight = torch.from_numpy(drawn)
    if case.values == "ends":
        weight = torch.where(weight < 0, -128, 127).to(torch.int8)
    return {"weight": torch.full_like(weight, -128) if case.values == "lowest" else weight}


def _reference(weight: Tensor, unpacked_as: str = "") -> tuple[Tensor, Tensor, Tensor]:
    data, sums = reference.pack_int8_weight(weight)
    return data, sums, reference.unpack_int8_weight(*packed_weights.given_back(data, weight, unpacked_as))


def packed_and_back(weight: Tensor, unpacked_as: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """The kernel: packed, and unpacked again, in a wrong call as something else."""
    packed = PackedInt8Weight.pack(weight)
    return packed.data, packed.sums, packed_weights.back_from(packed, weight, unpacked_as)


def _part(given: Inputs, first: int) -> Inputs:
    return {"weight": given["weight"][first:].clone()}


PAIR = Pair(
    name="pack_int8_weight",
    reference=_reference,
    optimized=packed_and_back,
    cases=Cases(type=PackInt8Case, version=1, strategy=STRATEGY, inputs=inputs, models=MODELS),
    signature=Signature(results=RESULTS, dtypes=(), layouts=LAYOUTS),
    truth=Exact(),
    relations=packed_weights.relations({"unpacked": "weight"}, RESULTS, _part, {"data": 32, "sums": 1}),
    wrong_calls={
        **packed_weights.wrong_calls(),
        "too_long": changed("weight", lambda weight: weight.new_zeros(1, 65_537), ValueError),
        "unpacked_too_long": packed_weights.unpacked("too long", ValueError, "K"),
        "floats": cast("weight", torch.float32),
        "unsigned": cast("weight", torch.uint8),
    },
    coverage=Coverage(
        edges={
            **packed_weights.edges(block=64),
            "K that cuts a quad": lambda case: case.K % 4 > 0,
            "lowest sums": lambda case: case.values == "lowest" and case.K > 512,
        },
        measures=packed_weights.MEASURES,
        branches=partial(branches, "pack_int8_weight"),
    ),
)
