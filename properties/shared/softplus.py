"""Gate activations around the threshold of softplus, where the formula switches: near it the switch would be a matter of
rounding, on it it is not."""

import torch
from torch import Tensor

JUMP = 2.0**-4  # distance that others keep from the threshold
NEAR = 8.0  # how far an activation is moved at most
EVERY = 3  # so many heads, one of them on the threshold
NEVER = 1e30  # a threshold that stands for infinity, which the line of a case cannot hold


def given_threshold(threshold: float) -> float:
    """What a call is given for the threshold of a case."""
    return torch.inf if threshold == NEVER else threshold


def settled(a: Tensor, dt_bias: Tensor, beta: float, threshold: float, seed: int) -> Tensor:
    """a [N, HV] with `z = beta (a + dt_bias)` away from the threshold, and exactly on it in every third head where a number of
    a's dtype makes it so: none does where threshold / beta has more bits than a float32."""
    z = beta * (a.double() + dt_bias.double())
    a = torch.where((z - threshold).abs() < JUMP, a.float() - 1, a.float()).to(a.dtype)
    met = (threshold / beta - dt_bias.double()).expand(a.shape).to(a.dtype)
    exact = met.double() + dt_bias.double() == threshold / beta
    chosen = torch.arange(a.shape[-1]) % EVERY == seed % EVERY
    return torch.where(exact & chosen & ((met.float() - a.float()).abs() < NEAR), met, a)
