"""packed_linear: what is timed."""

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from kernelpair.timing.compare import in_order
from optimized import operator
from optimized.packed_linear import packed_linear
from properties.packed_linear.cases import LinearCase, arguments
from reference.pack_linear_weight import unpack_linear_weight

# --- bench ---


def _bench_inputs(rows: int, dtype: torch.dtype) -> Inputs:
    x = torch.randn(rows, 4096).to(dtype)
    packed = operator("pack_linear_weight")((torch.randn(4096, 4096) / 64).to(dtype))
    return {"x": x, "packed_weight": packed, "N": 4096, "K": 4096, "bias": None}


def _torch_linear(given: Inputs):  # type: ignore[no-untyped-def]
    weight = unpack_linear_weight(given["packed_weight"], given["N"], given["K"])
    return lambda: torch.nn.functional.linear(given["x"], weight)


def _row(rows: int, floor: Floor, dtype: torch.dtype = torch.bfloat16) -> BenchRow:
    bf16 = dtype == torch.bfloat16
    return BenchRow(
        f"{rows} x 4096 x 4096" + ("" if bf16 else f", {str(dtype).removeprefix('torch.')}"),
        lambda: _bench_inputs(rows, dtype),
        case=LinearCase(dtype=str(dtype).removeprefix("torch."), outer=(rows,), N=4096, K=4096),
        flops=2.0 * rows * 4096 * 4096,
        bytes=dtype.itemsize * 4096.0 * (4096 + 2 * rows),
        peers={"torch": _torch_linear},
        floor=floor,
        counts=bf16,
        alone=True,
    )


BENCH_ROWS = [
    *(_row(rows, Floor(ratio)) for rows, ratio in ((1, 1.0), (16, 1.0), (64, 1.15), (256, 1.35), (1024, 1.15))),
    *(_row(256, Floor(0.5, over="torch"), dtype) for dtype in (torch.float16, torch.float32)),
]
BENCH = Bench(
    rows=BENCH_ROWS,
    case=LinearCase(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024),
    prepare=lambda given: in_order(packed_linear, arguments(**given)),
    memory="kept between calls: a copy of at most 1,024 rows of x, in fp32 on vectors and bf16 on tiles, with the sums of "
    "128 rows between slices of K (tiles); in each thread 0.8 MiB for the sums that wait (vectors)",
)
