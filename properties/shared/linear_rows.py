"""Rows of `kernelpair bench` of linear layers on packed weights that are smaller than bfloat16."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelpair.contract.pair import BenchRow, Inputs


def linear_row(
    M: int, N: int, K: int, inputs: Callable[[int, int, int], Inputs], dense: Callable[[Inputs], Tensor], weight_bytes: float = 1
) -> BenchRow:
    """M rows of bfloat16 against a weight of `weight_bytes` an element. torch multiplies what `dense` gives, in bfloat16: twice
    the bytes or more, and nothing to decode."""

    def torch_linear(given: Inputs) -> Callable[[], object]:
        weight = dense(given).to(torch.bfloat16)
        return lambda: torch.nn.functional.linear(given["x"], weight)

    return BenchRow(
        f"{M} x {N} x {K}",
        lambda: inputs(M, N, K),
        flops=2.0 * M * N * K,
        bytes=weight_bytes * N * K + 2.0 * M * (N + K),
        peers={"torch": torch_linear},
        alone=True,
    )
