"""fp8_linear: what is timed."""

import torch

from kernelpair.contract.pair import Bench, Inputs
from kernelpair.timing.compare import in_order
from optimized import operator
from optimized.fp8_linear import fp8_linear
from properties.fp8_linear.cases import Fp8LinearCase, arguments, dense_weight
from properties.shared.linear_rows import linear_row

DEEPSEEK_V3 = ((7168, 2048), (2048, 7168), (7168, 18_432))  # N, K of its projections
ROWS = (1, 16, 64, 256)


def _inputs(M: int, N: int, K: int) -> Inputs:
    codes = torch.randint(0, 0x7F, (N, K), dtype=torch.uint8)
    scales = torch.rand(-(-N // 128), -(-K // 128)) / 64
    x = torch.randn(M, K, dtype=torch.bfloat16)
    data, kept = operator("pack_fp8_weight")(codes.view(torch.float8_e4m3fn), scales, 128, 128)
    return {"x": x, "data": data, "scales": kept, "N": N, "K": K, "block_n": 128, "block_k": 128, "bias": None}


BENCH = Bench(
    rows=[linear_row(M, N, K, _inputs, dense_weight) for N, K in DEEPSEEK_V3 for M in ROWS],
    case=Fp8LinearCase(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024, block="128x128"),
    prepare=lambda given: in_order(fp8_linear, arguments(**given)),
    memory="kept between calls: a copy of at most 1,024 rows of x, in fp32 on vectors and bf16 on tiles, with the sums of "
    "128 rows between slices of K (tiles); in each thread the decoded slice of a panel, 128 KiB (tiles) or 24 KiB, and "
    "0.8 MiB for the sums that wait (vectors)",
)
