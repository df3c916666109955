"""store_cache: what is timed."""

from collections.abc import Callable
from functools import partial

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from optimized import operator
from properties.store_cache.cases import StoreCacheCase

# --- bench ---


def _bench_inputs(rows: int) -> Inputs:
    k, v = torch.randn(2, rows, 8, 128, dtype=torch.bfloat16)
    k_cache, v_cache = torch.zeros(2, 2 * rows, 8, 128, dtype=torch.bfloat16)
    return {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "indices": torch.randperm(2 * rows)[:rows]}


def _case(rows: int) -> StoreCacheCase:
    return StoreCacheCase(dtype="bfloat16", rows=rows, heads=8, width_k=128, width_v=128, spare=rows)


def _torch_store(given: Inputs) -> Callable[[], None]:
    k, v, k_cache, v_cache, indices = given.values()

    def run() -> None:
        k_cache.index_copy_(0, indices, k)
        v_cache.index_copy_(0, indices, v)

    return run


def _memcpy(given: Inputs) -> Callable[[], None]:
    k, v, k_cache, v_cache, _ = given.values()

    def run() -> None:
        k_cache[: len(k)].copy_(k)
        v_cache[: len(v)].copy_(v)

    return run


BENCH_ROWS = [
    BenchRow(
        f"{rows} x 8 x 128",
        lambda rows=rows: _bench_inputs(rows),  # type: ignore[misc]
        case=_case(rows),
        bytes=2 * 2 * rows * 8 * 128 * 2,
        peers={"torch": _torch_store, "memcpy": _memcpy},
        floor=Floor(0.9, over="memcpy") if rows >= 1024 else None,
        counts=rows != 1024,
    )
    for rows in (1, 64, 1024, 4096)
] + [
    BenchRow(
        "1 x 8 x 128, the raw operator",
        lambda: _bench_inputs(1),
        case=_case(1),
        bytes=2 * 2 * 8 * 128 * 2,
        prepare=lambda given: partial(operator("store_cache").raw, *given.values()),
        floor=Floor(microseconds=5),
    )
]
BENCH = Bench(
    rows=BENCH_ROWS,
    memory="none",
)
