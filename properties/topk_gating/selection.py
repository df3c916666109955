"""topk_gating: whether a selection is right, and what its weights then are.

Experts are chosen by scores that a kernel computes with an error, so of two that differ by less than their errors either may be
chosen, and either may come first. Those whose logit and bias are equal have equal scores however they are computed: of them the
lower id is chosen, and comes first.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs
from properties.shared.attention_bound import EXP_ERROR, SMALLEST_NORMAL, accumulation_error

STEP = 2.0**-22
ROUND = 2.0**-23
TINY = 2 * SMALLEST_NORMAL
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Scores:
    """Of the rows that are tokens and finite: all [R, E] float64 but for `groups`, `group_error`, [R, G]."""

    logits: Tensor
    bias: Tensor
    """[E], 0 without one."""
    scores: Tensor
    distance: Tensor
    """1 + |z - m|, m the row's maximum: what rounds z - m; 0 where the score is."""
    choice: Tensor
    error: Tensor
    """Of a choice: d."""
    groups: Tensor
    group_error: Tensor
    kept: int
    biased: bool
    ties: bool = True
    """Of equal ones the lower must be preferred."""
    rising: bool = True
    """Scores rise with their logits, as our own kernels' do; else of two that differ by less than their errors either may be
    the larger."""


def judged_rows(given: Inputs) -> Tensor:
    """[T]: the rows whose weights the contract defines."""
    logits, bias = given["logits"], given["correction_bias"]
    valid = len(logits) if given["num_valid"] is None else given["num_valid"]
    token = torch.arange(len(logits)) < valid
    return token & (logits < torch.inf).all(-1) & (bias is None or bool(bias.isfinite().all()))


def scored(given: Inputs, rows: Tensor) -> Scores:
    """Scores, choices and their errors.

    A score errs relative to itself by rho: a sigmoid by 2^-17; a softmax by exp twice, 2^-17, by a sum of E terms, g(E), by the
    rounded z - m and three more roundings, 2^-22 (1 + |z - m|). A choice: `d = rho s + 2^-125 + [bias] 2^-23 (s + |bias|)`.
    A group: as its best; with a bias twice the largest d, and 2^-23 of the sum; sums beyond float32 are all its largest number.
    """
    z = given["logits"][rows]
    biased, groups = given["correction_bias"] is not None, given["num_expert_group"]
    bias = given["correction_bias"] if biased else z.new_zeros(z.shape[1])
    if given["scoring"] == "sigmoid":
        scores, distance = torch.sigmoid(z), torch.ones_like(z)
        rho = torch.full_like(z, 2 * EXP_ERROR)
    else:
        empty = (z == -torch.inf).all(-1, keepdim=True)
        scores = z.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        distance = 1 + (z - z.amax(-1, keepdim=True)).abs().masked_fill(z == -torch.inf, 0.0)
        rho = 2 * EXP_ERROR + accumulation_error(z.shape[1]) + STEP * distance
    choice = scores + bias
    error = rho * scores + TINY + (ROUND * (scores + bias.abs()) if biased else 0.0)
    apart = choice.view(len(z), groups, z.shape[1] // groups)
    errors = error.view(apart.shape)
    if biased and groups > 1:
        best = apart.topk(2, dim=-1).values.sum(-1).clamp(-LARGEST, LARGEST)
        group_error = 2 * errors.amax(-1) + ROUND * best.abs()
    else:
        best, first = apart.max(-1)
        group_error = errors.gather(-1, first[..., None])[..., 0]
    return Scores(z, bias, scores, distance, choice, error, best, group_error, given["topk_group"], biased)


def _group_of(found: Scores, ids: Tensor) -> Tensor:
    return torch.div(ids, found.choice.shape[1] // found.groups.shape[1], rounding_mode="floor")


def _twins(found: Scores) -> Tensor:
    """[R, G, G]: which groups of a row have equal scores however they are computed: without a bias those of equal largest
    logits, with one those whose two best experts have equal logits and biases, if it is certain which these are."""
    (R, G), E = found.groups.shape, found.choice.shape[1]
    logits = found.logits.view(R, G, E // G)
    if not found.biased:
        largest = logits.amax(-1)
        return (largest[:, :, None] == largest[:, None]) & _surely_best(found)
    best = found.choice.view(logits.shape).topk(min(3, E // G), dim=-1)
    pairs = torch.stack([part.gather(-1, best.indices) for part in (logits, found.bias.expand(R, E).view(logits.shape))], -1)
    certain = torch.ones(R, G, dtype=torch.bool)
    if E // G > 2:
        errors = found.error.view(logits.shape).gather(-1, best.indices)
        certain = best.values[..., 1] - best.values[..., 2] > errors[..., 1] + errors[..., 2]
        certain |= (pairs[:, :, 1] == pairs[:, :, 2]).all(-1)
    same = (pairs[:, :, None, :2] == pairs[:, None, :, :2]).flatten(3).all(-1)
    return same & certain[:, :, None] & certain[:, None]


def _surely_best(found: Scores) -> Tensor:
    """[R, G, G]: whether in both groups the best expert, without a bias, is one of the largest logit."""
    (R, G), E = found.groups.shape, found.choice.shape[1]
    if found.rising:
        return torch.ones(R, G, G, dtype=torch.bool)
    logits, choice, error = (part.view(R, G, E // G) for part in (found.logits, found.choice, found.error))
    least = (choice - error).amax(-1, keepdim=True)  # of the best
    certain = ((logits == logits.amax(-1, keepdim=True)) | (choice + error < least)).all(-1)
    return certain[:, :, None] & certain[:, None]


def _groups_right(found: Scores, kept: Tensor) -> Tensor:
    """[R]: no left-out group beats one of `kept` [R, G], nor, where ties are judged, equals one with a higher number."""
    low, high = found.groups - found.group_error, found.groups + found.group_error
    beaten = low.masked_fill(kept, -torch.inf).amax(-1) > high.masked_fill(~kept, torch.inf).amin(-1)
    if not found.ties:
        return ~beaten
    number = torch.arange(kept.shape[1])
    twins = _twins(found) & (number[:, None] < number)
    return ~beaten & ~(twins & ~kept[:, :, None] & kept[:, None]).any(-1).any(-1)


def _experts_right(found: Scores, ids: Tensor, kept: Tensor) -> Tensor:
    """[R]: no left-out expert of a kept group beats a chosen one, no later one an earlier; where ties are judged, equal ones
    come by their ids."""
    R, E = found.choice.shape
    chosen = torch.zeros(R, E, dtype=torch.bool).scatter(1, ids, True)
    there = kept.repeat_interleave(E // kept.shape[1], dim=1)
    low, high = found.choice - found.error, found.choice + found.error
    best_left = low.masked_fill(chosen | ~there, -torch.inf).amax(-1)
    lows, highs = low.gather(1, ids), high.gather(1, ids)
    ordered = (lows[:, 1:] <= highs.cummin(-1).values[:, :-1]).all(-1)
    fine = (best_left <= highs.amin(-1)) & ordered
    if not found.ties:
        return fine
    place = torch.full((R, E), ids.shape[1]).scatter(1, ids, torch.arange(ids.shape[1]).expand_as(ids))
    twin = (found.logits[:, None] == found.logits.gather(1, ids)[..., None]) & (found.bias == found.bias[ids][..., None])
    lower = torch.arange(E) < ids[..., None]
    late = place[:, None] > torch.arange(ids.shape[1])[:, None]
    return fine & ~(twin & lower & late & there[:, None]).any(-1).any(-1)


def right(found: Scores, ids: Tensor) -> Tensor:
    """[R]: whether a row's ids [R, k], int64, are a selection that the contract allows."""
    E = found.choice.shape[1]
    fine = ((ids >= 0) & (ids < E)).all(-1)
    ids = torch.where(fine[:, None], ids, torch.arange(ids.shape[1]))
    fine &= (ids.sort(-1).values.diff(dim=-1) != 0).all(-1)
    used = torch.zeros(found.groups.shape, dtype=torch.bool).scatter(1, _group_of(found, ids), True)
    fine &= used.sum(-1) <= found.kept
    # Which other groups were kept does not show: the best of them, and where that does not hold any.
    rank = found.groups.masked_fill(used, torch.inf).argsort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(used).scatter(1, rank[:, : found.kept], True)
    held = fine & _groups_right(found, kept) & _experts_right(found, ids, kept)
    open_rows = used.sum(-1) < found.kept  # the others left no group to guess, and a wrong kernel has thousands of them
    for row in (fine & ~held & open_rows).nonzero()[:, 0].tolist():
        held[row] = _some_groups_right(found, ids, used, row)
    return held


def _some_groups_right(found: Scores, ids: Tensor, used: Tensor, row: int) -> bool:
    """Whether the row's ids are right with any groups kept beside `used`.

    A group can be kept if no expert of it had to be chosen, and only together with those that it needs: all that beat it, and
    equal ones with a lower number. None needs itself in the end, so of those that can be kept with all that they need any number
    can be, from what `used` needs to all of them.
    """
    G = used.shape[1]
    each = torch.full((G,), row)
    again = Scores(
        found.logits[each], found.bias, found.scores[each], found.distance[each], found.choice[each], found.error[each],
        found.groups[each], found.group_error[each], found.kept, found.biased, found.ties,
        found.rising,
    )
    fits = _experts_right(again, ids[each], used[row] | torch.eye(G, dtype=torch.bool))
    low, high = found.groups[row] - found.group_error[row], found.groups[row] + found.group_error[row]
    needs = low > high[:, None]  # [kept, needed]
    if found.ties:
        needs |= _twins(again)[0] & (torch.arange(G) < torch.arange(G)[:, None])
    for _ in range(G.bit_length()):
        needs |= needs.float() @ needs.float() > 0
    possible = fits & ~(needs & ~fits).any(-1)
    least = used[row] | needs[used[row]].any(0)
    return bool(possible[least].all()) and int(least.sum()) <= found.kept <= int(possible.sum())


def weights_at(given: Inputs, found: Scores, ids: Tensor) -> Tensor:
    """[R, k]: what these experts weigh."""
    w = found.scores.gather(1, ids)
    if given["renormalize"]:
        total = w.sum(-1, keepdim=True)
        w = torch.where(total > 0, w / total, 0.0)
    return w * given["scaling_factor"]


def settle(
    case: object, given: Inputs, truth: Outputs, outputs: Outputs, ties: bool = True, rising: bool = False
) -> Outputs:
    """The call's own ids where they are a right selection, and the weights of these. Where a row has NaN or +inf any different
    experts are right, and nothing is said of their weights."""
    rows, ids, E = judged_rows(given), outputs["ids"].long(), given["logits"].shape[1]
    settled = {name: value.clone() for name, value in truth.items()}
    found = replace(scored(given, rows), ties=ties, rising=rising)
    fine = right(found, ids[rows])
    settled["ids"][rows] = torch.where(fine[:, None], ids[rows], truth["ids"][rows].long()).to(torch.int32)
    settled["weights"][rows] = weights_at(given, found, settled["ids"][rows].long())
    lost = ~rows & (truth["ids"][:, 0] >= 0)
    different = ((ids >= 0) & (ids < E)).all(-1) & (ids.sort(-1).values.diff(dim=-1) != 0).all(-1)
    settled["ids"][lost & different] = outputs["ids"][lost & different]
    settled["weights"][lost] = torch.nan
    return settled
