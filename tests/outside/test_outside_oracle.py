"""The references of the convolution and of the recurrent delta rule against the pure-PyTorch functions that `transformers`
ships for Qwen3-Next layers. Those compute in float32, so they must lie within the contracts' bounds for float32.
"""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.contract.pair import Within
from kernelpair.trial.truth import truth_of, widen
from properties.causal_conv1d import PAIR as CONV
from properties.causal_conv1d.cases import ConvCase
from reference.gated_delta_rule_update import gated_delta_rule_update
from reference.gdn_gating import gdn_gating


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The module with the outside implementations; imported once, because transformers is slow to import."""
    return importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")


def conv_case(form: str, width: int, silu: bool, bias: str) -> tuple[ConvCase, dict[str, Any], Tensor]:
    lengths = (9, 9, 9) if form == "batched" else (1, 1, 1)
    case = ConvCase(seed=5, form=form, dim=40, width=width, lengths=lengths, silu=silu, bias=bias, poison="outlier")
    given = CONV.cases.inputs(case)
    weight = given["packed_weight"].transpose(1, 2).reshape(-1, 2 * given["packed_weight"].shape[1])
    return case, given, weight[:40, :width]


def within_bound(case: ConvCase, given: dict[str, Any], theirs: Tensor) -> None:
    truth, widened = truth_of(CONV, given)
    assert isinstance(CONV.truth, Within)
    bound = CONV.truth.bound(case, widened, truth)["out"]
    assert isinstance(bound, Tensor)
    error = (theirs.double() - truth["out"]).abs()
    assert bool((error <= bound).all()), f"worst {float((error / bound).max()):.3g} bounds"


@pytest.mark.parametrize("bias", ["none", "call"])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_conv_forward(oracle: Any, width: int, silu: bool, bias: str) -> None:
    case, given, weight = conv_case("batched", width, silu, bias)
    activation = "silu" if silu else None
    within_bound(case, given, oracle.causal_conv1d_fn(given["x"], weight, given["bias"], activation))


@pytest.mark.parametrize("bias", ["none", "call"])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_conv_update(oracle: Any, width: int, silu: bool, bias: str) -> None:
    case, given, weight = conv_case("update", width, silu, bias)
    states = given["conv_states"].clone()
    activation = "silu" if silu else None
    theirs = oracle.causal_conv1d_update(given["x"][:, :, None], states, weight, given["bias"], activation)
    within_bound(case, given, theirs[:, :, 0])
    truth, _ = truth_of(CONV, given)
    assert torch.equal(states, truth["conv_states"].float())


B, T, HK, HV, K, V = 2, 40, 2, 6, 32, 48
LOST = 2.0**-24 * 16 * T**0.5 * K**0.5  # relative, as a Frobenius norm: u times random-walk sums over tokens and keys


def delta_inputs() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(7)
    shapes = {"q": (T, B, HK, K), "k": (T, B, HK, K), "v": (T, B, HV, V), "a": (T, B, HV), "b": (T, B, HV)}
    vectors = {"A_log": (HV,), "dt_bias": (HV,), "state": (B, HV, K, V)}
    return {name: torch.randn(*shape, generator=rng) for name, shape in (shapes | vectors).items()}


def step_by_step(x: dict[str, Tensor], **changed: Any) -> tuple[Tensor, Tensor]:
    """Our step once a token: outputs [B, T, HV, V] and the last state."""
    wide = {name: widen(value) for name, value in x.items()}
    state, tokens, slots = wide.pop("state"), ("q", "k", "v", "a", "b"), torch.arange(B)
    vectors = {name: wide[name] for name in ("A_log", "dt_bias")}
    outs = [
        gated_delta_rule_update(
            **vectors, **{name: wide[name][t] for name in tokens}, state=state, state_indices=slots, **changed
        )
        for t in range(T)
    ]
    return torch.stack(outs, dim=1), state


def their_whole_run(oracle: Any, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The outside recurrence over all tokens, its gates computed as that layer computes them."""
    q, k, v, a, b = (x[name].transpose(0, 1) for name in ("q", "k", "v", "a", "b"))
    g = -x["A_log"].float().exp() * torch.nn.functional.softplus(a.float() + x["dt_bias"])
    return oracle.torch_recurrent_gated_delta_rule(q, k, v, g, b.sigmoid(), x["state"], True, True)


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def test_delta_rule_token_by_token(oracle: Any) -> None:
    x = delta_inputs()
    their_out, their_state = their_whole_run(oracle, x)
    out, state = step_by_step(x)
    assert relative_error(their_out, out) <= LOST
    assert relative_error(their_state, state) <= LOST


def test_a_wrong_eps_is_noticed(oracle: Any) -> None:
    """The tolerance has power: an eps of another size shows."""
    x = delta_inputs()
    their_out, _ = their_whole_run(oracle, x)
    out, _ = step_by_step(x, eps=1e-2)
    assert relative_error(their_out, out) > 4 * LOST


def test_gates(oracle: Any) -> None:
    """The layer's own formula, where it is accurate in float32: relative to 2^-15 as in the contract."""
    x = delta_inputs()
    a, b = x["a"][:, 0], x["b"][:, 0]
    g, beta = gdn_gating(*(widen(value) for value in (x["A_log"], a, b, x["dt_bias"])))
    theirs = -x["A_log"].exp() * torch.nn.functional.softplus(a + x["dt_bias"])
    assert bool(((theirs - g).abs() <= 2.0**-15 * g.abs()).all())
    assert bool(((b.sigmoid() - beta).abs() <= 2.0**-16 * beta).all())
