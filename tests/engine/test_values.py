"""Numbers for tensors."""

import math

import pytest
import torch

from kernelpair.call.values import SHORT_SEEDS, poison, poison_word, rounded_once, uniform


def test_a_float32_has_all_its_bits_but_of_small_seeds() -> None:
    long, short = (uniform(seed, "x", (1000,)).double() for seed in (SHORT_SEEDS, SHORT_SEEDS - 1))
    assert torch.equal((long * 2**24).frac(), torch.zeros_like(long)) and (long * 2**15).frac().any()
    assert torch.equal((short * 2**15).frac(), torch.zeros_like(short))
    assert long.abs().max() < 1 and long.std() > 0.5 and short.std() > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_one_rounding_is_that_of_torch_where_float32_loses_nothing(dtype: torch.dtype) -> None:
    words = torch.arange(-(2**31), 2**31, 2**31 // 99_991, dtype=torch.int64).to(torch.int32).view(torch.float32)
    ends = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3.5e38, 1e300, -1e300, 1e-300, -1e-300], dtype=torch.float64)
    numbers = torch.cat([words.to(torch.float64), ends])
    integer = torch.uint8 if dtype.itemsize == 1 else torch.int16
    same = rounded_once(numbers, dtype).view(integer) == numbers.to(dtype).view(integer)
    assert (same | numbers.isnan()).all() and rounded_once(numbers, dtype)[numbers.isnan()].isnan().all()


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_integers_of_every_width_have_poisons(dtype: torch.dtype) -> None:
    assert poison("nan", (1,), dtype).item() != poison("outlier", (1,), dtype).item()
    assert poison_word("nan", dtype) != poison_word("outlier", dtype)
