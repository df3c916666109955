"""Variable-length prefill of realistic size, against torch's attention over the same keys and against extend_attention."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from optimized import operator
from properties.flash_attn_varlen.cases import VarlenCase

HEADS, KV_HEADS, WIDTH = 32, 8, 128


def _inputs(batch: int, rows: int, keys: int, causal: bool) -> Inputs:
    generator = torch.Generator().manual_seed(7)

    def normal(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn((tokens, heads, WIDTH), generator=generator).to(torch.bfloat16)

    return {
        "q": normal(batch * rows, HEADS),
        "k": normal(batch * keys, KV_HEADS),
        "v": normal(batch * keys, KV_HEADS),
        "cu_seqlens_q": torch.arange(batch + 1) * rows,
        "cu_seqlens_k": torch.arange(batch + 1) * keys,
        "causal": causal,
    }


def _torch_attention(given: Inputs) -> Callable[[], object]:
    """scaled_dot_product_attention on keys that lie as it likes them best: [B, Hkv, L, D]."""
    batch = len(given["cu_seqlens_q"]) - 1
    q, k, v = (given[name].unflatten(0, (batch, -1)).transpose(1, 2).contiguous() for name in ("q", "k", "v"))
    rows, keys = q.shape[2], k.shape[2]
    square = given["causal"] and rows == keys
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if given["causal"] and not square else None
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, mask, is_causal=square, enable_gqa=True)


def _extend_attention(given: Inputs) -> Callable[[], object]:
    """The same work of prompts by extend_attention, which reads no cache then."""
    lengths, start = given["cu_seqlens_q"].diff(), given["cu_seqlens_q"][:-1]
    out, none, batch = torch.empty_like(given["q"]), given["k"][:0], len(lengths)
    table, call = torch.zeros(batch, int(lengths.max()), dtype=torch.int64), operator("extend_attention")
    rest = (table, torch.arange(batch), lengths, lengths, start, None, None, WIDTH**-0.5)
    return lambda: call(given["q"], given["k"], given["v"], out, none, none, *rest)


def _row(name: str, batch: int, rows: int, keys: int, causal: bool = True) -> BenchRow:
    scores = batch * (sum(keys - rows + i + 1 for i in range(rows)) if causal else rows * keys)
    prompt = causal and rows == keys
    return BenchRow(
        name,
        lambda: _inputs(batch, rows, keys, causal),
        flops=4.0 * scores * HEADS * WIDTH,
        bytes=4.0 * batch * WIDTH * (keys * KV_HEADS + rows * HEADS),
        peers={"torch": _torch_attention},
        kin={"extend_attention": _extend_attention} if prompt else {},
        floor=Floor(0.9, over="extend_attention") if prompt else None,
        counts=True,
    )


BENCH = Bench(
    rows=[
        _row("4 x 512, causal", 4, 512, 512),
        _row("1 x 2,048, causal", 1, 2048, 2048),
        _row("4 x 128 over 640, causal", 4, 128, 640),
        _row("2 x 256 over 1,601, all seen", 2, 256, 1601, False),
    ],
    case=VarlenCase(
        seed=8, dtype="bfloat16", rows=(64, 20), lens=(300, 200), heads=8, kv_heads=2, width=128, width_v=128, causal="odd",
        poison="outlier", int32=("cu_seqlens_q", "cu_seqlens_k"),
    ),
    memory="as extend_attention",
)
