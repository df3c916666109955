"""chunk_gated_delta_rule: what is timed."""

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from properties.chunk_gated_delta_rule.cases import ChunkCase

# --- bench ---


def _bench_inputs(lengths: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Inputs:
    T, HK, HV, D, N = sum(lengths), 16, 32, 128, len(lengths)
    return {
        "q": torch.randn(T, HK, D).to(dtype),
        "k": torch.randn(T, HK, D).to(dtype),
        "v": torch.randn(T, HV, D).to(dtype),
        "g": -0.1 * torch.rand(T, HV),
        "beta": torch.rand(T, HV).to(dtype),
        "state": torch.zeros(N, HV, D, D),
        "state_indices": torch.randperm(N),
        "has_initial_state": torch.zeros(N, dtype=torch.bool),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
    }


def _flops(lengths: tuple[int, ...]) -> float:
    """Of the token loop: three multiply-adds an element of the state and token."""
    return 2.0 * 3 * sum(lengths) * 32 * 128 * 128


def _blocked(lengths: tuple[int, ...]) -> float:
    """Of the rule in chunks of 64 tokens, the only form that has products of matrices. It also multiplies the keys and queries of
    a chunk with its keys, solves for the values and multiplies them; triangles count their own elements only."""
    chunks = [min(64, length - start) for length in lengths for start in range(0, length, 64)]
    with_keys = sum(2 * n * (n + 1) / 2 * 128 for n in chunks)
    with_values = sum((n * (n - 1) / 2 + n * (n + 1) / 2) * 128 for n in chunks)
    return _flops(lengths) + 2.0 * (16 * with_keys + 32 * with_values)


def _case(lengths: tuple[int, ...], dtype: torch.dtype) -> ChunkCase:
    return ChunkCase(
        dtype=str(dtype).removeprefix("torch."), form="pool", lengths=lengths, cold=tuple(range(len(lengths))),
        key_heads=16, group=2, K=128, V=128, eps=1e-5,
    )


BENCH_ROWS = [
    BenchRow(
        name,
        lambda lengths=lengths, dtype=dtype: _bench_inputs(lengths, dtype),  # type: ignore[misc]
        case=_case(lengths, dtype),
        flops=_flops(lengths),
        blocked=_blocked(lengths),
        floor=Floor(3.0) if dtype == torch.bfloat16 else None,
        counts=dtype == torch.bfloat16,
    )
    for name, lengths, dtype in (
        ("2048 tokens, 16/32 heads, 128x128", (2048,), torch.bfloat16),
        ("4 x 128 tokens, 16/32 heads, 128x128", (128,) * 4, torch.bfloat16),
        ("2048 tokens, 16/32 heads, 128x128, float32", (2048,), torch.float32),
    )
]
BENCH = Bench(
    rows=BENCH_ROWS,
    case=ChunkCase(
        seed=8, dtype="bfloat16", form="pool", lengths=(130, 64), key_heads=2, group=2, K=128, V=128,
        int32=("state_indices", "cu_seqlens"),
    ),
    memory="in each thread, kept between calls: the fp32 states of one key head's value heads (on vectors those of a share of "
    "their columns) and a chunk of 64 tokens; independent of the length",
)
