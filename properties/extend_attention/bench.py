"""Prefill of realistic size, against torch's attention over the same keys laid out contiguously."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from properties.extend_attention.cases import ExtendAttentionCase


def _inputs(batch: int, prefix: int, extend: int, heads: int, kv_heads: int, width: int, width_v: int,
            dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(7)
    slots, tokens = batch * max(prefix, 1), batch * extend

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    table = torch.zeros(batch, prefix + extend, dtype=torch.int32)
    table[:, :prefix] = torch.randperm(slots, generator=generator)[: batch * prefix].view(batch, prefix)
    return {
        "q": normal(tokens, heads, width),
        "k": normal(tokens, kv_heads, width),
        "v": normal(tokens, kv_heads, width_v),
        "out": torch.empty(tokens, heads, width_v, dtype=dtype),
        "k_cache": normal(slots, kv_heads, width),
        "v_cache": normal(slots, kv_heads, width_v),
        "req_to_token": table,
        "req_pool_indices": torch.arange(batch),
        "seq_lens": torch.full((batch,), prefix + extend),
        "extend_seq_lens": torch.full((batch,), extend),
        "extend_start_loc": torch.arange(batch) * extend,
        "encoder_lens": None,
        "sinks": None,
        "sm_scale": width**-0.5,
    }


def _torch_attention(given: Inputs) -> Callable[[], object]:
    """scaled_dot_product_attention on keys that lie as it likes them best: [B, Hkv, L, D]."""
    batch, length, extend = len(given["seq_lens"]), int(given["seq_lens"][0]), int(given["extend_seq_lens"][0])
    cached = given["req_to_token"][:, : length - extend].long()

    def whole(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([cache[cached], new.unflatten(0, (batch, extend))], dim=1).transpose(1, 2).contiguous()

    k, v = whole(given["k_cache"], given["k"]), whole(given["v_cache"], given["v"])
    q = given["q"].unflatten(0, (batch, extend)).transpose(1, 2).contiguous()
    mask = None if extend == length else torch.ones(extend, length, dtype=torch.bool).tril(length - extend)
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, mask, is_causal=mask is None, scale=given["sm_scale"], enable_gqa=q.shape[1] != k.shape[1])


def _row(name: str, batch: int, prefix: int, extend: int, heads: int = 32, kv_heads: int = 8, width: int = 128,
         width_v: int = 128, dtype: torch.dtype = torch.bfloat16, floor: float = 0.0, series: str = "") -> BenchRow:
    scores = batch * sum(prefix + i + 1 for i in range(extend))
    return BenchRow(
        name,
        lambda: _inputs(batch, prefix, extend, heads, kv_heads, width, width_v, dtype),
        case=ExtendAttentionCase(
            dtype=str(dtype).removeprefix("torch."), extends=(extend,) * batch, prefixes=(prefix,) * batch, heads=heads,
            kv_heads=kv_heads, width=width, width_v=width_v, scattered=True, int32=("req_to_token",),
        ),
        flops=2.0 * scores * heads * (width + width_v),
        bytes=float(batch * ((prefix + extend) * kv_heads + 2 * extend * heads) * (width + width_v) * dtype.itemsize),
        peers={"torch": _torch_attention},
        floor=Floor(0.5, over="torch") if dtype != torch.bfloat16 else Floor(floor) if floor else None,
        counts=floor > 0,
        series=series,
        size=extend if series else 0,
    )


BENCH_ROWS = [
    _row("1,024 new, 32/8 heads", 1, 0, 1024, floor=2.0),
    _row("4,096 new, 32/8 heads", 1, 0, 4096, floor=2.0),
    _row("512 cached + 128 new, B 4", 4, 512, 128, floor=2.5),
    _row("1,024 cached + 16 new", 1, 1024, 16),
    _row("expanded MLA 1,024 new, 16 heads, 192/128", 1, 0, 1024, 16, 16, 192, 128),
    _row("1,024 new, 32/8 heads, float16", 1, 0, 1024, dtype=torch.float16),
    _row("1,024 new, 32/8 heads, float32", 1, 0, 1024, dtype=torch.float32),
    *(_row(f"{new:,} new, 32/8 heads (series)", 1, 0, new, series="prefill") for new in (2**k for k in range(7, 14))),
]


BENCH = Bench(
    rows=BENCH_ROWS,
    case=ExtendAttentionCase(
        seed=8, dtype="bfloat16", extends=(128, 17), prefixes=(100, 0), heads=8, kv_heads=2, width=128, width_v=128,
        scattered=True, int32=("req_to_token", "extend_seq_lens", "extend_start_loc"),
    ),
    memory="in each thread, kept between calls: queries and sums of at most 16 units of 32 rows, one packed block of at most "
    "256 keys and values, 34 KiB of scores. It depends on head sizes only, never on a length",
)
