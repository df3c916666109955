"""merge_state: what is timed."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.merge_state.cases import MergeCase

HEADS, WIDTH = 32, 128


def _bench_inputs(rows: int) -> Inputs:
    v_a, v_b = torch.randn(2, rows, HEADS, WIDTH, dtype=torch.bfloat16)
    lse_a, lse_b = torch.randn(2, rows, HEADS)
    return {"v_a": v_a, "lse_a": lse_a, "v_b": v_b, "lse_b": lse_b}


def _torch_merge(given: Inputs) -> Callable[[], object]:
    v_a, lse_a, v_b, lse_b = (given[name] for name in ("v_a", "lse_a", "v_b", "lse_b"))

    def call() -> object:
        share = torch.sigmoid(lse_a - lse_b)[..., None].to(v_a.dtype)
        return torch.lerp(v_b, v_a, share), torch.logaddexp(lse_a, lse_b)

    return call


BENCH = Bench(
    rows=[
        BenchRow(
            f"{rows} x {HEADS} x {WIDTH}",
            lambda rows=rows: _bench_inputs(rows),  # type: ignore[misc]
            bytes=rows * HEADS * (3 * WIDTH * 2 + 3 * 4),
            peers={"torch": _torch_merge},
        )
        for rows in (1, 64, 1024)
    ],
    case=MergeCase(seed=8, dtype="bfloat16", rows=64, heads=HEADS, width=WIDTH),
    memory="none",
)
