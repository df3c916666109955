"""pack_linear_weight and its inverse on trial: bits that move into panels and back, padding that is zero."""

from functools import partial

import torch
from torch import Tensor

from kernelpair.call.values import generator
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Signature
from optimized.packed_linear import PackedWeight
from properties.shared import packed_weights
from properties.shared.strategies import any_of, around, common, together
from properties.shared.wrong_calls import cast
from properties.thresholds import branches
from reference import pack_linear_weight as reference

OUTPUTS = (1, 7, 12, *around(16), 24, *around(32, 48, 64), 416)  # N
DEPTHS = (1, 2, 3, *around(32, 64), 96, 512)  # K
SHAPES = ((152_064, 24), (70, 14_336), (2304, 900), (5120, 320))
LAYOUTS = {"weight": packed_weights.WEIGHT_LAYOUTS}


FIELDS = together({**common(LAYOUTS, []), "dtype": any_of("float32", "bfloat16", "float16")})
STRATEGY = packed_weights.of_sizes(packed_weights.WeightCase, FIELDS, OUTPUTS, DEPTHS)
MODELS = packed_weights.of_models(packed_weights.WeightCase, FIELDS, SHAPES)


def inputs(case: packed_weights.WeightCase) -> Inputs:
    """Every bit pattern of the dtype."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    drawn = generator(case.seed, "weight").integers(0, 256, size=(case.N, case.K * dtype.itemsize), dtype="uint8")
    return {"weight": torch.from_numpy(drawn).view(dtype)}


def _both(weight: Tensor, unpacked_as: str = "") -> tuple[Tensor, Tensor]:
    packed = reference.pack_linear_weight(weight)
    return packed, reference.unpack_linear_weight(*packed_weights.given_back(packed, weight, unpacked_as))


def packed_and_back(weight: Tensor, unpacked_as: str = "") -> tuple[Tensor, Tensor]:
    """The kernel: packed, and unpacked again, in a wrong call as something else."""
    packed = PackedWeight.pack(weight)
    return packed.data, packed_weights.back_from(packed, weight, unpacked_as)


def _part(given: Inputs, first: int) -> Inputs:
    return {"weight": given["weight"][first:].clone()}


PAIR = Pair(
    name="pack_linear_weight",
    reference=_both,
    optimized=packed_and_back,
    cases=Cases(
        type=packed_weights.WeightCase,
        version=1,
        strategy=STRATEGY,
        inputs=inputs,
        models=MODELS,
    ),
    signature=Signature(
        results=("packed", "unpacked"),
        layouts=LAYOUTS,
    ),
    truth=Exact(),
    relations=packed_weights.relations({"unpacked": "weight"}, ("packed", "unpacked"), _part, {"packed": 32}),
    wrong_calls={**packed_weights.wrong_calls(data="packed_weight"), "integers": cast("weight", torch.int32)},
    coverage=Coverage(
        edges={
            **packed_weights.edges(),
            "K = 1": lambda case: case.K == 1,
        },
        measures=packed_weights.MEASURES,
        branches=partial(branches, "pack_linear_weight"),
    ),
)
