"""Caches without slots have no address: whether they share a buffer is said by their strides and widths, on both sides alike."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optimized import operator
from reference.decode_attention import decode_attention

SIDES = [decode_attention, operator("decode_attention")]


def all_pads(attend: Callable[..., Any], k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """A call of one request, a pad, with a new key and no value."""
    out, width = torch.ones(1, 2, v_cache.shape[2]), k_cache.shape[2]
    none = torch.zeros(1, dtype=torch.int64)
    attend(
        torch.zeros(1, 2, width), k_cache, v_cache, out, torch.zeros(1, 1, width), None, none - 1,
        torch.zeros(1, 2, 1, v_cache.shape[2] + 1), none[None], none, none, None, None, 1.0, pad_slot=-1,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("attend", SIDES, ids=["reference", "optimized"])
@pytest.mark.parametrize("width_v", [8, 4])
def test_the_values_may_be_part_of_no_keys(attend: Callable[..., Any], width_v: int) -> None:
    k_cache = torch.zeros(0, 1, 8)
    assert not all_pads(attend, k_cache, k_cache[..., :width_v]).any()


@pytest.mark.parametrize("attend", SIDES, ids=["reference", "optimized"])
def test_values_of_another_stride_are_not_shared(attend: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="value"):
        all_pads(attend, torch.zeros(0, 1, 8), torch.zeros(0, 1, 4))
