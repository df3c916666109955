"""fused_moe: what is timed."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from kernelpair.timing.compare import in_order
from optimized import huge_pages
from properties.fused_moe.calls import optimized_call
from properties.fused_moe.cases import MoeCase

# name, experts, topk, D, I: every layer of these models; where all experts do not fit a small machine's memory, fewer.
MODELS = (("Qwen3-30B-A3B", 128, 8, 2048, 768), ("Qwen3-Next", 512, 10, 2048, 512), ("gpt-oss", 32, 4, 2880, 2880))
# Of DeepSeek-V3 a sixteenth of the experts, as a process has of many: of a token's 8 one lies here every second time.
QUANTIZED = (("Qwen3-30B-A3B", 128, 8, 2048, 768), ("DeepSeek-V3", 16, 1, 7168, 2048))
TOKENS = (1, 16, 64, 512)


def _stack(name: str, kind: str, experts: int, N: int, K: int) -> Inputs:
    """Packed weights of `experts`, any values: packing only moves them. All have the first one's, in memory of their own as
    packing takes it: random numbers for all would take most of a row's time."""
    panels = (1, -(-N // 32))
    if kind == "int8":
        data = torch.randint(-128, 128, (*panels, -(-K // 64), 2, 16, 64), dtype=torch.int8)
        sums = data.unflatten(-1, (16, 4)).sum((2, 4, 6), dtype=torch.int32).reshape(1, -1)
        parts = {name: data, f"{name}_sums": sums[:, :N], f"{name}_scale": torch.full((1, N), K**-0.5 / 64)}
    elif kind == "fp8":
        codes = torch.randint(0, 0x7F, (*panels, -(-K // 32), 2, 16, 32), dtype=torch.uint8)
        parts = {name: codes, f"{name}_scale": torch.rand(1, -(-N // 128), -(-K // 128)) * K**-0.5 / 64}
    else:
        parts = {name: torch.empty((*panels, -(-K // 32), 2, 16, 32), dtype=torch.bfloat16).normal_(std=K**-0.5)}
    stacked = {part: huge_pages.new(one, (experts, *one.shape[1:])).copy_(one) for part, one in parts.items()}
    return stacked | ({f"{name}_block_n": 128, f"{name}_block_k": 128} if kind == "fp8" else {})


def _inputs(kind: str, tokens: int, experts: int, topk: int, D: int, inner: int) -> Inputs:
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)]).to(torch.int32)
    return {
        "form": "moe", "dtype": "bfloat16", "x": torch.randn(tokens, D, dtype=torch.bfloat16),
        **_stack("w13", kind, experts, 2 * inner, D), **_stack("w2", kind, experts, D, inner), "D": D, "I": inner,
        "topk_weights": torch.softmax(torch.randn(tokens, topk), -1), "topk_ids": ids, "b13": None, "b2": None,
        "apply_router_weight_on_input": False,
    }  # fmt: skip


def _torch_loop(given: Inputs) -> Callable[[], object]:
    """Two linear layers of torch for each expert that is asked for, on weights of x's dtype (any values, in an order of its own):
    what quantizing is to be faster than."""
    x, ids, weights, inner = given["x"], given["topk_ids"], given["topk_weights"], given["I"]
    experts, D = len(given["w13"]), x.shape[1]
    w13, w2 = given["w13"].to(x.dtype).view(experts, 2 * inner, D), given["w2"].to(x.dtype).view(experts, D, inner)

    def run() -> Tensor:
        out = torch.zeros(x.shape)
        for expert in ids.unique().tolist():
            tokens, places = (ids == expert).nonzero(as_tuple=True)
            gate, up = linear(x[tokens], w13[expert]).chunk(2, dim=-1)
            out.index_add_(0, tokens, weights[tokens, places, None] * linear(silu(gate) * up, w2[expert]))
        return out.to(x.dtype)

    return run


def _row(kind: str, name: str, tokens: int, experts: int, topk: int, D: int, inner: int) -> BenchRow:
    hit = experts * (1 - (1 - topk / experts) ** tokens)
    return BenchRow(
        f"{name}{kind and f' {kind}'}, {tokens} tokens",
        lambda: _inputs(kind, tokens, experts, topk, D, inner),
        flops=6.0 * tokens * topk * inner * D,
        bytes=(3.0 if kind else 6.0) * inner * D * hit + 4.0 * tokens * D,
        peers={"torch": _torch_loop},
        alone=True,
    )


BENCH = Bench(
    rows=[
        _row(kind, name, tokens, *sizes)
        for kind, models in (("", MODELS), ("int8", QUANTIZED), ("fp8", QUANTIZED))
        for name, *sizes in models
        for tokens in TOKENS
    ],
    case=MoeCase(seed=8, dtype="bfloat16", int32=("topk_ids",), tokens=64, experts=8, topk=2, D=256, I=128),
    prepare=lambda given: in_order(*optimized_call(**given)),
    memory="kept between calls: for at most 4,096 pairs of token and expert, or 32 for each expert, their rows as products read "
    "them, and one result of a projection in fp32; in each thread the sums that wait, 0.8 MiB (vectors) or 0.25 MiB (tiles), "
    "and of float8 experts a decoded slice of a panel, 128 KiB (tiles)",
)
