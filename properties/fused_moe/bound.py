"""fused_moe: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.fused_moe.cases import MoeCase, unpacked
from properties.shared.attention_bound import HALF_FP16_SUBNORMAL, UNIT_ROUNDOFF, accumulation_error, flush_error
from reference.quantize_rows_int8 import LEAST_RANGE, quantize_rows_int8

SILU_ERROR = 2.0**-17  # of itself, as a silu may err
SMALLEST = 2.0**-110  # what silu of a very negative gate may flush, times any up
ROUNDED_H = "gates and ups rounded to x's dtype before silu"
"""A rounding that is forbidden (`Within.roundings`)."""
SATURATED = 2.0**-44  # 1 - sigmoid(32) is 2^-46: silu(32) = 32 in any kernel, but not in the truth


def rounded_bound(case: MoeCase, given: Inputs, truth: Outputs) -> Bound:
    """The bound of a 16-bit call that rounds h, too: eta grows by u (|h| + eta). One-hot rows have two more roundings, of a
    gate and of its up, and exact ones none: their gates and ups are whole numbers of 8 bits."""
    return bound(case, given, truth, UNIT_ROUNDOFF[getattr(torch, case.dtype)] if case.dtype != "float32" else 0.0)


def bound(case: MoeCase, given: Inputs, truth: Outputs, of_h: float = 0.0) -> Bound:
    """Errors of h, of a and of y, one after the other, and of the sum over a token's experts.

    With H = |w13| |x| + |b13| and u_a = u for 16-bit x, else 0, elementwise over I for each token and expert:
    - h is a float32 sum of D products and a bias: eta = g(D + 4) H.
    - a = silu(h_g) h_u moves with h by |silu'| eta_g + c eta_g^2 / 2 times what h_u may be, with c the most that |silu''| is
      there, at most 1/2 and (2 + |z|) exp(-|z|), and by |silu| eta_u; silu itself errs by 2^-17, the product rounds, and a
      16-bit call may round a once: alpha.
    - y moves with a by h8(w2 alpha): the signs of w2 are drawn independently of all else (Hoeffding). Its own sum of I products
      and a bias errs by g(I + 4) (|w2| |a| + |b2|): together dy.
    - Each w_j y_j may be rounded once in a 16-bit call, k of them are summed in float32, and the result is rounded.
    - What a float16 call rounds to a subnormal number, an a or a w_j y_j, errs by half a step of these: s = 2^-25.

    With int8 weights the rows of x are quantized by bits that are fixed, and sums are exact: h rounds g(2) (|w13 x| + |b13|).
    a may differ by alpha before it is quantized. Its scale s = max |a| / 127 moves by delta = max alpha / max |a|, a code
    r = a / s by omega = (alpha / s + delta |r|) / (1 - delta), so that F codes can flip, and
    dy = delta |y| + h8(w2 s (1 + delta) F) + 2 g(2) (|y| + |b2|).

    With float8 weights a 16-bit call may round each weight times its scale once, and h and y too: with c = u_a then, else 0,
    eta grows by c (|h| + h8(w13 x)) + s, dy by c h8(w2 a), and the error of w_j y_j by |w_j| (c (|y| + dy) + s).

    With one-hot rows every sum is one term. The roundings to 16 bits, of a, of w_j y_j and of the result, are one, for w2 and
    the weight of the only expert are powers of 2: (u + 2^-17 + 2^-20) |ref|, where 2^-20 has room for eight roundings of float32.

    In the exact mode nothing of that rounds but w_j y_j (twice with float8 weights) and the result:
    u (|ref| + [16-bit] sum_j |w_j y_j|).
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    u = UNIT_ROUNDOFF[dtype]
    u_a = u if dtype != torch.float32 else 0.0
    coded = u_a if case.block else 0.0
    step = HALF_FP16_SUBNORMAL if dtype == torch.float16 else 0.0
    x, ids, weights = _rows(case, given)
    w13, w2 = unpacked(case, given)
    if case.values == "one_hot" and all(_one_hot(weight[ids[ids >= 0].unique()]) for weight in (w13, w2)):
        relative = u + 2 * of_h * (1 + of_h) + SILU_ERROR + 2.0**-20
        return {"out": relative * truth["out"].abs() + flush_error(torch.zeros(()), dtype)}
    error, size, terms = (torch.zeros_like(truth["out"]) for _ in range(3))
    for expert in ids[ids >= 0].unique().tolist():
        tokens, places = (ids == expert).nonzero(as_tuple=True)
        b13, b2 = (given[name][expert] if given.get(name) is not None else 0.0 for name in ("b13", "b2"))
        y, dy, of_y = _of_expert(x[tokens], w13[expert], w2[expert], b13, b2, u_a, coded, of_h, step, case.int8)
        share = weights[tokens, places].abs()[:, None]
        error.index_add_(0, tokens, share * (dy + (u_a + coded) * (y + dy) + (step if coded else 0.0)) + step)
        size.index_add_(0, tokens, share * y)
        terms.index_add_(0, tokens, share * of_y)
    if case.values == "exact":
        return {"out": u * truth["out"].abs() + (u_a + coded) * size + SATURATED * terms}
    if given.get("routed") is not None:
        size = size + abs(case.factor) * given["routed"].abs()
    sums = accumulation_error(case.topk + 2) * size
    return {"out": u * truth["out"].abs() + error + sums + flush_error(torch.tensor(1e4), dtype)}


def _one_hot(weight: Tensor) -> bool:
    """Whether no row has more than one number; a trial of wrong arguments may give it another."""
    return bool(((weight != 0).sum(-1) <= 1).all())


def _rows(case: MoeCase, given: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that experts see, their ids and their weights: those of the shared form, or of weights on the input, are 1."""
    if case.form == "shared":
        return given["x"], torch.zeros(case.tokens, 1, dtype=torch.int64), torch.ones(case.tokens, 1)
    x, ids, weights = given["x"], given["topk_ids"], given["topk_weights"]
    if not case.on_input:
        return x, ids, weights
    narrow: torch.dtype = getattr(torch, case.dtype)
    return (x.to(narrow) * weights.to(narrow)).double(), ids, torch.ones_like(weights)


def _of_expert(
    x: Tensor, w13: Tensor, w2: Tensor, b13: Tensor | float, b2: Tensor | float, u_a: float, coded: float, of_h: float,
    step: float, int8: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """|y|, its error, and the sizes of its terms summed, for rows of one expert."""
    D, inner = x.shape[1], w2.shape[1]
    if int8:
        x = _as_quantized(x)
    products, bias = x @ w13.T, torch.as_tensor(b13)
    sizes = accumulation_error(2) * products.abs() if int8 else accumulation_error(D + 4) * (x.abs() @ w13.abs().T)
    sizes = sizes + accumulation_error(2 if int8 else D + 4) * bias.abs()
    if coded:
        sizes = sizes + coded * ((products + bias).abs() + signed_sum(x.abs(), w13)) + step
    sizes = sizes + of_h * ((products + bias).abs() + sizes)
    eta_gate, eta_up = sizes.chunk(2, dim=-1)
    gate, up = (products + bias).chunk(2, dim=-1)
    s = torch.sigmoid(gate)
    silu, slope = gate * s, s * (1 + gate * (1 - s))
    a = silu * up
    alpha = (slope.abs() * eta_gate + _curvature(gate, eta_gate) * eta_gate**2 / 2) * (up.abs() + eta_up) + silu.abs() * eta_up
    alpha = (1 + u_a) * (alpha + (SILU_ERROR + 2.0**-22 + u_a) * a.abs()) + SMALLEST + step
    bias = torch.as_tensor(b2)
    if int8:
        return _of_bytes(a, alpha, w2, bias)
    terms = a.abs() @ w2.abs().T + bias.abs()
    dy = signed_sum(alpha, w2) + accumulation_error(inner + 4) * terms
    if coded:
        dy = dy + coded * signed_sum(a.abs(), w2)
    return (a @ w2.T + bias).abs(), dy, terms


def _curvature(gate: Tensor, eta: Tensor) -> Tensor:
    """The most that |silu''| is within eta of the gates: silu'' = s (1 - s) (2 + z (1 - 2 s)), and s (1 - s) < exp(-|z|)."""
    return ((2 + gate.abs() + eta) * (eta - gate.abs()).clamp_max(0.0).exp()).clamp_max(0.5)


def _as_quantized(rows: Tensor) -> Tensor:
    """What the quantizer makes of rows: its bits are fixed."""
    q, scale, _ = quantize_rows_int8(rows)
    return q.double() * scale.double()[:, None]


def _of_bytes(a: Tensor, alpha: Tensor, w2: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same behind a quantizer: its scale follows max |a|, and codes flip where a lies near a half."""
    largest = a.abs().amax(-1, keepdim=True).clamp_min(LEAST_RANGE)
    s, delta = largest / 127, alpha.amax(-1, keepdim=True) / largest
    r = a / s
    omega = (alpha / s + delta * r.abs()) / (1 - delta)
    flips = torch.maximum((r + omega).round() - r.round(), r.round() - (r - omega).round())
    quantized = _as_quantized(a)
    y = quantized @ w2.T
    size = y.abs() + bias.abs()
    dy = delta * y.abs() + signed_sum(s * (1 + delta) * flips, w2) + 2 * accumulation_error(2) * size
    return (y + bias).abs(), dy, quantized.abs() @ w2.abs().T + bias.abs()


def signed_sum(errors: Tensor, weights: Tensor) -> Tensor:
    """h8: how far sum_i w_i e_i goes for errors of these sizes, where the signs of w are independent of them."""
    return torch.minimum(errors @ weights.abs().T, 8 * (errors**2 @ (weights**2).T).sqrt())
