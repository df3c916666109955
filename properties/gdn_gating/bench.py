"""gdn_gating: what is timed."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.gdn_gating.cases import GatingCase

# --- bench ---


def _bench_inputs(rows: int) -> Inputs:
    a, b = torch.randn(2, rows, 32, dtype=torch.bfloat16)
    return {"A_log": torch.randn(32), "a": a, "b": b, "dt_bias": torch.randn(32)}


def _torch_gating(given: Inputs) -> Callable[[], object]:
    A_log, a, b, dt_bias = (given[name] for name in ("A_log", "a", "b", "dt_bias"))
    return lambda: (-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias), b.sigmoid())


BENCH = Bench(
    rows=[
        BenchRow(
            f"{rows} x 32",
            lambda rows=rows: _bench_inputs(rows),  # type: ignore[misc]
            case=GatingCase(dtype="bfloat16", rows=rows, heads=32, wide=("A_log", "dt_bias")),
            bytes=rows * 32 * 10,
            peers={"torch": _torch_gating},
        )
        for rows in (1, 64, 1024)
    ],
    case=GatingCase(seed=8, dtype="bfloat16", rows=64, heads=32, wide=("A_log",)),
    memory="none",
)
