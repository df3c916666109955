"""Decode steps of realistic size, against torch's attention over the same keys laid out contiguously."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Alias, Bench, BenchRow, Floor, Inputs
from properties.decode_attention.cases import DecodeAttentionCase
from properties.mla_decode.bench import latent_attention


def _inputs(batch: int, length: int, heads: int, kv_heads: int, width: int, width_v: int, scattered: bool, shared: bool,
            dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(7)
    slots = batch * length

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    table = torch.randperm(slots, generator=generator) if scattered else torch.arange(slots)
    return {
        "q": normal(batch, heads, width),
        "k_cache": normal(slots, kv_heads, width),
        "v_cache": Alias("k_cache", lambda k_cache: k_cache[..., :width_v]) if shared else normal(slots, kv_heads, width_v),
        "out": torch.empty(batch, heads, width_v, dtype=dtype),
        "key": None,
        "value": None,
        "loc": None,
        "attn_logits": torch.empty(batch, heads, 8, width_v + 1),
        "req_to_token": table.view(batch, length).int(),
        "req_pool_indices": torch.arange(batch),
        "seq_lens": torch.full((batch,), length),
        "encoder_lens": None,
        "sinks": None,
        "sm_scale": width**-0.5,
    }


def _torch_attention(given: Inputs) -> Callable[[], object]:
    """scaled_dot_product_attention on keys as it likes them best, [B, Hkv, L, D]; latent_attention of a shared buffer."""
    heads, kv_heads = given["q"].shape[1], given["k_cache"].shape[1]
    slots = given["req_to_token"].long()
    if given["k_cache"].data_ptr() == given["v_cache"].data_ptr():
        keys, width_v = given["k_cache"][slots][:, :, 0], given["v_cache"].shape[2]
        return lambda: latent_attention(given["q"], keys, width_v, given["sm_scale"])
    k, v = (given[name][slots].transpose(1, 2).contiguous() for name in ("k_cache", "v_cache"))
    q = given["q"][:, :, None]
    grouped = heads != kv_heads

    def run() -> object:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=given["sm_scale"], enable_gqa=grouped)

    return run


def _row(name: str, batch: int, length: int, heads: int, kv_heads: int, width: int, width_v: int, scattered: bool = False,
         shared: bool = False, dtype: torch.dtype = torch.bfloat16, floor: float = 0.0, series: str = "") -> BenchRow:
    per_key = kv_heads * (width if shared else width + width_v) * dtype.itemsize
    return BenchRow(
        name + (", permuted slots" if scattered else ""),
        lambda: _inputs(batch, length, heads, kv_heads, width, width_v, scattered, shared, dtype),
        case=DecodeAttentionCase(
            dtype=str(dtype).removeprefix("torch."), lens=(length,) * batch, heads=heads, kv_heads=kv_heads, width=width,
            width_v=width_v, splits=8, scattered=scattered, shared=shared, int32=("req_to_token",),
        ),
        flops=2.0 * batch * length * heads * (width + width_v),
        bytes=float(batch * length * per_key),
        peers={"torch": _torch_attention},
        floor=Floor(0.5, over="torch") if dtype != torch.bfloat16 else Floor(floor) if floor else None,
        counts=floor > 0,
        series=series,
        size=length if series else 0,
    )


BENCH_ROWS = [
    row
    for scattered in (False, True)
    for row in (
        _row("32/8 heads, B 1, L 8192", 1, 8192, 32, 8, 128, 128, scattered, floor=1.5 if scattered else 1.8),
        _row("32/8 heads, B 16, L 1024", 16, 1024, 32, 8, 128, 128, scattered, floor=1.5 if scattered else 1.8),
        _row("32/32 heads, B 4, L 1024", 4, 1024, 32, 32, 128, 128, scattered, floor=1.3),
        _row("MLA 16 heads, B 4, L 2048", 4, 2048, 16, 1, 576, 512, scattered, shared=True, floor=2.5),
        _row("MLA 128 heads, B 4, L 2048", 4, 2048, 128, 1, 576, 512, scattered, shared=True, floor=4.0),
    )
] + [
    _row("32/8 heads, B 1, L 256", 1, 256, 32, 8, 128, 128),
    _row("32/8 heads, B 16, L 1024, float16", 16, 1024, 32, 8, 128, 128, dtype=torch.float16),
    _row("32/8 heads, B 16, L 1024, float32", 16, 1024, 32, 8, 128, 128, dtype=torch.float32),
    *(_row(f"32/8 heads, B 1, L {length} (series)", 1, length, 32, 8, 128, 128, series="decode")
      for length in (2**k for k in range(8, 18))),
]


BENCH = Bench(
    rows=BENCH_ROWS,
    case=DecodeAttentionCase(
        seed=8, dtype="bfloat16", lens=(512, 300), heads=32, kv_heads=8, width=128, width_v=128, splits=8, scattered=True,
        int32=("req_to_token",),
    ),
    memory="in each thread, kept between calls: queries and sums of its heads, scores and (tiles) copies of one block of at "
    "most 144 KiB of keys. Nothing grows with a length; sums of splits go to attn_logits, which the caller gives",
)
