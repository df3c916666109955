"""act_and_mul: what is timed."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.act_and_mul.cases import ActCase

TOKENS = (1, 64, 1024)
WIDTHS = (14336, 768, 2048)
TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
}


def _torch_act(given: Inputs) -> Callable[[], object]:
    x, f = given["x"], TORCH[given["activation"]]
    d = x.shape[-1] // 2
    return lambda: f(x[..., :d]).mul_(x[..., d:])


def _row(activation: str, tokens: int, width: int) -> BenchRow:
    return BenchRow(
        f"{tokens} x 2 x {width}" + ("" if activation == "silu" else f" {activation}"),
        lambda: {"x": torch.randn(tokens, 2 * width, dtype=torch.bfloat16), "activation": activation},
        case=ActCase(dtype="bfloat16", activation=activation, outer=(tokens,), width=width),
        bytes=6 * tokens * width,
        peers={"torch": _torch_act},
    )


BENCH = Bench(
    rows=[
        *(_row("silu", tokens, width) for width in WIDTHS for tokens in TOKENS),
        *(_row(activation, 64, 2048) for activation in ("gelu", "gelu_tanh")),
    ],
    case=ActCase(seed=8, dtype="bfloat16", outer=(64,), width=2048),
    memory="none",
)
