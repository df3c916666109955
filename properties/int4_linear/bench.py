"""int4_linear: what is timed."""

from dataclasses import replace
from typing import Literal

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from kernelpair.timing.compare import in_order
from optimized import operator
from optimized.int4_linear import int4_linear
from properties.int4_linear.cases import ACTIVATIONS, Int4Case, arguments, dense_weight
from properties.shared.linear_rows import linear_row

LLAMA_3_8B = ((4096, 4096), (28_672, 4096))  # N, K of its projections
ROWS = (1, 16, 64, 256)
GROUP = 128
CASE = Int4Case(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024, group=GROUP, points="nibble", scale="bfloat16")


def _inputs(M: int, N: int, K: int, activation: str) -> Inputs:
    codes, groups = torch.randint(0, 16, (N, K), dtype=torch.uint8), K // GROUP
    zeros = torch.randint(0, 16, (N, groups), dtype=torch.uint8)
    data, scales, kept_zeros = operator("pack_int4_weight")(codes, (torch.rand(N, groups) + 0.5) / 512, zeros, GROUP)
    weight: Inputs = {"data": data, "scales": scales, "zeros": kept_zeros, "N": N, "K": K, "group_size": GROUP}
    return {"x": torch.randn(M, K, dtype=torch.bfloat16), **weight, "bias": None, "activation": activation}


def _row(M: int, N: int, K: int, activation: Literal["x", "int8"]) -> BenchRow:
    per_weight = 0.5 + 2.5 / GROUP  # a code; for each group a scale of 16 bits and a zero point
    row = linear_row(M, N, K, lambda M, N, K: _inputs(M, N, K, activation), dense_weight, per_weight)
    return replace(row, name=f"{activation} {row.name}", case=replace(CASE, outer=(M,), N=N, K=K, activation=activation))


BENCH = Bench(
    rows=[_row(M, N, K, activation) for activation in ACTIVATIONS for N, K in LLAMA_3_8B for M in ROWS],
    case=CASE,
    prepare=lambda given: in_order(int4_linear, arguments(**given)),
    memory="kept between calls: a copy of at most 1,024 rows of x, in fp32 on vectors, bf16 on tiles and bytes in int8, with "
    "the sums of 128 rows between slices of K (tiles); in each thread the decoded slice of a panel, 128 KiB (tiles) or 24 KiB, "
    "and 0.8 MiB for the sums that wait (vectors)",
)
