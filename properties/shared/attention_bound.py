"""The forward error bound that every attention pair shares, "Numerics (A)" of docs/contracts/attention.md."""

import math

import torch
from torch import Tensor

from kernelpair.call.values import rounded_once

UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
EXP_ERROR = 2.0**-18  # relative error that an exp may have (absolute for tanh)
SMALLEST_NORMAL = 2.0**-126  # float32 results below may be flushed to zero
HALF_FP16_SUBNORMAL = 2.0**-25  # half the spacing of float16 subnormals


def accumulation_error(n: float) -> float:
    """g(n): relative error of a float32 sum of n terms in any order, against the sum of their absolute values."""
    return 2.0**-23 * min(n, 16 * math.sqrt(n))


def flush_error(x: Tensor, dtype: torch.dtype) -> Tensor:
    """t(x): absolute error of x flushed terms of size one, plus half a subnormal step of a float16 result."""
    return SMALLEST_NORMAL * (2 + x) + (HALF_FP16_SUBNORMAL if dtype == torch.float16 else 0.0)


def rounding(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound of a result whose terms and sums are exact: one rounding of the truth, and nothing else."""
    return (rounded_once(truth, dtype).to(torch.float64) - truth).abs()


def drawn_apart(values: Tensor, names: Tensor | None = None) -> bool:
    """Whether the generator drew each of these rows. Not if all of them are one, as when they share their memory, nor if one of
    the slots or pages `names` that hold them stands twice: weights that are rounded alike then err together.

    >>> drawn_apart(torch.eye(2)), drawn_apart(torch.ones(3, 2)), drawn_apart(torch.eye(2), torch.tensor([4, 4]))
    (True, False, False)
    """
    if names is not None and len(names.unique()) < len(names):
        return False
    return len(values) < 2 or not bool((values == values[:1]).all())


def attention_bound(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None = None,
    *,
    dtype: torch.dtype,
    sm_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    splits: int = 1,
    random_signs: bool = False,
    query_error: float = 0.0,
    two_part_weights: bool = False,
    slopes: Tensor | None = None,
    distance: Tensor | None = None,
) -> Tensor:
    """How far a correct kernel's output may be from the truth: a bound for each element, [T, H, Dv] float64.

    q [T, H, D], k [N, Hkv, D], v [N, Hkv, Dv], sinks [H] in float64, descales applied; visible bool [T, N], or [Hkv, T, N] where
    the heads see different keys (a padded batch folded into the heads), or None (all); what nobody sees must be finite.
    `dtype` is the call's; `splits` how many partial results are merged; `random_signs` says that the generator drew the signs of
    v independently of everything else, scores included (so never for a value that is part of its key, nor for keys that stand
    twice: `drawn_apart`). `query_error`: the truth is that of other queries, and q comes within so much of them, relative to each
    |q_d| (rounding an absorbed query, say).
    `two_part_weights`: p stays float32 or becomes the sum of two bfloat16 numbers. `slopes` [H] and `distance` [T, N] as in the
    reference's attention core.
    A raw score may be -inf: it is that in any order, and a cap makes exactly -logit_cap of it up to the error of tanh.

    Derivation. With the exact weights w_j (sum <= 1, the sink has the rest) of the n visible keys, o = sum_j w_j v_j:
    - A score is a float32 sum of D products, then scaled, capped and lowered by the running maximum, each step rounded once:
      |dz_j| <= e_j = g(D) sm_scale sum_d |q_d k_jd| + 4 g(1) (|z_j| + |m|) + [cap] logit_cap 2^-18 (the slope of tanh is <= 1).
      With slopes z_j is a sum of two terms, the second a product: e_j gets 2 g(1) (|capped score| + |slope distance|) more.
    - Wrong scores move the weights: do = sum_j w_j dz_j (v_j - o) to first order. By Cauchy-Schwarz against the spread
      V = sqrt(sum_j w_j v_j^2 - o^2) it is at most V sqrt(sum_j w_j e_j^2); to any order (e_j <= 1/4) at most 2 A max_j e_j,
      A = sum_j w_j |v_j|. The smaller of the two holds.
    - query_error adds query_error sm_scale sum_d |q_d k_jd| to e_j, which is no longer small beside 1. As |exp(d) - 1| is at most
      |d| exp(|d|) and the denominator falls by exp(max_j e_j) at most, V sqrt(sum_j w_j e_j^2) exp(2 max_j e_j) then holds.
    - exp errs by 2^-18 in p, in the denominator and in each rescaling of a running maximum or a split: 8 * 2^-18 A in all.
      Sums of n + splits + 8 terms in numerator, denominator and merge: 3 g(n + splits + 8) A.
    - p may be rounded to a 16-bit dtype before P*V: u A; or, the n errors being multiplied by independent signs, 8 standard
      deviations of their sum: 8 u sqrt(sum_j w_j^2 v_j^2). In float16 a subnormal p errs by up to 2^-25: 2^-25 sum_j |v_j|.
      As the sum of two bfloat16 numbers p errs by 2^-8 of what the first one left, which is 2^-8 p: 2^-16 in the place of u.
    - The result is rounded once: u |o|. Weights, products and results below 2^-126 may be flushed: t(n + sum_j |v_j|).
    """
    T, H, D = q.shape
    N, Hkv, Dv = v.shape
    G = H // Hkv
    u = UNIT_ROUNDOFF[dtype]
    u_p = u if dtype != torch.float32 else 0.0
    if two_part_weights:
        u_p = min(u_p, UNIT_ROUNDOFF[torch.bfloat16] ** 2)

    rows = (q * sm_scale).reshape(T, Hkv, G, D).permute(1, 2, 0, 3).reshape(Hkv, G * T, D)
    added = None if slopes is None or distance is None else slopes.view(Hkv, G, 1, 1) * distance
    sink = q.new_full((1, 1, 1, 1), -math.inf) if sinks is None else sinks.view(Hkv, G, 1, 1)
    z, e = _scores(rows, k, (Hkv, G, T, N), query_error, logit_cap, added)
    w, e = _weights(z, e, visible, sink)

    w, e = w.view(Hkv, G * T, N), e.view(Hkv, G * T, N)
    values = v.permute(1, 0, 2)
    size, square = values.abs(), values * values
    o, A, S = (w @ torch.cat([values, size, square], dim=-1)).split(Dv, dim=-1)
    A_p = torch.minimum(A, 8 * (w * w @ square).sqrt()) if random_signs else A
    first_order = (S - o * o).clamp_min(0.0).sqrt() * (w * e * e).sum(dim=-1, keepdim=True).sqrt()
    largest = e.amax(dim=-1, keepdim=True) if N else torch.zeros_like(first_order[..., :1])
    moved = first_order * torch.exp(2 * largest) if query_error else torch.minimum(first_order, 2 * A * largest)
    if visible is None:
        n, total = z.new_full((1, 1, 1), float(N)), size.sum(dim=1, keepdim=True)
    else:
        seen = visible.to(q.dtype)
        n, total = seen.sum(dim=-1, keepdim=True), seen @ size
    terms = n + splits + 8
    sums = 3 * 2.0**-23 * torch.minimum(terms, 16 * terms.sqrt()).unsqueeze(-3)
    small = flush_error(n + total, dtype)
    if dtype == torch.float16 and not two_part_weights:
        small = small + HALF_FP16_SUBNORMAL * total
    A = A.view(Hkv, G, T, Dv)
    bound = u * o.abs() + u_p * A_p + moved
    bound = bound.view(Hkv, G, T, Dv) + (8 * EXP_ERROR + sums) * A + small.unsqueeze(-3)
    return bound.permute(2, 0, 1, 3).reshape(T, H, Dv)


def _scores(
    rows: Tensor, k: Tensor, shape: tuple[int, int, int, int], query_error: float, logit_cap: float, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """z and e of `attention_bound` [Hkv, G, T, N], before the maximum adds to e; rows [Hkv, G T, D] are scaled queries."""
    keys = k.permute(1, 2, 0)
    z = (rows @ keys).view(shape)
    e = (rows.abs() @ keys.abs()).view(shape) * (accumulation_error(rows.shape[-1]) + query_error)
    e = e.masked_fill(z == -math.inf, 0.0)
    if logit_cap > 0:
        z = logit_cap * torch.tanh(z / logit_cap)
        e = e + logit_cap * EXP_ERROR
    if added is not None:
        e = e + 2 * accumulation_error(1) * (z.abs() + added.abs())
        z = z + added
    return z, e


def _weights(z: Tensor, e: Tensor, visible: Tensor | None, sink: Tensor) -> tuple[Tensor, Tensor]:
    """w and the whole of e, both 0 for keys that nobody sees."""
    hidden = None if visible is None else ~visible.unsqueeze(-3)
    seen_z = z if hidden is None else z.masked_fill(hidden, -math.inf)
    m = torch.maximum(seen_z.amax(dim=-1, keepdim=True), sink) if z.shape[-1] else sink.expand(*z.shape[:3], 1)
    m = m.masked_fill(m == -math.inf, 0.0)  # a row that sees nothing: all its weights are 0
    p = torch.exp(seen_z - m)
    w = p / (p.sum(dim=-1, keepdim=True) + torch.exp(sink - m)).clamp_min(1.0)
    e = e + 4 * accumulation_error(1) * (z.abs() + m.abs())
    e = e.masked_fill(z == -math.inf, 0.0)
    return w, e if hidden is None else e.masked_fill(hidden, 0.0)
