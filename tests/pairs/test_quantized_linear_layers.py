"""Linear layers of int8 and of float8 weights, alike on both sides."""

from types import ModuleType

import pytest
import torch

import optimized.backends.linear
import reference.backends.linear

SIDES = [reference.backends.linear, optimized.backends.linear]
BOTH = pytest.mark.parametrize("side", SIDES, ids=["reference", "optimized"])


@BOTH
@pytest.mark.parametrize("bias", [False, True])
def test_codes_that_are_exact_make_the_dense_layer(side: ModuleType, bias: bool) -> None:
    codes, scale = torch.randint(-8, 9, (5, 6)), torch.exp2(torch.randint(-3, 3, (5,)).float())
    x, more = torch.randint(-127, 128, (2, 3, 6)).float(), torch.arange(5.0) if bias else None
    x[..., 0] = 127  # so that rows of x are their own quantization
    dense = torch.nn.functional.linear(x, codes * scale[:, None], more)
    assert torch.equal(side.Int8Linear(codes.to(torch.int8), scale, more)(x), dense)
    layer = side.Fp8Linear(codes.to(torch.float8_e4m3fn), scale[:, None], (1, 6), more)
    assert torch.equal(layer(x), dense)


@BOTH
def test_every_block_has_its_scale(side: ModuleType) -> None:
    scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    layer = side.Fp8Linear(torch.ones(3, 5).to(torch.float8_e4m3fn), scales, (2, 3))
    assert layer(torch.eye(5)).T.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 2, 2], [4, 4, 4, 8, 8]]


@BOTH
def test_scales_that_do_not_fit_are_refused(side: ModuleType) -> None:
    codes = torch.ones(3, 4, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"scale must have shape \[3\], got \[4\]"):
        side.Int8Linear(codes, torch.ones(4))
    with pytest.raises(TypeError, match="scale has dtype"):
        side.Int8Linear(codes, torch.ones(3).double())
    with pytest.raises(ValueError, match="scale must be finite"):
        side.Int8Linear(codes, torch.tensor([1.0, torch.inf, 1.0]))
    with pytest.raises(ValueError, match="scales must have shape"):
        side.Fp8Linear(codes.to(torch.float8_e4m3fn), torch.ones(1, 1), (2, 4))
    with pytest.raises(TypeError, match="weight"):
        side.Int8Linear(codes.float(), torch.ones(3))
