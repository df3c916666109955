"""pack_fp8_weight and its inverse on trial: codes that move into panels and back, zeros around them, and a copy of the scales."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernelpair.call.layout import FAR, FAR_PARAMETERS
from kernelpair.call.values import generator, uniform
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Signature
from optimized.fp8_linear import PackedFp8Weight
from properties.shared import packed_weights
from properties.shared.strategies import any_of, around, common, together
from properties.shared.wrong_calls import INF, NAN, anywhere, cast, changed, grown, replaced
from properties.thresholds import branches
from reference import pack_fp8_weight as reference

RESULTS = ("data", "scales", "unpacked")
DEPTHS = (1, 2, 3, *around(32, 64, 128), 1023)  # K
SHAPES = ((18_432, 24), (70, 7168), (1, 65_536), (2048, 320))
BLOCKS = (
    (128, 128), (64, 128), (32, 64), (5, 48), (3, 5), (1, 1), (1, 65_536), (65_536, 65_536),
    (packed_weights.WIDE + 3, packed_weights.WIDE + 5),
)  # fmt: skip
MAGNITUDES = (1.0, 1.0, 3e38, 1e-40)  # times a code, which packing does not do, they would be infinite or 0
LAYOUTS = {"weight": packed_weights.WEIGHT_LAYOUTS, "scales": (*FAR_PARAMETERS, FAR)}


@dataclass(frozen=True, kw_only=True)
class PackFp8Case(packed_weights.WeightCase):
    """A weight [N, K] of any codes, with a scale for each block."""

    block: tuple[int, int] = (128, 128)
    magnitude: float = 1.0
    """Of the scales."""


FIELDS = together({**common(LAYOUTS, []), "block": any_of(*BLOCKS), "magnitude": any_of(*MAGNITUDES)})
STRATEGY = packed_weights.of_sizes(PackFp8Case, FIELDS, packed_weights.OUTPUTS, DEPTHS)
MODELS = packed_weights.of_models(PackFp8Case, FIELDS, SHAPES)


def inputs(case: PackFp8Case) -> Inputs:
    """All 256 codes, NaN among them, and scales of either sign, zeros too."""
    codes = generator(case.seed, "weight").integers(0, 255, size=(case.N, case.K), dtype="uint8", endpoint=True)
    block_n, block_k = case.block
    scales = uniform(case.seed, "scales", (-(-case.N // block_n), -(-case.K // block_k)), scale=case.magnitude)
    scales[-1, -1] = (0.0, -0.0, scales[-1, -1])[case.seed % 3]
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return {"weight": weight, "scales": scales, "block_n": block_n, "block_k": block_k}


def _codes(weight: Tensor) -> Tensor:
    return weight.view(torch.uint8)


def _reference(
    weight: Tensor, scales: Tensor, block_n: int, block_k: int, unpacked_as: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    data, kept = reference.pack_fp8_weight(weight, scales, block_n, block_k)
    return data, kept, _codes(reference.unpack_fp8_weight(*packed_weights.given_back(data, weight, unpacked_as)))


def packed_and_back(
    weight: Tensor, scales: Tensor, block_n: int, block_k: int, unpacked_as: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel: packed, and unpacked again, in a wrong call as something else."""
    packed = PackedFp8Weight.pack(weight, scales, (block_n, block_k))
    return packed.data, packed.scales, _codes(packed_weights.back_from(packed, weight, unpacked_as))


def _part(given: Inputs, first: int) -> Inputs:
    """Under one scale, whose blocks need not begin where panels do."""
    rest = _codes(given["weight"])[first:].clone().view(torch.float8_e4m3fn)
    N, K = rest.shape
    return {"weight": rest, "scales": torch.ones(1, 1), "block_n": N, "block_k": K}


PAIR = Pair(
    name="pack_fp8_weight",
    reference=_reference,
    optimized=packed_and_back,
    cases=Cases(type=PackFp8Case, version=1, strategy=STRATEGY, inputs=inputs, models=MODELS),
    signature=Signature(results=RESULTS, dtypes=(), layouts=LAYOUTS),
    truth=Exact(),
    relations=packed_weights.relations({"unpacked": "weight"}, RESULTS, _part, {"data": 32}),
    wrong_calls={
        **packed_weights.wrong_calls(groups=("scales",)),
        "floats": cast("weight", torch.float32),
        "bytes": cast("weight", torch.uint8),
        "other_fp8": cast("weight", torch.float8_e5m2),
        "codes_of_no_negative_zero": cast("weight", torch.float8_e4m3fnuz),
        "scales_outputs": grown("scales", 0),
        "scales_columns": grown("scales", 1),
        "scales_rank": changed("scales", lambda scales: scales[0], ValueError),
        "scales_dtype": cast("scales", torch.bfloat16),
        "scales_none": replaced("scales", None, TypeError),
        "scales_nan": anywhere("scales", NAN),
        "scales_infinite": anywhere("scales", INF, -INF),
        "block_n_zero": replaced("block_n", 0, ValueError, "block_n", "scales"),
        "block_k_negative": replaced("block_k", -1, ValueError, "block_k", "scales"),
    },
    coverage=Coverage(
        edges={
            **packed_weights.edges(),
            "one scale": lambda case: case.block == (65_536, 65_536),
            "a scale for each output": lambda case: case.block == (1, 65_536) and case.N > 1,
            "partial scale blocks": lambda case: case.N % case.block[0] > 0 and case.K % case.block[1] > 0,
        },
        measures=packed_weights.MEASURES,
        branches=partial(branches, "pack_fp8_weight"),
    ),
)
