"""Weights that 8 bits and scales hold exactly: the library computes with the numbers that our quantized layers read."""

from typing import Any

import torch
from torch import Tensor

BLOCK = (8, 4)  # outputs and columns that share a scale of float8 codes
LARGEST = {"int8": 127.0, "fp8": 448.0}


def quantize_modules(model: Any, kind: str, rng: torch.Generator) -> None:
    """Replace the weights of all linear modules, of fp8 also of experts, by numbers that codes and scales hold; each module keeps
    its codes and scales as `quantized`."""
    for module in model.modules():
        linear = type(module) is torch.nn.Linear
        if linear:
            module.quantized = _replaced(module.weight, kind, rng)
        elif kind == "fp8" and hasattr(module, "gate_up_proj") and not hasattr(module, "gate_up_proj_bias"):
            module.quantized = tuple(_replaced(stack, kind, rng) for stack in (module.gate_up_proj, module.down_proj))


def _replaced(weight: Tensor, kind: str, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The codes and scales that `weight` [..., N, K] has from now on."""
    block = (1, weight.shape[-1]) if kind == "int8" else BLOCK
    largest = _blocks(weight.abs(), block).amax((-3, -1)).clamp_min(2.0**-20)
    scales = torch.exp2((largest / LARGEST[kind]).log2().ceil() + torch.randint(0, 3, largest.shape, generator=rng))
    exact = weight / _spread(scales, weight, block)
    codes = exact.round().to(torch.int8) if kind == "int8" else exact.to(torch.float8_e4m3fn)
    weight.copy_(codes.to(weight.dtype) * _spread(scales, weight, block))
    return codes, scales[..., 0] if kind == "int8" else scales


def _blocks(weight: Tensor, block: tuple[int, int]) -> Tensor:
    """[..., N / bn, bn, K / bk, bk], with zeros behind the last row and column."""
    (block_n, block_k), (N, K) = block, weight.shape[-2:]
    whole = torch.nn.functional.pad(weight, (0, -K % block_k, 0, -N % block_n))
    return whole.unflatten(-1, (-1, block_k)).unflatten(-3, (-1, block_n))


def _spread(scales: Tensor, weight: Tensor, block: tuple[int, int]) -> Tensor:
    """The scale of each weight."""
    outputs, columns = (torch.arange(size) // of for size, of in zip(weight.shape[-2:], block))
    return scales[..., outputs, :][..., columns]
