"""models: blocks of experts. What our layer is given of the library's block, which experts it may choose, and how far its result
may be from the library's own experts, evaluated in float64 with the choice and the weights of our layer."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs
from kernelpair.contract.verdict import Failure, Tightness
from kernelpair.trial import judge
from properties.fused_moe.bound import bound as moe_bound
from properties.fused_moe.cases import MoeCase, packed
from properties.scenarios.models.cases import ROUTINGS, ModelCase
from properties.scenarios.models.oracle import Recorded
from properties.scenarios.models.quantized import BLOCK
from properties.shared.attention_bound import EXP_ERROR, accumulation_error

STEP, TINY = 2.0**-22, 2.0**-125  # as in topk_gating's bound


def experts_inputs(recorded: Recorded) -> Inputs:
    """Of block i: x, and the parts of the block."""
    found: Inputs = {}
    for i, one in enumerate(recorded.experts.values()):
        parts = {"x": torch.cat(one["x"])} | block_parts(one["block"])
        found |= {f"experts{i}_{part}": value for part, value in parts.items()}
    return found


def block_parts(block: Any) -> dict[str, Tensor]:
    """The router, its bias, and weights of the experts and of what all share; with scales where they are codes."""
    parts, bias = {"router": block.gate.weight.detach()}, getattr(block.gate, "e_score_correction_bias", None)
    if bias is not None:
        parts["bias"] = bias
    quantized = getattr(block.experts, "quantized", None)
    for k, part in enumerate(("w13", "w2")):
        parts[part] = _stacks(block.experts)[k]
        if quantized is not None:
            parts[part], parts[f"{part}_scale"] = quantized[k]
    if hasattr(block, "shared_experts"):
        parts["shared_w13"], parts["shared_w2"] = (stack[None].detach() for stack in _shared(block))
    return parts


def _stacks(experts: Any) -> tuple[Tensor, Tensor]:
    return experts.gate_up_proj.detach(), experts.down_proj.detach()


def _shared(block: Any) -> tuple[Tensor, Tensor]:
    """Gate and up, and down, of the expert that all tokens share: in the numbers that the library computes with."""
    mlp = block.shared_experts
    return torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), mlp.down_proj.weight


def layer_of(case: ModelCase, layers: Any, stacks: Any, given: dict[str, Tensor]) -> Any:
    """A side's layer with the parts of one block."""
    layer = layers.Experts(ROUTINGS[case.family])
    w13, w2 = (
        stacks.PackedFp8Experts.pack(given[name], given[f"{name}_scale"], BLOCK) if f"{name}_scale" in given
        else stacks.PackedExperts.pack(given[name])
        for name in ("w13", "w2")
    )  # fmt: skip
    shared = None
    if "shared_w13" in given:
        shared = stacks.PackedExperts.pack(given["shared_w13"]), stacks.PackedExperts.pack(given["shared_w2"])
    layer.load(given["router"], w13, w2, given.get("bias"), shared)
    return layer


def of_block(tensors: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """The parts of block i."""
    start = f"experts{i}_"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def run_experts(case: ModelCase, layers: Any, stacks: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every block on its own input: the weights and ids of its router, and its result for these."""
    found: dict[str, Tensor] = {}
    for i in range(sum(name.endswith("_router") for name in tensors)):
        given = of_block(tensors, i)
        layer, x = layer_of(case, layers, stacks, given), given["x"]
        weights, ids = layer.route(x)
        found |= {f"ids{i}": ids, f"weights{i}": weights, f"experts{i}": layer(x)}
    return found


# --- judgement ---


def judged(
    case: ModelCase, given: Inputs, recorded: Recorded, i: int, outputs: Outputs
) -> tuple[list[Failure], Tightness | None]:
    """The choice of each token, its weights, and the result, one after the other."""
    parts, block = of_block(given, i), list(recorded.experts.values())[i]["block"]
    ids, weights, out = (outputs[f"{name}{i}"] for name in ("ids", "weights", "experts"))
    scores, error, wrong = _chosen(case, parts, ids)
    if wrong:
        return [Failure("value", f"ids{i}", wrong)], None
    truth, limit = _weights(case, scores, error, ids.long())
    failures, _ = judge.values(f"weights{i}", weights, truth, limit)
    if failures:
        return failures, None
    return judge.values(f"experts{i}", out, *_result(case, parts, block, ids, weights))


def _chosen(case: ModelCase, parts: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor, str]:
    """Scores in float64, how far each may be off, relative to itself, and what is wrong with the choice.

    Logits are float32 sums of D products: e = g(D + 2) |x| |router|. A softmax moves by exp(e + max e) with them, a sigmoid by
    exp(e); the scores' own errors are those of topk_gating. Of the groups that stay no expert that was left out may beat a chosen
    one by more than the errors of both, and no group that was left out may so beat one that stays.
    """
    x, router = parts["x"].double(), parts["router"].double()
    logits = x @ router.T
    e = accumulation_error(x.shape[1] + 2) * (x.abs() @ router.abs().T)
    if ROUTINGS[case.family].scoring == "sigmoid":
        scores, error = logits.sigmoid(), torch.expm1(e) + 2 * EXP_ERROR
    else:
        largest, distance = e.amax(-1, keepdim=True), (logits - logits.amax(-1, keepdim=True)).abs()
        own = 2 * EXP_ERROR + accumulation_error(logits.shape[1]) + STEP * (1 + distance)
        scores, error = logits.softmax(-1), torch.expm1(e + largest) + own
    bias = parts["bias"].double() if "bias" in parts else torch.zeros(())
    choice, slack = scores + bias, error * scores + TINY + 2.0**-23 * (scores + bias.abs())
    rows = ids.long()
    if bool(((rows < 0) | (rows >= logits.shape[1])).any()) or any(len({*row}) < len(row) for row in rows.tolist()):
        return scores, error, "a token's experts are not all different, or do not exist"
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, rows, True)
    groups = ROUTINGS[case.family].num_expert_group
    low, high = (_of_groups(choice + sign * slack, groups, "bias" in parts) for sign in (-1, 1))
    stayed = chosen.unflatten(1, (groups, -1)).any(-1)
    most = ROUTINGS[case.family].topk_group
    better = (low[:, None, :] > high[:, :, None]).sum(-1)  # groups that surely beat it
    if bool((stayed & (better >= most)).any()) or bool((stayed.sum(-1) > most).any()):
        row = int((stayed & (better >= most)).any(-1).logical_or(stayed.sum(-1) > most).nonzero()[0])
        return scores, error, f"token {row}: an expert is of a group that is not among the best {most}"
    surely = (high[:, None, :] >= low[:, :, None]).sum(-1) <= most  # itself among those that may be as good
    left = ~chosen & (stayed | surely).repeat_interleave(logits.shape[1] // groups, 1)
    best_left = (choice - slack).masked_fill(~left, -torch.inf).amax(-1)
    worst_kept = (choice + slack).masked_fill(~chosen, torch.inf).amin(-1)
    beaten = (best_left > worst_kept).nonzero().flatten().tolist()
    return scores, error, f"token {beaten[0]}: an expert that is left out is better than a chosen one" if beaten else ""


def _of_groups(choice: Tensor, groups: int, biased: bool) -> Tensor:
    """[T, groups]: the largest choice of each, with a bias the sum of its two largest."""
    each = choice.unflatten(1, (groups, -1))
    return each.topk(2, dim=-1).values.sum(-1) if biased and groups > 1 else each.amax(-1)


def _weights(case: ModelCase, scores: Tensor, error: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the chosen over their sum, times the factor: the errors of a score and of the sum, and k + 2 roundings."""
    routing = ROUTINGS[case.family]
    s, rho = scores.gather(1, ids), error.gather(1, ids)
    truth = s / s.sum(-1, keepdim=True) * routing.scaling_factor
    moved = rho + rho.amax(-1, keepdim=True)
    return truth, (moved * (1 + moved) + accumulation_error(routing.topk + 2)) * truth + TINY


def _result(case: ModelCase, parts: dict[str, Tensor], block: Any, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The library's experts in float64 on these ids and weights, and fused_moe's bound; what all tokens share is added as
    shared_expert adds it."""
    wide = deepcopy(block).double()
    x, (T, k), (E, D, inner) = parts["x"].double(), ids.shape, parts["w2"].shape
    given = {"x": x, "topk_ids": ids.long(), "topk_weights": weights.double()} | packed(*_stacks(wide.experts))
    block_size = f"{BLOCK[0]}x{BLOCK[1]}" if "w2_scale" in parts else ""
    about = MoeCase(dtype=case.dtype, tokens=T, experts=E, topk=k, D=D, I=inner, block=block_size)
    with torch.no_grad():
        truth = wide.experts(x, ids.long(), weights.double())
        limit = _limit(about, given, truth)
        if "shared_w13" not in parts:
            return truth, limit
        w13, w2 = (stack[None] for stack in _shared(wide))
        about = MoeCase(dtype=case.dtype, form="shared", tokens=T, D=D, I=w2.shape[2], routed=True, route="constant")
        given, truth = {"x": x, "routed": truth} | packed(w13, w2), truth + wide.shared_experts(x)
        return truth, limit + _limit(about, given, truth)


def _limit(about: MoeCase, given: Inputs, truth: Tensor) -> Tensor:
    found = moe_bound(about, given, {"out": truth})["out"]
    assert isinstance(found, Tensor)
    return found
