"""Whether the bounds of the gated delta rule have power: what they must catch exceeds them, on the inputs that the pair draws.

No kernel runs here: a wrong result is made from the reference's own.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs
from kernelpair.trial.truth import widen
from properties.chunk_gated_delta_rule import PAIR
from properties.chunk_gated_delta_rule.bound import aggregate, bound
from properties.chunk_gated_delta_rule.cases import CHUNK, ChunkCase, inputs, named_reference

LONG = ChunkCase(lengths=(32 * CHUNK,), K=16, V=16, decay=0.001, seed=3)


def truth_of(given: Inputs) -> tuple[Inputs, Outputs]:
    exact = {name: widen(value) for name, value in given.items()}
    return exact, named_reference(**exact)


def rounding_the_carry(case: ChunkCase, exact: Inputs) -> Outputs:
    """The token loop with the state rounded to bfloat16 after each chunk."""
    state, outs, begin = exact["initial_state"], [], 0
    while begin < case.tokens:
        rows = slice(begin, begin + CHUNK)
        part = {name: exact[name][rows] for name in ("q", "k", "v", "g", "beta")}
        offsets = torch.tensor([0, len(part["q"])])
        found = named_reference(**exact | part | {"initial_state": state, "cu_seqlens": offsets})
        outs.append(found["out"])
        state = found["final_state"].bfloat16().double()
        begin += CHUNK
    return {"out": torch.cat(outs), "final_state": state}


def ratio(got: Tensor, truth: Tensor, allowed: Tensor) -> float:
    return float(((got - truth).abs() / allowed).max())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(replace(LONG, dtype="float32"), id="float32"),
        pytest.param(replace(LONG, dtype="bfloat16", beta="zero"), id="beta 0"),
    ],
)
def test_a_carry_rounded_at_each_chunk_exceeds_the_bound(case: ChunkCase) -> None:
    exact, truth = truth_of(inputs(case))
    allowed = bound(case, exact, truth)
    wrong = rounding_the_carry(case, exact)
    assert ratio(wrong["final_state"], truth["final_state"], allowed["final_state"]) > 1  # type: ignore[arg-type]
    assert any(name == "final_state" for name, _, ratio in aggregate(case, exact, truth, wrong) if ratio > 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_scale_wrong_by_one_and_a_half_percent_exceeds_the_aggregate(seed: int) -> None:
    case = ChunkCase(dtype="bfloat16", lengths=(128,), K=64, V=64, decay=1.0, seed=seed)
    exact, truth = truth_of(inputs(case))
    wrong = truth | {"out": truth["out"] * 1.015}
    assert ratio(wrong["out"], truth["out"], bound(case, exact, truth)["out"]) < 1  # the element bound alone is blind to it
    assert [name for name, *_ in aggregate(case, exact, truth, wrong)] == ["out"]


def with_rounded_operands(exact: Inputs, kind: torch.dtype, relative: float) -> Outputs:
    """Every input off by up to `relative` of itself, and one rounding of the result."""
    nudged = dict(exact)
    for name in ("q", "k", "v", "initial_state"):
        noise = 2 * torch.rand(exact[name].shape, dtype=torch.float64) - 1
        nudged[name] = exact[name] * (1 + noise * relative)
    found = named_reference(**nudged)
    return {"out": found["out"].to(kind).double(), "final_state": found["final_state"].float().double()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("decay", [0.0, 0.05, 1.0])
def test_one_rounding_of_each_operand_stays_within_both(dtype: str, decay: float) -> None:
    """What each kernel may do."""
    case = ChunkCase(dtype=dtype, lengths=(70,), K=32, V=32, decay=decay, seed=5)
    exact, truth = truth_of(inputs(case))
    kind = getattr(torch, dtype)
    found = with_rounded_operands(exact, kind, torch.finfo(kind).eps / 2)
    allowed = bound(case, exact, truth)
    for name in ("out", "final_state"):
        assert ratio(found[name], truth[name], allowed[name]) < 1  # type: ignore[arg-type]
    assert aggregate(case, exact, truth, found) == []


@pytest.mark.parametrize("decay", [0.05, 1.0])
def test_operands_rounded_to_bfloat16_exceed_the_bound_of_the_accurate_form(decay: float) -> None:
    """Which those of two bfloat16 numbers keep."""
    case = ChunkCase(dtype="bfloat16", lengths=(70,), K=32, V=32, decay=decay, seed=5, accurate=True)
    exact, truth = truth_of(inputs(case))
    allowed = bound(case, exact, truth)
    for name in ("out", "final_state"):
        rounded = with_rounded_operands(exact, torch.bfloat16, 2.0**-8)
        assert ratio(rounded[name], truth[name], allowed[name]) > 1  # type: ignore[arg-type]
        assert ratio(rounded[name], truth[name], bound(replace(case, accurate=False), exact, truth)[name]) < 1  # type: ignore[arg-type]
        two_parts = with_rounded_operands(exact, torch.bfloat16, 2.0**-16)
        assert ratio(two_parts[name], truth[name], allowed[name]) < 1  # type: ignore[arg-type]
    assert aggregate(case, exact, truth, with_rounded_operands(exact, torch.bfloat16, 2.0**-16)) == []


def test_the_pair_names_its_sharp_cases() -> None:
    assert PAIR.sharp(replace(LONG, dtype="bfloat16", accurate=True))
    assert PAIR.sharp(replace(LONG, dtype="float32"))
    assert PAIR.sharp(replace(LONG, dtype="bfloat16", beta="zero"))
    assert not PAIR.sharp(replace(LONG, dtype="bfloat16"))
