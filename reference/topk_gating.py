"""topk_gating: the experts that a token is sent to, and how much each of them counts."""

import torch
from torch import Tensor

from reference import checks


def topk_gating(
    logits: Tensor,
    topk: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    correction_bias: Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
    scaling_factor: float = 1.0,
    num_valid: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights [T, topk] float32 and ids [T, topk] int32 of the chosen experts, the best first.

    logits [T, E], dense in its last dimension; correction_bias [E] of the logits' dtype or float32. Scores s are the softmax or
    the sigmoid of a row; experts are chosen by c = s + correction_bias, and weighed by s. Of num_expert_group groups of
    neighbours the topk_group best stay: a group is as good as its largest c, with a bias as the sum of its two largest. Of equal
    ones the first is chosen. Rows from num_valid on are never interpreted: ids -1, weights 0. A row with NaN or +inf, and every
    row under a bias that is not finite, has NaN as weights and the first ids. Raises TypeError and ValueError.
    """
    _check(logits, topk, scoring, renormalize, correction_bias, num_expert_group, topk_group, scaling_factor, num_valid)
    T, E = logits.shape
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights, ids = torch.zeros(T, topk, dtype=wide), torch.full((T, topk), -1, dtype=torch.int32)
    valid = T if num_valid is None else num_valid
    rows = logits[:valid].to(wide)
    bias = None if correction_bias is None else correction_bias.to(wide)
    unknown = ~(rows < torch.inf).all(-1) | (bias is not None and not bool(bias.isfinite().all()))
    rows = rows.masked_fill(unknown[:, None], 0.0)

    empty = (rows == -torch.inf).all(-1, keepdim=True)  # every score of such a row is 0
    if scoring == "sigmoid":
        scores = 1 / (1 + torch.exp(-rows))  # torch.sigmoid's bits depend on where an element stands
    else:
        scores = rows.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    choice = scores if bias is None else scores + bias
    if num_expert_group > 1:
        groups = choice.view(valid, num_expert_group, E // num_expert_group)
        best = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
        left_out = best.argsort(dim=-1, descending=True, stable=True)[:, topk_group:]
        choice = groups.scatter(1, left_out[..., None].expand(-1, -1, groups.shape[2]), -torch.inf).view(valid, E)
    chosen = choice.argsort(dim=-1, descending=True, stable=True)[:, :topk]
    w = scores.gather(-1, chosen)
    if renormalize:
        if scoring == "softmax":  # whose common sum cancels: it is not rounded into the weights
            w = (rows - rows.amax(-1, keepdim=True)).exp().masked_fill(empty, 0.0).gather(-1, chosen)
        total = w.sum(-1, keepdim=True)
        w = torch.where(total > 0, w / total, 0.0)
    factor = torch.tensor(scaling_factor, dtype=torch.float64).to(w.dtype)
    weights[:valid] = (w * factor).masked_fill(unknown[:, None], torch.nan)
    ids[:valid] = torch.where(unknown[:, None], torch.arange(topk), chosen).to(torch.int32)
    return weights, ids


def _check(
    logits: Tensor, topk: int, scoring: str, renormalize: bool, bias: Tensor | None, groups: int, kept: int,
    scaling_factor: float, num_valid: int | None,
) -> None:
    checks.is_tensor("logits", logits, 2)
    checks.has_dtype("logits", logits, checks.FLOAT_DTYPES)
    checks.dense_last_dim("logits", logits)
    T, E = logits.shape
    if bias is not None:
        checks.parameter_vector("correction_bias", bias, E, logits.dtype)
    checks.one_of("scoring", scoring, ("softmax", "sigmoid"))
    checks.is_bool("renormalize", renormalize)
    for name, value in (("topk", topk), ("num_expert_group", groups), ("topk_group", kept)):
        checks.is_integer(name, value)
    if groups < 1 or E % groups:
        raise ValueError(f"num_expert_group = {groups} does not divide {E} experts")
    if not 1 <= kept <= groups:
        raise ValueError(f"topk_group = {kept} is outside [1, {groups}]")
    size = E // groups
    if bias is not None and groups > 1 and size < 2:
        raise ValueError(f"correction_bias needs groups of two experts or more, num_expert_group = {groups} leaves {size}")
    if not 1 <= topk <= kept * size:
        raise ValueError(f"topk = {topk} is outside [1, {kept * size}], the experts of the groups that stay")
    checks.is_number("scaling_factor", scaling_factor)
    if not abs(scaling_factor) < checks.FLOAT32_INFINITE:
        raise ValueError(f"scaling_factor = {scaling_factor} is not finite in float32")
    if num_valid is not None:
        checks.is_integer("num_valid", num_valid)
        if not 0 <= num_valid <= T:
            raise ValueError(f"num_valid = {num_valid} is outside [0, {T}]")
