"""The references of the gated delta rule against the pure-PyTorch functions that `transformers` ships for Qwen3-Next.

Those compute in fp32 and take equally long sequences with a batch dimension; errors are measured against the size of the
result, in units of what fp32 accumulation over the sequence can lose.
"""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.chunk_gated_delta_rule import chunk_gated_delta_rule

B, T, HK, HV, K, V = 2, 150, 2, 6, 32, 48
LOST = 2.0**-24 * 16 * T**0.5 * K**0.5  # relative, as a Frobenius norm: u times random-walk sums over tokens and keys


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The module with the outside implementations; imported once, because transformers is slow to import."""
    return importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")


def inputs(decay: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(8)
    return {
        "q": torch.randn(B, T, HK, K, generator=rng).to(dtype),
        "k": torch.randn(B, T, HK, K, generator=rng).to(dtype),
        "v": torch.randn(B, T, HV, V, generator=rng).to(dtype),
        "g": -decay * torch.rand(B, T, HV, generator=rng),
        "beta": torch.rand(B, T, HV, generator=rng).to(dtype),
        "state": torch.randn(B, HV, K, V, generator=rng),
    }


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("use_initial_state", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("form", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_reference_agrees(oracle: Any, form: str, decay: float, use_initial_state: bool) -> None:
    x = inputs(decay)
    state = x.pop("state") if use_initial_state else x.pop("state") * 0
    their_out, their_state = getattr(oracle, form)(
        *x.values(), initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    flat = {name: tensor.flatten(0, 1) for name, tensor in x.items()}
    cu_seqlens = torch.arange(B + 1) * T
    out, final_state = chunk_gated_delta_rule(**flat, initial_state=state, cu_seqlens=cu_seqlens)

    assert relative_error(their_out.flatten(0, 1), out) <= LOST
    assert relative_error(their_state, final_state) <= LOST


def test_a_wrong_gate_is_noticed(oracle: Any) -> None:
    """The tolerance has power: one token's decay left out shows."""
    x = inputs(0.1)
    state = x.pop("state")
    their_out, _ = oracle.torch_recurrent_gated_delta_rule(*x.values(), state, True, True)
    x["g"][0, T // 2] = 0
    flat = {name: tensor.flatten(0, 1) for name, tensor in x.items()}
    out, _ = chunk_gated_delta_rule(**flat, initial_state=state, cu_seqlens=torch.arange(B + 1) * T)
    assert relative_error(their_out.flatten(0, 1), out) > 4 * LOST
