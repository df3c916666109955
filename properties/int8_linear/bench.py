"""int8_linear: what is timed."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bench, Inputs
from kernelpair.timing.compare import in_order
from optimized import operator
from properties.int8_linear.cases import Int8Case, optimized_call
from properties.shared.linear_rows import linear_row
from reference.pack_int8_weight import unpack_int8_weight

LLAMA_3_8B = ((4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336))  # N, K of its projections
ROWS = (1, 16, 64, 256, 1024)


def _inputs(M: int, N: int, K: int) -> Inputs:
    data, sums = operator("pack_int8_weight")(torch.randint(-128, 128, (N, K), dtype=torch.int8))
    x = torch.randn(M, K, dtype=torch.bfloat16)
    w_scale = torch.full((N,), 1e-3)
    weight: Inputs = {"data": data, "sums": sums, "N": N, "K": K, "w_scale": w_scale}
    return {"form": "linear", "x": x, **weight, "bias": None, "symmetric": True}


def _dense(given: Inputs) -> Tensor:
    """The weight dequantized: the layer that quantizing is to be faster than."""
    return unpack_int8_weight(given["data"], given["N"], given["K"]) * given["w_scale"][:, None]


BENCH = Bench(
    rows=[linear_row(M, N, K, _inputs, _dense) for N, K in LLAMA_3_8B for M in ROWS],
    case=Int8Case(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024),
    prepare=lambda given: in_order(*optimized_call(**given)),
    memory="kept between calls: a copy of at most 1,024 rows of x in bytes (two for each on vectors without VNNI), with the sums "
    "of 128 rows between slices of K (tiles); in each thread 0.8 MiB for the sums that wait (vectors)",
)
