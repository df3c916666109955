"""Checks that both sides make alike, before anything is computed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from serving.packed import FLOATS

FLOAT32_ZERO, FLOAT32_INFINITE = 2.0**-150, (2 - 2.0**-24) * 2.0**127  # up to and from where float32 rounds to these
MOST_PAGE = 2**62  # a page start behind it would not fit the 64 bits of a slot


def check_count(name: str, value: object, least: int = 0) -> None:
    """TypeError unless `value` is an int, ValueError unless it is at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(name: str, value: float) -> None:
    """ValueError unless a number is finite and above 0 also in float32, in which kernels compute."""
    if not FLOAT32_ZERO < value < FLOAT32_INFINITE:
        raise ValueError(f"{name} must be finite and > 0 in float32, got {value}")


def check_dense_last(name: str, value: Tensor) -> None:
    """ValueError unless the elements of its last dimension lie side by side."""
    if value.numel() and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name} must be dense in its last dimension, got strides {list(value.stride())}")


def check_page_size(page_size: int) -> None:
    """TypeError and ValueError unless it is a count from 1 to 2^62."""
    check_count("page_size", page_size, 1)
    if page_size > MOST_PAGE:
        raise ValueError(f"page_size must be at most {MOST_PAGE}, got {page_size}")


def check_chunk(attn_chunk_size: int, page_size: int) -> None:
    """TypeError and ValueError unless both are counts from 1 on, and a chunk is whole pages."""
    check_count("attn_chunk_size", attn_chunk_size, 1)
    check_count("page_size", page_size, 1)
    if attn_chunk_size % page_size:
        raise ValueError(f"attn_chunk_size {attn_chunk_size} must be a multiple of page_size {page_size}")


def check_sizes(page_size: int, num_draft_tokens: int, speculative_step_id: int, attn_chunk_size: int | None) -> None:
    """TypeError and ValueError for the numbers that shape a batch's metadata."""
    check_page_size(page_size)
    check_count("num_draft_tokens", num_draft_tokens)
    check_count("speculative_step_id", speculative_step_id)
    if attn_chunk_size is not None:
        check_chunk(attn_chunk_size, page_size)


def check_linear(
    weight: Tensor, bias: Tensor | None, shape: tuple[int, int], dtype: torch.dtype, has_bias: bool
) -> None:
    """TypeError (dtype) and ValueError (shape, a bias for a layer without one) for what a linear layer [N, K] is to load."""
    if list(weight.shape) != list(shape):
        raise ValueError(f"weight must have shape {list(shape)}, got {list(weight.shape)}")
    if weight.dtype != dtype:
        raise TypeError(f"weight has dtype {weight.dtype}, expected {dtype}")
    if bias is not None and not has_bias:
        raise ValueError("bias is given to a layer without one")
    if bias is not None and bias.dtype not in (*FLOATS, dtype):
        raise TypeError(f"bias has dtype {bias.dtype}, expected one of {', '.join(map(str, FLOATS))}")
    if bias is not None and list(bias.shape) != [shape[0]]:
        raise ValueError(f"bias must have shape {[shape[0]]}, got {list(bias.shape)}")


def check_scales(scale: Tensor, shape: Sequence[int]) -> None:
    """TypeError unless scales are float32, ValueError unless they have this shape and are finite."""
    if scale.dtype != torch.float32:
        raise TypeError(f"scale has dtype {scale.dtype}, expected {torch.float32}")
    if list(scale.shape) != list(shape):
        raise ValueError(f"scale must have shape {list(shape)}, got {list(scale.shape)}")
    if not bool(scale.isfinite().all()):
        raise ValueError("scale must be finite")
