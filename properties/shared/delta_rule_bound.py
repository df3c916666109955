"""Error bounds of the gated delta rule over whole sequences, carried along the token loop in float64.

Derivation, for one value column j; |.| of a K-vector is its 2-norm, u the unit roundoff of the inputs, u' a working one.

1. A written value w_t = beta_t (v_t - S_j . k_t) is formed from operands that may be rounded to the inputs' dtype: v, the
   copies of k and of S (in a chunk: of the triangle's inverse, which combines earlier written values; R_t bounds what those
   contribute, from the start of the chunk on). Each rounding is relative to its operand, so the error of k_t w_t as a vector
   is at most a few u' times `y_t = beta_t |k_t| (|v_t| + R_t + sqrt(sum_k k_k^2 S_k^2))`. The last term is the root sum of
   squares of the rounded products: roundings of different elements are independent.
2. Errors of different tokens are independent too, and a step shrinks what is there by exp(g_t); the update 1 - beta k k^T is a
   contraction for beta |k|^2 <= 1. So squares add: `Y_t^2 = exp(2 g_t) Y_{t-1}^2 + y_t^2`. Of 16-bit tokens whose values are one
   and the same, as rows that share their memory are, each may err as the one before: there `Y_t = exp(g_t) Y_{t-1} + y_t`.
3. The carried state is fp32: each step may add a rounding error relative to the column, `Z_t^2 = exp(2 g_t) Z_{t-1}^2 + |S|^2`.
4. Inputs that an earlier step computed may be off by more than their rounding: by dv and by vectors dk, dq of given sizes
   (`Moved`). They add `beta (|k| (dv + |dk| |S_j|) + |dk| (|v| + |S_j . k| + dv))` to 8 u' y_t, and |dq| |S_j| to the output.
5. `E_t = 8 u' Y_t + 2^-16 Z_t` bounds the state's column; the output reads it with |q_t|, adds its own products of rounded
   operands and one rounding.

In an accurate call no operand is rounded to 16 bits. It is fp32, or the sum of two bf16 numbers, which keep 2^-16 of it; the
product of the second ones may be left out, 2^-16 of the product. So two operands and their product cost 3 * 2^-16 instead of 2 u,
and u' is half of that.

A factor exp of a sum of log decays within a chunk is off by 2^-22 times that sum, relatively: this joins u'. A log decay counts
as at least -256, with which the factor is 0 like with any lower one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from properties.shared.attention_bound import drawn_apart

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
CHUNK = 64
LEAST_DECAY = -256.0  # exp of it is 0 in float32, whatever a chunk's other tokens add
TWO_PARTS = 1.5 * 2.0**-16  # of an operand that is two bf16 numbers, its half of what leaving out second parts costs included
CARRY = 2.0**-16  # of a column's norm, for all that fp32 loses in one step
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
    accurate: bool = False
    """No operand is rounded to 16 bits."""
    carry: float = CARRY
    """What a step may lose of a state's column, relative to its norm."""


Moved = tuple[Tensor, Tensor, Tensor]
"""How far each element of q, k and v, as the call has them, may be off besides a rounding relative to itself."""


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
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, spans: list[tuple[int, int]], rule: Rule,
    moved: Moved | None = None,
) -> Walk:
    """Carry the bounds along the tokens of all sequences at once.

    q, k [T, HK, K]; v [T, HV, V]; g, beta [T, HV]; state [N, HV, K, V]: where each sequence starts; all float64. `spans` are
    the sequences' token ranges.
    """
    batch = _Batch(q, k, v, g, beta, spans, rule, moved)
    read, size, column, o, ro = _token_loop(batch, state)
    u, working = UNIT[rule.dtype], _working_unit(batch, rule)
    tiny_v, tiny_y = (2.0**-13, 2.0**-14) if rule.dtype == "float16" and not rule.accurate else (0.0, 0.0)
    k_norm, column_norm = batch.k.norm(dim=-1, keepdim=True), column.sqrt()
    strength, fresh = batch.beta * k_norm, batch.v.abs() + tiny_v + size
    given = batch.beta * (k_norm * (batch.dv + batch.dk * column_norm) + batch.dk * (batch.v.abs() + read + batch.dv))
    given /= 8 * working
    y = strength * (fresh + _largest_read(batch, read)) + given  # of neutral tokens nothing
    alike, start = _alike(batch, v, rule), state.new_zeros(batch.rows, v.shape[2])
    written = _sums(torch.where(alike, batch.gamma, batch.gamma**2), torch.where(alike, y, y**2), start)
    held = _sums(batch.gamma**2, torch.where(batch.live, column, 0.0), start)
    carried, exact = torch.where(alike, written, written.sqrt()), held.sqrt() * rule.carry
    Y, Z = (x[-1] if len(x) else start for x in (carried, exact))
    carried, exact = carried + tiny_y, exact + 2.0**-100
    norm = rule.scale * batch.q.norm(dim=-1, keepdim=True)
    out = u * (2 if rule.rounded_inputs else 1) * rule.scale * o + norm * (8 * working * carried + exact)
    out += 4 * working * rule.scale * (o + ro) + _smallest(rule)
    out += rule.scale * batch.dq * (column_norm + strength * (batch.v.abs() + read))
    tokens = (batch.tokens(x) for x in (out, rule.scale * ro, norm * carried, norm * exact + _smallest(rule)))
    Y, Z = Y + tiny_y, Z + 2.0**-100
    return Walk(*tokens, *(batch.columns(x) for x in (Y, Z, 8 * working * Y + Z)))


def _alike(batch: "_Batch", v: Tensor, rule: Rule) -> Tensor:
    """[M, 1]: whether operands are rounded, and all of a sequence's tokens, of which there are three at least, have one value."""
    same = [end - begin > 2 and not drawn_apart(v[begin:end]) for begin, end in batch.spans]
    found = torch.tensor(same, dtype=torch.bool).repeat_interleave(v.shape[1])[:, None]
    return found & (rule.dtype != "float32")


def _largest_read(batch: "_Batch", read: Tensor) -> Tensor:
    """[L, M, V]: the largest of a chunk's reads up to each token, each decayed since."""
    found = read.clone()
    for t in range(batch.length):
        if t % CHUNK:
            torch.maximum(found[t], batch.gamma[t] * found[t - 1], out=found[t])
    return found


def _sums(decay: Tensor, terms: Tensor, start: Tensor) -> Tensor:
    """[L, M, V]: after each token what was there before, decayed, and the token's term."""
    found = terms.clone()
    for t in range(len(terms)):
        found[t].addcmul_(decay[t], found[t - 1] if t else start)
    return found


def _token_loop(batch: "_Batch", state: Tensor) -> tuple[Tensor, ...]:
    """Per token and column [L, M, V]: |S.k|, sqrt(k^2.S^2) and |S|^2 after the decay, |S.q| and sqrt(q^2.S^2) after the write.

    A state that one token has left is read by its q, and, before it decays, by the next one's k: both at once.
    """
    S = state.reshape(batch.rows, *state.shape[2:]).clone()
    none = batch.k.new_zeros(1, *batch.k.shape[1:])
    looks = torch.stack([torch.cat([none, batch.q]), torch.cat([batch.k, none])], 2)  # [L + 1, M, 2, K]
    squares = torch.cat([looks.square(), torch.ones_like(looks[:, :, :1])], 2)
    reads, sizes = (state.new_empty(*x.shape[:3], state.shape[3]) for x in (looks, squares))
    S_squared = torch.empty_like(S)
    for t in range(batch.length + 1):
        torch.bmm(looks[t], S, out=reads[t])
        torch.bmm(squares[t], torch.mul(S, S, out=S_squared), out=sizes[t])
        if t < batch.length:
            S *= batch.gamma[t, :, None]
            w = (batch.v[t] - batch.gamma[t] * reads[t, :, 1]) * batch.beta[t]
            S.baddbmm_(batch.k[t, :, :, None], w[:, None])
    gamma = batch.gamma
    read, size, column = gamma * reads[:-1, :, 1], gamma**2 * sizes[:-1, :, 1], gamma**2 * sizes[:-1, :, 2]
    return read.abs(), size.sqrt(), column, reads[1:, :, 0].abs(), sizes[1:, :, 0].sqrt()


def _smallest(rule: Rule) -> float:
    return 2 * 2.0**-126 + (2.0**-25 if rule.dtype == "float16" else 0.0)


def _working_unit(batch: "_Batch", rule: Rule) -> Tensor:
    """[M, 1]"""
    decay = batch.g.clamp(min=LEAST_DECAY).abs()
    chunks = torch.stack([decay[t : t + CHUNK].sum(0) for t in range(0, max(batch.length, 1), CHUNK)]).amax(0)
    operands = min(UNIT[rule.dtype], TWO_PARTS) if rule.accurate else UNIT[rule.dtype]
    unit = max(operands, 2.0**-18) + 2.0**-22 * chunks
    return unit * (2 if rule.rounded_inputs else 1)


class _Batch:
    """Sequences and heads side by side, [L, M, ...] with M = N x HV, neutral tokens behind the shorter ones; q, k normalised."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, spans: list[tuple[int, int]], rule: Rule,
        moved: Moved | None,
    ) -> None:
        group = v.shape[1] // q.shape[1]
        dq, dk, dv = moved or (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v))
        (q, dq), (k, dk) = (_normalised(x, dx, rule) for x, dx in ((q, dq), (k, dk)))
        self.spans, self.shape = spans, v.shape
        self.rows = len(spans) * v.shape[1]
        self.length = max((end - begin for begin, end in spans), default=0)
        self.live = self._side_by_side(torch.ones(*v.shape[:2], 1, dtype=torch.bool))
        self.q, self.k = (self._side_by_side(x.repeat_interleave(group, 1)) for x in (q, k))
        self.dq, self.dk = (self._side_by_side(x.norm(dim=-1, keepdim=True).repeat_interleave(group, 1)) for x in (dq, dk))
        self.dv = self._side_by_side(dv)
        self.v, self.g, self.beta = self._side_by_side(v), self._side_by_side(g[..., None]), self._side_by_side(beta[..., None])
        self.gamma = self.g.exp()

    def _side_by_side(self, x: Tensor) -> Tensor:
        padded = x.new_zeros(self.length, len(self.spans), *x.shape[1:])
        for n, (begin, end) in enumerate(self.spans):
            padded[: end - begin, n] = x[begin:end]
        return padded.flatten(1, 2)

    def tokens(self, x: Tensor) -> Tensor:
        """Back in call order [T, HV, V]; tokens that no sequence covers are 0."""
        back = x.new_zeros(self.shape)
        for n, (begin, end) in enumerate(self.spans):
            back[begin:end] = x.unflatten(1, (len(self.spans), -1))[: end - begin, n]
        return back

    def columns(self, x: Tensor) -> Tensor:
        """[N, HV, V]"""
        return x.reshape(len(self.spans), *self.shape[1:])


def step_bound(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S0: Tensor, rule: Rule, moved: Moved
) -> tuple[Tensor, Tensor]:
    """One decode step: bounds of out [n, HV, V] and of the new states [n, HV, K, V] before they are stored.

    Everything is fp32, so each product is off by c times the sum of its absolute terms: `E = c (G |S0| + |k| W1^T)` with
    `G = exp(g) (1 + |g|)` and `W1 = beta (|v| + G |S0|^T |k|)`, and `|do| <= u |o| + scale (E + c |S|)^T |q|`. c counts the 2 K
    terms of the two products and the errors of exp, sigmoid and the norms; inputs that an earlier step rounded add 8 units.
    What they are off besides, dq, dk (as in `_normalised`) and dv, moves the state by `dk W1^T + (|k| + dk) dw^T` with
    `dw = beta (dv + G |S0|^T dk)`, and the output by `scale |S|^T dq` more.
    """
    group, K = v.shape[1] // q.shape[1], q.shape[2]
    (q, dq), (k, dk) = (
        _normalised(x.repeat_interleave(group, 1), dx.repeat_interleave(group, 1), rule)
        for x, dx in ((q, moved[0]), (k, moved[1]))
    )
    u, terms = UNIT[rule.dtype], 2 * K + 16
    c = 2.0**-23 * min(terms, 16 * terms**0.5) + 2.0**-14
    c += 8 * max(u, 2.0**-17) if rule.rounded_inputs else 0.0
    gamma = g.exp()[..., None, None]
    S = gamma * S0
    S = S + k[..., None] * ((v - torch.einsum("nhkv,nhk->nhv", S, k)) * beta[..., None])[..., None, :]
    G = gamma * (1 + g.abs())[..., None, None] + 2.0**-100
    W1 = beta[..., None] * (v.abs() + torch.einsum("nhkv,nhk->nhv", G * S0.abs(), k.abs()))
    dw = beta[..., None] * (moved[2] + torch.einsum("nhkv,nhk->nhv", G * S0.abs(), dk))
    E = c * (G * S0.abs() + k.abs()[..., None] * W1[..., None, :]) + _smallest(rule)
    E += dk[..., None] * W1[..., None, :] + (k.abs() + dk)[..., None] * dw[..., None, :]
    o = rule.scale * torch.einsum("nhkv,nhk->nhv", S, q)
    out = u * o.abs() + rule.scale * torch.einsum("nhkv,nhk->nhv", E + c * S.abs(), q.abs()) + _smallest(rule)
    return out + rule.scale * torch.einsum("nhkv,nhk->nhv", S.abs() + E, dq), E


def propagated(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, error: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """What errors of one sequence's initial state, 2-norms of columns [HV, V], make of its outputs [T, HV, V] and of its final
    state: a step is linear in the state that it starts from, `S = exp(g) (1 - beta k k^T) S0` and what does not depend on it."""
    (q, _), (k, _) = (_normalised(x, torch.zeros_like(x), rule) for x in (q, k))
    q, k = (x.norm(dim=-1).repeat_interleave(len(error) // x.shape[1], 1) for x in (q, k))
    grown = (g.exp() * (1 - beta * k.square()).abs().clamp_min(1.0)).cumprod(0)[..., None] * error
    return rule.scale * q[..., None] * grown, grown[-1]


def _normalised(x: Tensor, error: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """q or k [n, H, K] as the rule uses it, and how far errors of its elements move that.

    With r = 1 / sqrt(|x|^2 + eps): `d(x r)_i <= r dx_i + |x_i| r^3 sum_j |x_j| dx_j`.
    """
    if not rule.l2norm:
        return x, error
    r = (x.square().sum(-1, keepdim=True) + rule.eps).rsqrt()
    return x * r, r * error + (x * r).abs() * r * r * (x.abs() * error).sum(-1, keepdim=True)
