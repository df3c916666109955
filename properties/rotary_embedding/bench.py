"""rotary_embedding: what is timed."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.rotary_embedding.cases import RotaryCase

TOKENS = (1, 64, 1024)
ROWS = 4096
LAYERS = (  # name, query heads, key heads, width, rotated part, NeoX
    ("Llama-3", 32, 8, 128, 128, True),
    ("Qwen3", 32, 4, 128, 128, True),
    ("gpt-oss", 64, 8, 64, 64, True),
    ("DeepSeek q_pe", 128, 1, 64, 64, False),
    ("Qwen3-Next", 16, 2, 256, 64, True),
)


def _bench_inputs(tokens: int, heads: int, kv_heads: int, width: int, rotary: int, is_neox: bool) -> Inputs:
    angles = torch.rand(ROWS, rotary // 2) * 6
    return {
        "positions": torch.randint(0, ROWS, (tokens,)),
        "query": torch.randn(tokens, heads, width, dtype=torch.bfloat16),
        "key": torch.randn(tokens, kv_heads, width, dtype=torch.bfloat16),
        "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16),
        "is_neox": is_neox,
    }


def _torch_rotary(given: Inputs) -> Callable[[], object]:
    table, positions, rotary = given["cos_sin_cache"], given["positions"], given["cos_sin_cache"].shape[1]

    def rotate(heads: Tensor) -> None:
        cosines, sines = (half[:, None] for half in table[positions].chunk(2, dim=-1))
        part = heads[..., :rotary]
        x, y = part.chunk(2, dim=-1) if given["is_neox"] else (part[..., ::2], part[..., 1::2])
        new_x, new_y = x * cosines - y * sines, y * cosines + x * sines
        x.copy_(new_x)
        y.copy_(new_y)

    def call() -> None:
        rotate(given["query"])
        rotate(given["key"])

    return call


def _row(tokens: int, name: str, heads: int, kv_heads: int, width: int, rotary: int, is_neox: bool) -> BenchRow:
    return BenchRow(
        f"{name}: {tokens} x {heads}/{kv_heads} x {rotary} of {width}",
        lambda: _bench_inputs(tokens, heads, kv_heads, width, rotary, is_neox),
        case=RotaryCase(
            dtype="bfloat16", tokens=tokens, heads=heads, kv_heads=kv_heads, width=width, rotary=rotary, is_neox=is_neox
        ),
        bytes=4 * tokens * (heads + kv_heads) * rotary,
        peers={"torch": _torch_rotary},
    )


BENCH = Bench(
    rows=[_row(tokens, *layer) for layer in LAYERS for tokens in TOKENS],
    case=RotaryCase(seed=8, dtype="bfloat16", tokens=64, heads=32, kv_heads=8, width=128, rotary=128),
    memory="none",
)
