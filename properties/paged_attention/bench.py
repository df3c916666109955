"""Paged prefill and decode steps of realistic size, against torch's attention over the same keys laid out contiguously."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from optimized import operator
from properties.paged_attention.cases import PagedAttentionCase


def _inputs(batch: int, rows: int, keys: int, page: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(7)
    columns = (keys + page - 1) // page
    pages = batch * columns

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "q": normal(batch * rows, heads, width).to(torch.bfloat16),
        "k_cache": normal(pages, page, kv_heads, width).to(dtype),
        "v_cache": normal(pages, page, kv_heads, width).to(dtype),
        "page_table": torch.randperm(pages, generator=generator).view(batch, columns).int(),
        "cache_seqlens": torch.full((batch,), keys),
        "cu_seqlens_q": torch.arange(batch + 1) * rows,
        "causal": True,
    }


def _torch_attention(given: Inputs) -> Callable[[], object]:
    """scaled_dot_product_attention on keys that lie as it likes them best: [B, Hkv, L, D]."""
    batch, keys = len(given["cache_seqlens"]), int(given["cache_seqlens"][0])
    rows = len(given["q"]) // batch

    def whole(cache: torch.Tensor) -> torch.Tensor:
        return cache[given["page_table"].long()].flatten(1, 2)[:, :keys].to(torch.bfloat16).transpose(1, 2).contiguous()

    k, v = whole(given["k_cache"]), whole(given["v_cache"])
    q = given["q"].unflatten(0, (batch, rows)).transpose(1, 2).contiguous()
    mask = None if rows in (1, keys) else torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, mask, is_causal=rows == keys, enable_gqa=True)


def _extend_attention(given: Inputs) -> Callable[[], object]:
    """The same work by extend_attention: the last rows of each request are new, the slots of the keys before them permuted."""
    batch, keys = len(given["cache_seqlens"]), int(given["cache_seqlens"][0])
    rows, page = len(given["q"]) // batch, given["k_cache"].shape[1]
    k_cache, v_cache = (given[name].flatten(0, 1) for name in ("k_cache", "v_cache"))
    slots = (given["page_table"].long()[:, :, None] * page + torch.arange(page)).flatten(1)[:, :keys]
    new = slots[:, keys - rows :].flatten()
    arguments = {
        "q": given["q"], "k": k_cache[new], "v": v_cache[new], "out": torch.empty_like(given["q"]), "k_cache": k_cache,
        "v_cache": v_cache, "req_to_token": slots.int(), "req_pool_indices": torch.arange(batch),
        "seq_lens": given["cache_seqlens"], "extend_seq_lens": torch.full((batch,), rows),
        "extend_start_loc": torch.arange(batch) * rows, "encoder_lens": None, "sinks": None,
        "sm_scale": given["q"].shape[2] ** -0.5,
    }
    call = operator("extend_attention")
    return lambda: call(**arguments)


def _row(name: str, batch: int, rows: int, keys: int, page: int, dtype: torch.dtype = torch.bfloat16) -> BenchRow:
    prefill = rows > 1 and dtype == torch.bfloat16
    heads, kv_heads, width = 32, 8, 128
    scores = batch * sum(keys - rows + i + 1 for i in range(rows))
    return BenchRow(
        f"{name}, page {page}",
        lambda: _inputs(batch, rows, keys, page, heads, kv_heads, width, dtype),
        flops=4.0 * scores * heads * width,
        bytes=2.0 * batch * (keys * kv_heads * width * dtype.itemsize + rows * heads * width * 2),
        peers={"torch": _torch_attention},
        kin={"extend_attention": _extend_attention} if prefill else {},
        floor=Floor(0.9, over="extend_attention") if prefill else None,
        counts=prefill,
    )


BENCH_ROWS = [
    row
    for page in (16, 128)
    for row in (
        _row("1,024 new", 1, 1024, 1024, page),
        _row("4,096 new", 1, 4096, 4096, page),
        _row("512 cached + 128 new, B 4", 4, 128, 640, page),
        _row("decode B 1, L 8192", 1, 1, 8192, page),
        _row("decode B 16, L 1024", 16, 1, 1024, page),
    )
] + [
    _row("512 cached + 128 new, B 4, float8", 4, 128, 640, 16, torch.float8_e4m3fn),
    _row("decode B 1, L 8192, float8", 1, 1, 8192, 16, torch.float8_e4m3fn),
    _row("decode B 16, L 1024, float8", 16, 1, 1024, 16, torch.float8_e4m3fn),
]


BENCH = Bench(
    rows=BENCH_ROWS,
    case=PagedAttentionCase(
        seed=8, dtype="bfloat16", rows=(64, 1), lens=(300, 200), page=64, heads=8, kv_heads=2, width=128, width_v=128,
        causal=True, scattered=True, poison="outlier", int32=("page_table", "cache_seqlens", "cu_seqlens_q"),
    ),
    memory="as extend_attention; steps of one row a request as decode_attention, of float8 with the numbers of one block of at "
    "most 36 KiB of keys and its values in each thread, and if keys are split one allocation a call for their sums: requests x "
    "heads x splits x (Dv + 1) floats",
)
