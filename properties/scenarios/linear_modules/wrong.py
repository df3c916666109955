"""Calls of linear layers and of experts that must be refused, and with which error."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from serving.experts import Routing

N, K = 3, 4  # outputs and inputs of the layers
E, TOPK = 4, 2  # experts of width K
NO_WEIGHT, NO_BIAS = torch.zeros(N, K), torch.zeros(N)
X = torch.zeros(1, K)


def answered_otherwise(linears: Any, experts: Any, stacks: Any) -> list[str]:
    """The calls of one side that are answered with anything but the error that belongs to them. `linears`, `experts` and `stacks`
    are the modules of its linear layers, of its layer of experts, and of its packed experts."""
    calls = {**_linear(linears), **_quantized(linears), **_experts(experts, stacks)}
    return [f"{name}: {got}" for name, (error, call) in calls.items() if (got := _answer(call)) != error.__name__]


def _answer(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - its class is what is asked for
        return type(error).__name__
    return "accepted"


Calls = dict[str, tuple[type[Exception], Callable[[], object]]]


def _linear(side: Any) -> Calls:
    def layer(bias: bool = True) -> Any:
        return side.Linear(K, N, bias, torch.float32)

    return {
        "a layer of no columns": (ValueError, lambda: side.Linear(0, N)),
        "a layer of no rows": (ValueError, lambda: side.Linear(K, 0)),
        "x before a weight": (ValueError, lambda: layer()(X)),
        "a weight of one row more": (ValueError, lambda: layer().load(torch.zeros(N + 1, K))),
        "a weight that is transposed": (ValueError, lambda: layer().load(torch.zeros(K, N))),
        "a weight of another dtype": (TypeError, lambda: layer().load(NO_WEIGHT.bfloat16())),
        "a bias for a layer without one": (ValueError, lambda: layer(False).load(NO_WEIGHT, NO_BIAS)),
        "a bias of one element": (ValueError, lambda: layer().load(NO_WEIGHT, NO_BIAS[:1])),
        "a bias of integers": (TypeError, lambda: layer().load(NO_WEIGHT, NO_BIAS.int())),
    }


def _quantized(side: Any) -> Calls:
    def bytes_of(scale: Tensor) -> Any:
        return side.Int8Linear(NO_WEIGHT.to(torch.int8), scale)

    def codes_of(scales: Tensor) -> Any:
        return side.Fp8Linear(NO_WEIGHT.to(torch.float8_e4m3fn), scales, (2, 2))

    blocks = torch.ones((N + 1) // 2, K // 2)
    return {
        "scales of bytes one too few": (ValueError, lambda: bytes_of(NO_BIAS[1:])),
        "scales of bytes in 16 bits": (TypeError, lambda: bytes_of(NO_BIAS.bfloat16())),
        "a scale of bytes that is infinite": (ValueError, lambda: bytes_of(NO_BIAS + torch.inf)),
        "scales of codes one row too few": (ValueError, lambda: codes_of(blocks[1:])),
        "scales of codes in 16 bits": (TypeError, lambda: codes_of(blocks.bfloat16())),
    }


def _experts(side: Any, stacks: Any) -> Calls:
    w13, w2 = (stacks.PackedExperts.pack(torch.zeros(E, rows, K)) for rows in (2 * K, K))
    router, two = torch.zeros(E, K), stacks.PackedExperts.pack(torch.zeros(2, K, K))

    def layer() -> Any:
        return side.Experts(Routing(TOPK))

    return {
        "routes before a router": (ValueError, lambda: layer().route(X)),
        "x before a router": (ValueError, lambda: layer()(X)),
        "a router of one expert more": (ValueError, lambda: layer().load(torch.zeros(E + 1, K), w13, w2)),
        "a router of another width": (ValueError, lambda: layer().load(router[:, 1:], w13, w2)),
        "a router of integers": (TypeError, lambda: layer().load(router.int(), w13, w2)),
        "a bias of one expert more": (ValueError, lambda: layer().load(router, w13, w2, torch.zeros(E + 1))),
        "two experts that all tokens share": (ValueError, lambda: layer().load(router, w13, w2, None, (w13, two))),
    }
