"""fused_moe: what is timed."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.fused_moe.cases import MoeCase

# name, experts, topk, D, I: every layer of these models; where all experts do not fit a small machine's memory, fewer.
MODELS = (("Qwen3-30B-A3B", 128, 8, 2048, 768), ("Qwen3-Next", 512, 10, 2048, 512), ("gpt-oss", 32, 4, 2880, 2880))
TOKENS = (1, 16, 64, 512)


def _stack(experts: int, N: int, K: int) -> Tensor:
    """Packed weights of `experts`, any values: packing only moves them."""
    shape = (experts, -(-N // 32), -(-K // 32), 2, 16, 32)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(std=K**-0.5)


def _inputs(tokens: int, experts: int, topk: int, D: int, inner: int) -> Inputs:
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)]).to(torch.int32)
    return {
        "form": "moe", "dtype": "bfloat16", "x": torch.randn(tokens, D, dtype=torch.bfloat16),
        "w13": _stack(experts, 2 * inner, D), "w2": _stack(experts, D, inner), "D": D, "I": inner,
        "topk_weights": torch.softmax(torch.randn(tokens, topk), -1), "topk_ids": ids, "b13": None, "b2": None,
        "apply_router_weight_on_input": False,
    }  # fmt: skip


def _torch_loop(given: Inputs) -> Callable[[], object]:
    """Two linear layers of torch for each expert that is asked for, on weights of its own order (any values)."""
    x, ids, weights, inner = given["x"], given["topk_ids"], given["topk_weights"], given["I"]
    experts, D = len(given["w13"]), x.shape[1]
    w13, w2 = given["w13"].view(experts, 2 * inner, D), given["w2"].view(experts, D, inner)

    def run() -> Tensor:
        out = torch.zeros(x.shape)
        for expert in ids.unique().tolist():
            tokens, places = (ids == expert).nonzero(as_tuple=True)
            gate, up = linear(x[tokens], w13[expert]).chunk(2, dim=-1)
            out.index_add_(0, tokens, weights[tokens, places, None] * linear(silu(gate) * up, w2[expert]))
        return out.to(x.dtype)

    return run


def _row(name: str, tokens: int, experts: int, topk: int, D: int, inner: int) -> BenchRow:
    hit = experts * (1 - (1 - topk / experts) ** tokens)
    return BenchRow(
        f"{name}, {tokens} tokens",
        lambda: _inputs(tokens, experts, topk, D, inner),
        flops=6.0 * tokens * topk * inner * D,
        bytes=6.0 * inner * D * hit + 4.0 * tokens * D,
        peers={"torch": _torch_loop},
        alone=True,
    )


BENCH = Bench(
    rows=[_row(name, tokens, *sizes) for name, *sizes in MODELS for tokens in TOKENS],
    case=MoeCase(seed=8, dtype="bfloat16", int32=("topk_ids",), tokens=64, experts=8, topk=2, D=256, I=128),
    memory="kept between calls: for at most 4,096 pairs of token and expert their rows as products read them, and one result of "
    "a projection in fp32; in each thread the sums that wait, 0.8 MiB (vectors) or 0.25 MiB (tiles)",
)
