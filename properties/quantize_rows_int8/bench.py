"""quantize_rows_int8: what is timed."""

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.quantize_rows_int8.cases import QuantizeCase


def _torch(given: Inputs):  # type: ignore[no-untyped-def]
    """The symmetric form as three calls of torch."""
    x = given["x"]

    def quantized() -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        return (x / scale).round_().to(torch.int8)

    return quantized


def _row(rows: int, symmetric: bool = True) -> BenchRow:
    return BenchRow(
        f"{rows} x 4096" + ("" if symmetric else ", zero points"),
        lambda: {"x": torch.randn(rows, 4096, dtype=torch.bfloat16), "symmetric": symmetric},
        bytes=3.0 * rows * 4096,
        peers={"torch": _torch} if symmetric else {},
    )


BENCH = Bench(
    rows=[_row(64), _row(1024), _row(1024, symmetric=False)],
    case=QuantizeCase(seed=3, dtype="bfloat16", rows=16, width=1024),
    memory="none",
)
