"""chunk_gated_delta_rule on trial, in its functional form and on a pool of states.

Each output element has a bound (`delta_rule_bound`), and so has each column of the state as a 2-norm. With 16-bit inputs that
bound is loose, for it must hold for the worst alignment of every rounding. Over a whole sequence and head roundings average
out, which a second check uses (`aggregate`): errors of independent roundings add in squares. The sharp cases, fp32 inputs and
beta = 0, leave no room for a rounding of the carried state at all.
"""

import torch
from torch import Tensor

from kernelpair.pair import BenchRow, Floor, Inputs, Outputs, Pair, every_argument
from optimized import operator
from properties._chunk_gated_delta_rule_bad import BAD
from properties._chunk_gated_delta_rule_cases import (
    CHUNK,
    FUSED,
    INDICES,
    LAYOUTS,
    ChunkCase,
    cases,
    inputs,
    small_enough,
    written,
)
from properties._chunk_gated_delta_rule_relations import RELATIONS
from properties.delta_rule_bound import BF16_STORE, UNIT, Rule, Walk, walk
from properties.strategies import kernel_paths
from reference import chunk_gated_delta_rule as reference


def averaged(columns: int) -> float:
    """What of the root sum of squares of all roundings' sizes the error of a head may be, in units of u.

    A written value passes through at most four rounded copies (right side, inverse, itself, M), each off by u / sqrt(3) in the
    mean square: 2 / sqrt(3) = 1.15. Columns are rounded independently, so the norm of n of them strays from that by 1 / sqrt(n)
    of it; 1.5 leaves room for sums of few tokens.
    """
    return max(1.5, 1.15 * (1 + columns**-0.5))


def call_reference(**given: object) -> object:
    """The form that the arguments belong to."""
    if "state" in given:
        return reference.chunk_gated_delta_rule_pool(**given)  # type: ignore[arg-type]
    return reference.chunk_gated_delta_rule(**given)  # type: ignore[arg-type]


def call_optimized(**given: object) -> object:
    """The same of the compiled operators; results by name, for the two forms return different ones."""
    if "state" in given:
        return {"out": operator("chunk_gated_delta_rule_pool")(**given)}
    return dict(zip(("out", "final_state"), operator("chunk_gated_delta_rule")(**given)))


def named_reference(**given: object) -> object:
    result = call_reference(**given)
    return dict(zip(("out", "final_state"), result)) if isinstance(result, tuple) else {"out": result}


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


_last: list[tuple[Inputs, Walk]] = []  # bound and aggregate of one call need the same walk


def _walk(case: ChunkCase, given: Inputs) -> Walk:
    if not (_last and _last[0][0] is given):
        scale = case.K**-0.5 if case.scale is None else case.scale
        spans = [span if n in case.live else (span[0], span[0]) for n, span in enumerate(case.spans)]
        q, k, v, g, beta = (given[name] for name in ("q", "k", "v", "g", "beta"))
        rule = Rule(case.dtype, case.l2norm, case.eps, scale)
        _last[:] = [(given, walk(q, k, v, g, beta, _start(case, given), spans, rule))]
    return _last[0][1]


def bound(case: ChunkCase, given: Inputs, truth: Outputs) -> dict[str, Tensor]:
    """Per element; of a state each element may take its whole column's bound, the column's own is in `aggregate`."""
    found = _walk(case, given)
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


def aggregate(case: ChunkCase, given: Inputs, truth: Outputs, outputs: Outputs) -> list[tuple[str, str]]:
    """State columns as 2-norms; for 16-bit inputs also the errors of a whole sequence and head."""
    found = _walk(case, given)
    failures = []
    for n in case.live:
        begin, end = case.spans[n]
        name, row = ("final_state", n) if case.form == "functional" else ("state", int(given["state_indices"][n]))
        state = _as_kv(case, truth[name][row])
        state_error = _as_kv(case, outputs[name][row]).double() - state
        stored = BF16_STORE if case.state == "bfloat16" else 0.0
        allowed = found.state[n] + stored * state.norm(dim=-2)
        failures += _exceeds(name, f"2-norms of columns of sequence {n}", state_error.norm(dim=-2), allowed)
        if case.dtype == "float32":
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


def _exceeds(name: str, what: str, error: Tensor, allowed: Tensor) -> list[tuple[str, str]]:
    if bool((error <= allowed).all()):
        return []
    worst = (error / allowed).nan_to_num(torch.inf).flatten().argmax()
    return [(name, f"{what}: {float(error.flatten()[worst]):.3g}, allowed {float(allowed.flatten()[worst]):.3g}")]


def result_dtype(case: ChunkCase, name: str) -> torch.dtype:
    """A final state has the initial one's dtype, float32 where there is none."""
    if name == "out":
        return getattr(torch, case.dtype)
    return torch.bfloat16 if case.state == "bfloat16" else torch.float32


# --- bench ---


def _bench_inputs(lengths: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Inputs:
    T, HK, HV, D, N = sum(lengths), 16, 32, 128, len(lengths)
    return {
        "q": torch.randn(T, HK, D).to(dtype),
        "k": torch.randn(T, HK, D).to(dtype),
        "v": torch.randn(T, HV, D).to(dtype),
        "g": -0.1 * torch.rand(T, HV),
        "beta": torch.rand(T, HV).to(dtype),
        "state": torch.zeros(N, HV, D, D),
        "state_indices": torch.randperm(N),
        "has_initial_state": torch.zeros(N, dtype=torch.bool),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
    }


def _flops(lengths: tuple[int, ...]) -> float:
    """Of the token loop: three multiply-adds an element of the state and token."""
    return 2.0 * 3 * sum(lengths) * 32 * 128 * 128


BENCH = [
    BenchRow(
        name,
        lambda lengths=lengths, dtype=dtype: _bench_inputs(lengths, dtype),  # type: ignore[misc]
        flops=_flops(lengths),
        floor=Floor(3.0) if dtype == torch.bfloat16 else None,
        counts=dtype == torch.bfloat16,
    )
    for name, lengths, dtype in (
        ("2048 tokens, 16/32 heads, 128x128", (2048,), torch.bfloat16),
        ("4 x 128 tokens, 16/32 heads, 128x128", (128,) * 4, torch.bfloat16),
        ("2048 tokens, 16/32 heads, 128x128, float32", (2048,), torch.float32),
    )
]


PAIR = Pair(
    name="chunk_gated_delta_rule",
    version=1,
    case=ChunkCase,
    cases=cases(),
    inputs=inputs,
    reference=named_reference,
    optimized=call_optimized,
    bound=bound,
    aggregate=aggregate,
    mutates={"state": written},
    results=("out", "final_state"),
    result_dtype=result_dtype,
    layouts=LAYOUTS,
    fused=FUSED,
    indices=INDICES,
    relations=RELATIONS,
    paths=kernel_paths("chunk_"),
    bad=BAD,
    fuzz=every_argument,
    sharp=lambda case: case.dtype == "float32" or case.beta == "zero",
    emulated=small_enough,
    edges={
        "no sequence": lambda case: not case.lengths,
        "no token": lambda case: case.tokens == 0,
        "a sequence without tokens": lambda case: 0 in case.lengths,
        "a sequence without tokens in a pool": lambda case: 0 in case.lengths and case.form == "pool",
        "several chunks": lambda case: any(length > 2 * CHUNK for length in case.lengths),
        "a whole chunk": lambda case: CHUNK in case.lengths,
        "first offset above 0": lambda case: case.before > 0 and bool(case.lengths),
        "uncovered tail": lambda case: case.after > 0,
        "no initial state": lambda case: case.state == "none",
        "flags absent": lambda case: case.form == "pool" and not case.flags,
        "dirty slots start from zeros": lambda case: case.form == "pool" and case.flags and bool(set(case.cold) & set(case.live)),
        "pads": lambda case: case.form == "pool" and bool(case.pads),
        "pad is a slot in range": lambda case: case.pad_in_range,
        "bfloat16 states": lambda case: case.state == "bfloat16",
        "vk": lambda case: case.state_layout == "vk" and case.K != case.V,
        "K != V": lambda case: case.K != case.V,
        "three value heads a key head": lambda case: case.group == 3,
        "ragged widths": lambda case: case.K == 33 or case.V == 33,
        "fast decay": lambda case: case.decay == 30 and max(case.lengths, default=0) > 16,
        "no decay": lambda case: case.decay == 0,
        "beta zero": lambda case: case.beta == "zero",
        "tiny keys": lambda case: case.keys == "tiny" and case.l2norm,
        "no normalisation": lambda case: not case.l2norm,
        **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in UNIT},  # type: ignore[misc]
    },
    bench=BENCH,
    bench_case=ChunkCase(
        seed=8, dtype="bfloat16", form="pool", lengths=(130, 64), key_heads=2, group=2, K=128, V=128,
        int32=("state_indices", "cu_seqlens"),
    ),
    memory="in each thread, kept between calls: the fp32 states of one key head's value heads and a chunk of 64 tokens (tiles), "
    "or 64 columns of one state (vectors); independent of the length",
)
