"""Error bounds of the gated delta rule over whole sequences, carried along the token loop in float64.

Derivation, for one value column j; |.| of a K-vector is its 2-norm, u the unit roundoff of the inputs, u' a working one.

1. A written value w_t = beta_t (v_t - S_j . k_t) is formed from operands that may be rounded to the inputs' dtype: v, the
   copies of k and of S (in a chunk: of the triangle's inverse, which combines earlier written values; R_t bounds what those
   contribute, from the start of the chunk on). Each rounding is relative to its operand, so the error of k_t w_t as a vector
   is at most a few u' times `y_t = beta_t |k_t| (|v_t| + R_t + sqrt(sum_k k_k^2 S_k^2))`. The last term is the root sum of
   squares of the rounded products: roundings of different elements are independent.
2. Errors of different tokens are independent too, and a step shrinks what is there by exp(g_t); the update 1 - beta k k^T is a
   contraction for beta |k|^2 <= 1. So squares add: `Y_t^2 = exp(2 g_t) Y_{t-1}^2 + y_t^2`.
3. The carried state is fp32: each step may add a rounding error relative to the column, `Z_t^2 = exp(2 g_t) Z_{t-1}^2 + |S|^2`.
4. `E_t = 8 u' Y_t + 2^-16 Z_t` bounds the state's column; the output reads it with |q_t|, adds its own products of rounded
   operands and one rounding.

A factor exp of a sum of log decays within a chunk is off by 2^-22 times that sum, relatively: this joins u'.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
CHUNK = 64
BF16_STORE = 2.0**-8  # of a state kept in bfloat16, relative to each element


@dataclass(frozen=True)
class Rule:
    """How results are computed and rounded: the arguments of a call that are no tensors."""

    dtype: str
    l2norm: bool
    eps: float
    scale: float
    rounded_inputs: bool = False
    """The inputs were themselves rounded by an earlier step and may differ by one ulp from the reference's (a layer)."""


@dataclass(frozen=True)
class Walk:
    """Bounds of a batch of sequences. Column norms [N, HV, V]; token tensors are in call order [T, HV, V]."""

    out: Tensor
    out_size: Tensor
    """Root sum of squares of the products that make each output: the size of one rounded operand's effect."""
    out_carried: Tensor
    """What written values' roundings contribute to each output, per unit roundoff: |q| scale Y."""
    out_exact: Tensor
    """What remains of the outputs' bound if no operand is rounded to 16 bits: the fp32 state, and the smallest numbers."""
    state_carried: Tensor
    """As out_carried, for final columns: Y."""
    state_exact: Tensor
    state: Tensor
    """Bound of the 2-norm of each final state column, before it is stored."""


def walk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, spans: list[tuple[int, int]], rule: Rule
) -> Walk:
    """Carry the bounds along the tokens of all sequences at once.

    q, k [T, HK, K]; v [T, HV, V]; g, beta [T, HV]; state [N, HV, K, V]: where each sequence starts; all float64. `spans` are
    the sequences' token ranges.
    """
    batch = _Batch(q, k, v, g, beta, spans, rule)
    u = UNIT[rule.dtype]
    working = _working_unit(batch, rule)  # [N, HV, 1]
    tiny_v, tiny_y = (2.0**-13, 2.0**-14) if rule.dtype == "float16" else (0.0, 0.0)
    S = state.clone()
    Y, Z, R = (state.new_zeros(*state.shape[:2], state.shape[3]) for _ in range(3))  # squares for Y and Z
    out, out_size, out_carried, out_exact = (torch.zeros_like(batch.v) for _ in range(4))
    ones = state.new_ones(state.shape[:3])
    for t in range(batch.length):
        live, gamma, b = batch.live[:, t], batch.gamma[:, t], batch.beta[:, t]
        kh, qh = batch.k[:, t], batch.q[:, t]
        S = gamma[..., None] * S
        read = torch.einsum("nhkv,nhk->nhv", S, kh)
        size, column = torch.einsum("nhkv,nhsk->snhv", S * S, torch.stack([kh * kh, ones], 2))
        R = torch.maximum(gamma * R if t % CHUNK else torch.zeros_like(R), read.abs())
        y = b * kh.norm(dim=-1)[..., None] * (batch.v[:, t].abs() + tiny_v + R + size.sqrt())
        Y = torch.where(live, gamma**2 * Y + y**2, Y)
        Z = torch.where(live, gamma**2 * Z + column, Z)
        S = S + kh[..., None] * ((batch.v[:, t] - read) * b)[..., None, :]
        carried, exact = Y.sqrt() + tiny_y, 2.0**-16 * Z.sqrt() + 2.0**-100
        o = torch.einsum("nhkv,nhk->nhv", S, qh).abs()
        ro = torch.einsum("nhkv,nhk->nhv", S * S, qh * qh).sqrt()
        norm = qh.norm(dim=-1)[..., None]
        rounding = u * (2 if rule.rounded_inputs else 1) * o * rule.scale
        out[:, t] = rounding + rule.scale * (norm * (8 * working * carried + exact) + 4 * working * (o + ro)) + _smallest(rule)
        out_size[:, t] = rule.scale * ro
        out_carried[:, t] = rule.scale * norm * carried
        out_exact[:, t] = rule.scale * norm * exact + _smallest(rule)
    carried, exact = Y.sqrt() + tiny_y, 2.0**-16 * Z.sqrt() + 2.0**-100
    tokens = (batch.tokens(x) for x in (out, out_size, out_carried, out_exact))
    return Walk(*tokens, carried, exact, 8 * working * carried + exact)


def _smallest(rule: Rule) -> float:
    return 2 * 2.0**-126 + (2.0**-25 if rule.dtype == "float16" else 0.0)


def _working_unit(batch: "_Batch", rule: Rule) -> Tensor:
    decay = batch.g.abs()  # [N, L, HV, 1]
    chunks = torch.stack([decay[:, t : t + CHUNK].sum(1) for t in range(0, max(batch.length, 1), CHUNK)]).amax(0)
    unit = max(UNIT[rule.dtype], 2.0**-18) + 2.0**-22 * chunks
    return unit * (2 if rule.rounded_inputs else 1)


class _Batch:
    """The sequences side by side, [N, L, heads, ...], neutral tokens behind the shorter ones; q and k normalised."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, spans: list[tuple[int, int]], rule: Rule
    ) -> None:
        group = v.shape[1] // q.shape[1]
        if rule.l2norm:
            q, k = (x * (x.square().sum(-1, keepdim=True) + rule.eps).rsqrt() for x in (q, k))
        self.spans, self.shape = spans, v.shape
        self.length = max((end - begin for begin, end in spans), default=0)
        self.live = self._side_by_side(torch.ones(len(v), 1, 1, dtype=torch.bool))
        self.q, self.k = (self._side_by_side(x.repeat_interleave(group, 1)) for x in (q, k))
        self.v, self.g, self.beta = self._side_by_side(v), self._side_by_side(g[..., None]), self._side_by_side(beta[..., None])
        self.gamma = self.g.exp()

    def _side_by_side(self, x: Tensor) -> Tensor:
        padded = x.new_zeros(len(self.spans), self.length, *x.shape[1:])
        for row, (begin, end) in zip(padded, self.spans):
            row[: end - begin] = x[begin:end]
        return padded

    def tokens(self, x: Tensor) -> Tensor:
        """Back in call order; tokens that no sequence covers are 0."""
        back = x.new_zeros(self.shape)
        for row, (begin, end) in zip(x, self.spans):
            back[begin:end] = row[: end - begin]
        return back
