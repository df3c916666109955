"""topk_gating: what is timed."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.topk_gating.cases import TopkCase

ROUTERS = {  # experts, chosen, groups, of which stay, scoring, with a bias
    "Qwen3-MoE 128/8": (128, 8, 1, 1, "softmax", False),
    "gpt-oss 128/4": (128, 4, 1, 1, "softmax", False),
    "Qwen3-Next 512/10": (512, 10, 1, 1, "softmax", False),
    "DeepSeek-V3 256/8": (256, 8, 8, 4, "sigmoid", True),
    "Kimi-K2 384/8": (384, 8, 1, 1, "sigmoid", True),
}


def _inputs(rows: int, router: str) -> Inputs:
    experts, topk, groups, kept, scoring, biased = ROUTERS[router]
    return {
        "logits": torch.randn(rows, experts, dtype=torch.bfloat16), "topk": topk, "scoring": scoring, "renormalize": True,
        "correction_bias": torch.randn(experts) if biased else None, "num_expert_group": groups, "topk_group": kept,
    }


def _case(rows: int, router: str) -> TopkCase:
    experts, topk, groups, kept, scoring, biased = ROUTERS[router]
    return TopkCase(
        dtype="bfloat16", tokens=rows, experts=experts, topk=topk, groups=groups, kept=kept,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax", bias="float32" if biased else "none",
    )


def _torch_topk(given: Inputs) -> Callable[[], object]:
    """As engines write it in torch: without a bias the softmax of the chosen logits alone."""
    logits, topk, bias = given["logits"], given["topk"], given["correction_bias"]
    groups, kept = given["num_expert_group"], given["topk_group"]

    def chosen() -> object:
        values, ids = logits.topk(topk, dim=-1)
        return values.float().softmax(-1), ids.to(torch.int32)

    def call() -> object:
        scores = logits.float().sigmoid()
        choice = scores + bias
        if groups > 1:
            parts = choice.view(len(choice), groups, -1)
            best = parts.topk(2, dim=-1)[0].sum(-1).topk(kept, dim=-1, sorted=False)[1]
            mask = torch.zeros(parts.shape[:2], dtype=torch.bool).scatter_(1, best, True)
            choice = parts.masked_fill(~mask[..., None], -torch.inf).flatten(1)
        ids = choice.topk(topk, dim=-1)[1]
        weights = scores.gather(1, ids)
        return weights / weights.sum(-1, keepdim=True), ids.to(torch.int32)

    return chosen if bias is None else call


BENCH = Bench(
    rows=[
        BenchRow(
            f"{rows} x {router}",
            lambda rows=rows, router=router: _inputs(rows, router),  # type: ignore[misc]
            case=_case(rows, router),
            bytes=rows * (2 * ROUTERS[router][0] + 8 * ROUTERS[router][1]),
            peers={"torch": _torch_topk},
        )
        for router in ROUTERS
        for rows in (1, 64, 1024)
    ],
    case=TopkCase(seed=8, dtype="bfloat16", tokens=64, experts=384, topk=8, scoring="sigmoid", bias="float32"),
    memory="a row of logits and two of keys a thread",
)
