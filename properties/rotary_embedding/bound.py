"""rotary_embedding: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.rotary_embedding.cases import RotaryCase
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error
from reference.rotary_embedding import rotary_embedding


def bound(case: RotaryCase, given: Inputs, truth: Outputs) -> Bound:
    """|dx'| <= u |x'| + g(2) (|x c| + |y s|) + t(|x| + |y| + |c| + |s|), and the same of y' with |y c| + |x s|.

    Two products, rounded by 2^-24 each, and their sum, rounded by 2^-24 of no more than both: g(2) is twice that. One rounding
    of the result. Quarter turns only move elements and change their signs: nothing may differ.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    return {name: _of(case, given, name, dtype, truth[name]) for name in ("query", "key") if name in truth}


def _of(case: RotaryCase, given: Inputs, name: str, dtype: torch.dtype, out: Tensor) -> Tensor:
    if case.exact:
        return torch.zeros_like(out)
    products, sizes = sums_of_sizes(given, given[name])
    tolerance = UNIT_ROUNDOFF[dtype] * out.abs() + accumulation_error(2) * products + flush_error(sizes, dtype)
    rotary = given["cos_sin_cache"].shape[-1]
    return torch.cat([tolerance[..., :rotary], torch.zeros_like(out[..., rotary:])], dim=-1)


def sums_of_sizes(given: Inputs, heads: Tensor) -> tuple[Tensor, Tensor]:
    """|x c| + |y s| (of y': |y c| + |x s|) and |x| + |y| + |c| + |s| of every element: the reference itself, of sizes and with
    -|s| in place of s where it subtracts."""
    cosines, sines = (half.abs() for half in given["cos_sin_cache"].chunk(2, dim=-1))
    rest = {"is_neox": given["is_neox"], "mrope_section": given["mrope_section"], "mrope_interleaved": given["mrope_interleaved"]}

    def rotated(values: Tensor, c: Tensor, s: Tensor) -> Tensor:
        minus, plus = values.clone(), values.clone()
        rotary_embedding(given["positions"], minus, None, torch.cat([c, -s], dim=-1), **rest)
        rotary_embedding(given["positions"], plus, None, torch.cat([c, s], dim=-1), **rest)
        return torch.maximum(minus, plus)  # x c + y s in the one, y c + x s in the other

    ones, sizes = torch.ones_like(heads), heads.abs()
    partners = rotated(sizes, torch.ones_like(cosines), torch.ones_like(sines))
    return rotated(sizes, cosines, sines), partners + rotated(ones, cosines, sines)
