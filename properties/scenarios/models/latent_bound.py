"""models: how far latent attention may be from the truth where it projects by itself, in either form."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs
from properties.scenarios.models.cases import LATENT, WINDOW, ModelCase, expanded_tokens, totals, windowed
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, attention_bound, flush_error


def projected_bound(case: ModelCase, given: Inputs, n: int, truth: Tensor) -> Tensor:
    """[T, H, Dv], request by request; each token by the form of its step."""
    found, start = [], 0
    tensors = {name: given[f"{name}{n}"].double() for name in ("q", "k", "up_k", "up_v")}
    expanded = torch.tensor(expanded_tokens(case))
    for total in totals(case):
        rows = slice(start, start + total)
        q, keys = tensors["q"][rows], tensors["k"][rows, 0]
        one, other = (form(case, q, keys, tensors["up_k"], tensors["up_v"], given["scales"][n][0], truth[rows])
                      for form in (_expanded, _absorbed))  # fmt: skip
        found.append(torch.where(expanded[rows, None, None], one, other))
        start += total
    return torch.cat(found)


def _expanded(
    case: ModelCase, q: Tensor, rows: Tensor, up_k: Tensor, up_v: Tensor, sm_scale: float, truth: Tensor
) -> Tensor:
    """Keys and values of each head are sums over the latents, rounded once."""
    latents, rope = rows[:, :LATENT], rows[:, None, LATENT:].expand(-1, q.shape[1], -1)
    (k, k_error), (v, v_error) = (
        _projected(case, *(torch.einsum("tl,hnl->thn", *pair) for pair in ((latents, up), (latents.abs(), up.abs()))))
        for up in (up_k, up_v)
    )
    k, k_error = torch.cat([k, rope], dim=-1), torch.cat([k_error, torch.zeros_like(rope)], dim=-1)
    shift = _shift(case, q.abs(), k_error, q, k, v, sm_scale, v_error)
    return _kernel(case, q, k, v, sm_scale) + shift


def _absorbed(
    case: ModelCase, q: Tensor, rows: Tensor, up_k: Tensor, up_v: Tensor, sm_scale: float, truth: Tensor
) -> Tensor:
    """Queries are projected and rounded once; so are the outputs, from latents that the kernel has rounded."""
    nope, k, v = up_k.shape[1], rows[:, None], rows[:, None, :LATENT]
    size = torch.einsum("thn,hnl->thl", q[..., :nope].abs(), up_k.abs())
    absorbed, error = _projected(case, torch.einsum("thn,hnl->thl", q[..., :nope], up_k), size)
    rope = q[..., nope:]
    wide, error = torch.cat([absorbed, rope], dim=-1), torch.cat([error, torch.zeros_like(rope)], dim=-1)
    each = k.expand(-1, q.shape[1], -1)
    shift = _shift(case, error, each.abs(), wide, each, v.expand(-1, q.shape[1], -1), sm_scale)
    latent = _kernel(case, wide, k, v, sm_scale) + shift
    largest = v.abs().cummax(dim=0).values  # no output is larger than the values that it is a mean of
    dtype = getattr(torch, case.dtype)
    sums = accumulation_error(LATENT + 2) * torch.einsum("thl,hvl->thv", largest + latent, up_v.abs())
    bound = torch.einsum("thl,hvl->thv", latent, up_v.abs()) + sums
    return bound + UNIT_ROUNDOFF[dtype] * (truth.abs() + bound) + flush_error(up_v.abs().sum(-1), dtype)


def _projected(case: ModelCase, exact: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 sum that is rounded to the dtype of the call, and how far it may be off; `size` sums absolute terms."""
    dtype = getattr(torch, case.dtype)
    summed = accumulation_error(LATENT + 2) * size
    return exact, summed + UNIT_ROUNDOFF[dtype] * (exact.abs() + summed) + flush_error(size, dtype)


def _kernel(case: ModelCase, q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Numerics (A) on these operands."""
    return attention_bound(q, k, v, _visible(case, len(q)), dtype=getattr(torch, case.dtype), sm_scale=sm_scale, splits=8)


def _visible(case: ModelCase, total: int) -> Tensor:
    """Which keys each query sees."""
    p, j = torch.arange(total)[:, None], torch.arange(total)
    return (j <= p) & (j > p - WINDOW) if windowed(case) else j <= p


def _shift(
    case: ModelCase, left: Tensor, right: Tensor, q: Tensor, k: Tensor, v: Tensor, sm_scale: float, v_error: Tensor | None = None
) -> Tensor:
    """How far exact attention moves when scores move by at most e = sm_scale left.right, and values by at most v_error.

    With the weights w before, those after are at most exp(2 max e) w, and their sum stays 1: the output moves by at most
    exp(2 max e) (V sqrt(sum_j w_j e_j^2) + sum_j w_j v_error_j), V the spread sqrt(sum_j w_j v_j^2 - o^2).
    """
    hidden = ~_visible(case, len(q))
    z = torch.einsum("thd,nhd->htn", q, k).mul(sm_scale).masked_fill(hidden, -torch.inf)
    e = torch.einsum("thd,nhd->htn", left, right).mul(sm_scale).masked_fill(hidden, 0.0)
    w = z.softmax(dim=-1)
    o, square = (torch.einsum("htn,nhv->thv", w, x) for x in (v, v * v))
    moved = (square - o * o).clamp_min(0.0).sqrt() * (w * e * e).sum(-1).sqrt().T[..., None]
    if v_error is not None:
        moved = moved + torch.einsum("htn,nhv->thv", w, v_error)
    return moved * torch.exp(2 * e.amax(-1)).T[..., None]
