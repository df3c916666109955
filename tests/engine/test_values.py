"""Numbers for tensors."""

import torch

from kernelpair.call.values import SHORT_SEEDS, uniform


def test_a_float32_has_all_its_bits_but_of_small_seeds() -> None:
    long, short = (uniform(seed, "x", (1000,)).double() for seed in (SHORT_SEEDS, SHORT_SEEDS - 1))
    assert torch.equal((long * 2**24).frac(), torch.zeros_like(long)) and (long * 2**15).frac().any()
    assert torch.equal((short * 2**15).frac(), torch.zeros_like(short))
    assert long.abs().max() < 1 and long.std() > 0.5 and short.std() > 0.5
