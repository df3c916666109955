"""rms_norm: what is timed."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from kernelpair.timing.compare import in_order
from optimized import operator
from properties.rms_norm.cases import NormCase

TOKENS = (1, 64, 1024)
HIDDEN = (4096, 7168, 2048)
HEADS, WIDTH = 32, 128


def _bench_inputs(form: str, in_place: bool, *shape: int) -> Inputs:
    x, other = torch.randn(2, *shape, dtype=torch.bfloat16)
    given: Inputs = {"x": x, "weight": torch.randn(shape[-1], dtype=torch.bfloat16)} | ({"in_place": True} if in_place else {})
    return given if form == "plain" else given | {form: other}


def _called(given: Inputs) -> Callable[[], object]:
    """The operator of the row's form."""
    name = "rms_norm_in_place" if given.get("in_place") else "rms_norm"
    return in_order(operator(name), {key: value for key, value in given.items() if key != "in_place"})


def _torch_norm(given: Inputs) -> Callable[[], object]:
    x, weight, residual, gate = (given.get(name) for name in ("x", "weight", "residual", "gate"))
    norm, silu = torch.nn.functional.rms_norm, torch.nn.functional.silu

    def call() -> object:
        s = x if residual is None else residual.add_(x)
        out = norm(s, weight.shape, weight, 1e-6)  # type: ignore[arg-type, union-attr]
        return out if gate is None else out.mul_(silu(gate))

    return call


def _row(form: Literal["plain", "residual", "gate"], *shape: int, in_place: bool = False) -> BenchRow:
    elements = torch.Size(shape).numel()
    named = " x ".join(map(str, shape)) + ("" if form == "plain" else f" {form}") + " in place" * in_place
    moved = {"plain": 4, "residual": 8, "gate": 6}[form]
    case = NormCase(dtype="bfloat16", outer=shape[:-1], width=shape[-1], form=form, in_place=in_place)
    inputs = partial(_bench_inputs, form, in_place, *shape)
    return BenchRow(named, inputs, case=case, bytes=moved * elements, peers={"torch": _torch_norm})


BENCH = Bench(
    rows=[
        *(_row("plain", tokens, width) for width in HIDDEN for tokens in TOKENS),
        *(_row("residual", tokens, width, in_place=True) for width in HIDDEN for tokens in TOKENS),
        *(_row("residual", tokens, HIDDEN[0]) for tokens in TOKENS),
        *(_row("plain", tokens, HEADS, WIDTH) for tokens in TOKENS),
        *(_row("gate", tokens, HEADS, WIDTH) for tokens in TOKENS),
    ],
    case=NormCase(seed=8, dtype="bfloat16", outer=(64,), width=4096),
    prepare=_called,
    memory="none",
)
