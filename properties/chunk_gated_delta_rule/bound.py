"""chunk_gated_delta_rule: how far a result may be from the truth."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs, Within
from properties.chunk_gated_delta_rule.cases import ChunkCase, result_dtype
from properties.shared.attention_bound import rounding
from properties.shared.delta_rule_bound import BF16_STORE, CARRY, UNIT, Rule, Walk, propagated, walk


def averaged(columns: int) -> float:
    """What of the root sum of squares of all roundings' sizes the error of a head may be, in units of u.

    A written value passes through at most four rounded copies (right side, inverse, itself, M), each off by u / sqrt(3) in the
    mean square: 2 / sqrt(3) = 1.15. Columns are rounded independently, so the norm of n of them strays from that by 1 / sqrt(n)
    of it; 1.5 leaves room for sums of few tokens.
    """
    return max(1.5, 1.15 * (1 + columns**-0.5))


# --- bounds ---


def _as_kv(case: ChunkCase, state: Tensor) -> Tensor:
    return state if case.state_layout == "kv" else state.transpose(-1, -2)


def _start(case: ChunkCase, given: Inputs) -> Tensor:
    """[N, HV, K, V]: where each sequence's state starts."""
    start = torch.zeros(len(case.lengths), case.heads, case.K, case.V, dtype=torch.float64)
    for n in case.warm:
        if case.form == "functional":
            start[n] = _as_kv(case, given["initial_state"][n])
        elif n in case.live:
            start[n] = _as_kv(case, given["state"][given["state_indices"][n]])
    return start


_last: list[tuple[Inputs, Rule, Walk]] = []  # bound and aggregate of one call need the same walk


def _rule(case: ChunkCase, carry: float = CARRY) -> Rule:
    scale = case.K**-0.5 if case.scale is None else case.scale
    return Rule(case.dtype, case.l2norm, case.eps, scale, carry=carry, accurate=case.accurate)


def carried(case: ChunkCase, given: Inputs, error: Tensor) -> tuple[Tensor, Tensor]:
    """Of a call with one sequence alone: what errors of its initial state, of which each element may take its column's, make of
    its outputs and of its final state."""
    q, k, g, beta = (given[name].double() for name in ("q", "k", "g", "beta"))
    out, state = propagated(q, k, g, beta, _as_kv(case, error)[0].amax(-2), _rule(case))
    return out, (state[:, None, :] if case.state_layout == "kv" else state[..., None]).expand(error.shape)


def _walk(case: ChunkCase, given: Inputs, carry: float) -> Walk:
    rule = _rule(case, carry)
    if not (_last and _last[0][0] is given and _last[0][1] == rule):
        spans = [span if n in case.live else (span[0], span[0]) for n, span in enumerate(case.spans)]
        q, k, v, g, beta = (given[name] for name in ("q", "k", "v", "g", "beta"))
        _last[:] = [(given, rule, walk(q, k, v, g, beta, _start(case, given), spans, rule))]
    return _last[0][2]


def bound(case: ChunkCase, given: Inputs, truth: Outputs, carry: float = CARRY) -> dict[str, Tensor]:
    """Per element; of a state each element may take its whole column's bound, the column's own is in `aggregate`. `carry` is what
    a step may lose of a column. Exact sums (`ChunkCase.exact_sums`) are rounded once."""
    if case.exact_sums and carry == CARRY:
        dtypes = {name: result_dtype(case, name) for name in truth}
        return {name: rounding(truth[name], dtype) for name, dtype in dtypes.items()}
    found = _walk(case, given, carry)
    if case.form == "functional":
        return {"out": found.out, "final_state": _state_bound(case, found.state, truth["final_state"])}
    whole = torch.zeros_like(truth["state"])
    live = list(case.live)
    slots = given["state_indices"][live].long()
    whole[slots] = _state_bound(case, found.state[live], truth["state"][slots])
    return {"out": found.out, "state": whole}


def _state_bound(case: ChunkCase, columns: Tensor, state: Tensor) -> Tensor:
    each = columns[..., None, :] if case.state_layout == "kv" else columns[..., None]
    moved = torch.tensor([n not in case.live for n in range(len(each))], dtype=torch.bool) if case.form == "functional" else None
    each = each.expand(state.shape) + (BF16_STORE * state.abs() if case.state == "bfloat16" else 0)
    return each if moved is None else each.masked_fill(moved[:, None, None, None], 0)


def aggregate(
    case: ChunkCase, given: Inputs, truth: Outputs, outputs: Outputs, carry: float = CARRY
) -> list[tuple[str, str, float]]:
    """State columns as 2-norms; where operands are rounded to 16 bits also the errors of a whole sequence and head. Of exact sums
    no element has room for any."""
    if case.exact_sums and carry == CARRY:
        return []
    found = _walk(case, given, carry)
    failures: list[tuple[str, str, float]] = []
    for n in case.live:
        begin, end = case.spans[n]
        name, row = ("final_state", n) if case.form == "functional" else ("state", int(given["state_indices"][n]))
        state = _as_kv(case, truth[name][row])
        state_error = _as_kv(case, outputs[name][row]).double() - state
        stored = BF16_STORE if case.state == "bfloat16" else 0.0
        allowed = found.state[n] + stored * state.norm(dim=-2)
        failures += _exceeds(name, f"2-norms of columns of sequence {n}", state_error.norm(dim=-2), allowed)
        if case.dtype == "float32" or case.accurate:
            continue
        u = UNIT[case.dtype]
        whole = averaged(case.V) * u * found.state_carried[n].norm(dim=-1) + found.state_exact[n].norm(dim=-1)
        whole += stored * state.norm(dim=(-2, -1))
        failures += _exceeds(name, f"sequence {n}, norm of each head's error", state_error.norm(dim=(-2, -1)), whole)
        out = truth["out"][begin:end]
        parts = (out, found.out_size[begin:end], found.out_carried[begin:end] * case.K**-0.5)
        squares = sum((part.square().sum(dim=(0, 2)) for part in parts), torch.zeros(case.heads, dtype=torch.float64))
        allowed = averaged(case.V) * u * squares.sqrt() + found.out_exact[begin:end].norm(dim=(0, 2))
        out_error = (outputs["out"][begin:end].double() - out).norm(dim=(0, 2))
        failures += _exceeds("out", f"sequence {n}, norm of each head's error", out_error, allowed)
    return failures


def _exceeds(name: str, what: str, error: Tensor, allowed: Tensor) -> list[tuple[str, str, float]]:
    if bool((error <= allowed).all()):
        return []
    ratios = (error / allowed).nan_to_num(torch.inf).flatten()
    worst = ratios.argmax()
    says = f"{what}: {float(error.flatten()[worst]):.3g}, allowed {float(allowed.flatten()[worst]):.3g}"
    return [(name, says, float(ratios[worst]))]


ROUNDED_STATE = "state rounded to bfloat16 after each token"
_rounded: dict[str, Any] = {"carry": CARRY + BF16_STORE}  # of each element, and so of the column
TRUTH = Within(
    bound,
    aggregate=aggregate,
    sharp=lambda case: case.dtype == "float32" or case.accurate or case.beta == "zero",
    roundings={ROUNDED_STATE: Within(partial(bound, **_rounded), aggregate=partial(aggregate, **_rounded))},
)
