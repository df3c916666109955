"""The layer of experts, alike on both sides: what it takes, and what it is."""

from dataclasses import FrozenInstanceError
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

import optimized.backends.experts
import optimized.fused_moe
import reference.backends.experts
import reference.fused_moe
from serving.experts import Routing

SIDES = [(reference.backends.experts, reference.fused_moe), (optimized.backends.experts, optimized.fused_moe)]
BOTH = pytest.mark.parametrize(("layers", "stacks"), SIDES, ids=["reference", "optimized"])
E, D, I = 4, 12, 6


def weights(count: int = E, seed: int = 3) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2 * I, D, generator=rng) / 3, torch.randn(count, D, I, generator=rng) / 3


def packed(stacks: ModuleType, count: int = E, seed: int = 3) -> Any:
    return tuple(stacks.PackedExperts.pack(weight) for weight in weights(count, seed))


def router() -> Tensor:
    return torch.randn(E, D, generator=torch.Generator().manual_seed(5))


def mlp(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    gate, up = linear(x, w13).chunk(2, -1)
    return linear(silu(gate) * up, w2)


def test_a_routing_and_its_defaults() -> None:
    plain = Routing(2)
    assert (plain.scoring, plain.renormalize, plain.scaling_factor) == ("softmax", True, 1.0)
    assert (plain.num_expert_group, plain.topk_group) == (1, 1)
    with pytest.raises(FrozenInstanceError):
        plain.topk = 3  # type: ignore[misc]


@BOTH
@pytest.mark.parametrize("renormalize", [True, False])
def test_all_experts_are_a_mean_of_dense_layers(layers: ModuleType, stacks: ModuleType, renormalize: bool) -> None:
    layer, (w13, w2) = layers.Experts(Routing(E, renormalize=renormalize, scaling_factor=0.5)), weights()
    layer.load(router(), *packed(stacks))
    x = torch.randn(5, D)
    shares = linear(x, router()).softmax(-1)
    expected = 0.5 * sum(shares[:, e, None] * mlp(x, w13[e], w2[e]) for e in range(E))
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@BOTH
def test_weights_that_are_not_renormalized_are_the_scores(layers: ModuleType, stacks: ModuleType) -> None:
    for renormalize in (False, True):
        layer = layers.Experts(Routing(2, renormalize=renormalize))
        layer.load(router(), *packed(stacks))
        x = torch.randn(7, D)
        best = linear(x, router()).softmax(-1).topk(2).values
        expected = best / best.sum(-1, keepdim=True) if renormalize else best
        torch.testing.assert_close(layer.route(x)[0], expected, atol=1e-5, rtol=1e-5)


@BOTH
def test_a_bias_of_the_choice_does_not_weigh(layers: ModuleType, stacks: ModuleType) -> None:
    layer, x = layers.Experts(Routing(1, "sigmoid", renormalize=False)), torch.randn(3, D)
    layer.load(router(), *packed(stacks), correction_bias=torch.tensor([0.0, 0.0, 9.0, 0.0]))
    chosen, ids = layer.route(x)
    assert ids.flatten().tolist() == [2, 2, 2]
    torch.testing.assert_close(chosen[:, 0], linear(x, router()).sigmoid()[:, 2], atol=1e-5, rtol=1e-5)


@BOTH
def test_what_all_share_is_added(layers: ModuleType, stacks: ModuleType) -> None:
    alone, both, x = layers.Experts(Routing(2)), layers.Experts(Routing(2)), torch.randn(3, D)
    alone.load(router(), *packed(stacks))
    both.load(router(), *packed(stacks), shared=packed(stacks, 1, 9))
    w13, w2 = weights(1, 9)
    torch.testing.assert_close(both(x) - alone(x), mlp(x, w13[0], w2[0]), atol=1e-5, rtol=1e-5)


@BOTH
def test_leading_dimensions_do_not_matter(layers: ModuleType, stacks: ModuleType) -> None:
    layer, x = layers.Experts(Routing(2)), torch.randn(2, 3, D)
    layer.load(router(), *packed(stacks))
    assert torch.equal(layer(x), layer(x.reshape(6, D)).reshape(2, 3, D))
    wide = torch.randn(3, D, 2)
    assert torch.equal(layer(wide[..., 0]), layer(wide[..., 0].contiguous()))
    assert layer(x[:, :0]).shape == (2, 0, D)


@BOTH
def test_what_does_not_belong_to_the_experts_is_refused(layers: ModuleType, stacks: ModuleType) -> None:
    layer, (w13, w2) = layers.Experts(Routing(2)), packed(stacks)
    with pytest.raises(ValueError, match="router: none is loaded"):
        layer(torch.randn(1, D))
    with pytest.raises(ValueError, match=r"router must have shape \[4, 12\], got \[3, 12\]"):
        layer.load(router()[1:], w13, w2)
    with pytest.raises(TypeError, match="router must be of a float dtype"):
        layer.load(router().int(), w13, w2)
    with pytest.raises(ValueError, match=r"correction_bias must have shape \[4\], got \[5\]"):
        layer.load(router(), w13, w2, torch.zeros(5))
    with pytest.raises(ValueError, match="shared w13 must hold one expert, got 2"):
        layer.load(router(), w13, w2, shared=packed(stacks, 2))
    with pytest.raises(ValueError, match="router: none is loaded"):
        layer(torch.randn(1, D))
