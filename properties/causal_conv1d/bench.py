"""Rows of `kernelpair bench` for causal_conv1d: a Qwen3-Next layer's 8,192 channels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelpair.contract.pair import PEERS, Bench, BenchRow, Floor, Inputs
from kernelpair.timing.compare import in_order
from properties.causal_conv1d.cases import ConvCase, optimized_call
from reference.causal_conv1d import causal_conv1d_pack_weight, causal_conv1d_unpack_weight

DIM, WIDTH = 8192, 4


def _common(dtype: torch.dtype) -> Inputs:
    weight = torch.randn(DIM, WIDTH).to(dtype)
    return {"packed_weight": causal_conv1d_pack_weight(weight), "dim": DIM, "width": WIDTH, "bias": None}


def _forward(tokens: int, dtype: torch.dtype) -> Inputs:
    x = torch.randn(tokens, DIM).to(dtype).t()
    states = torch.zeros(1, WIDTH - 1, DIM, dtype=dtype).transpose(1, 2)
    offsets = torch.tensor([0, tokens])
    return {
        "form": "varlen",
        "x": x,
        **_common(dtype),
        "conv_states": states,
        "query_start_loc": offsets,
        "cache_indices": None,
        "has_initial_state": None,
    }


def _update(requests: int) -> Inputs:
    x = torch.randn(requests, DIM, dtype=torch.bfloat16)
    states = torch.randn(requests, WIDTH - 1, DIM, dtype=torch.bfloat16).transpose(1, 2)
    return {"form": "update", "x": x, **_common(x.dtype), "conv_states": states, "cache_indices": torch.randperm(requests)}


def _weight(given: Inputs) -> Tensor:
    return causal_conv1d_unpack_weight(given["packed_weight"], DIM, WIDTH)[:, None].contiguous()


def _torch_forward(given: Inputs) -> Callable[[], object]:
    x, weight = given["x"].contiguous()[None], _weight(given)
    return lambda: F.silu(F.conv1d(x, weight, padding=WIDTH - 1, groups=DIM)[..., : x.shape[-1]])


def _torch_update(given: Inputs) -> Callable[[], object]:
    x, states, weight = given["x"], given["conv_states"].contiguous(), _weight(given)[:, 0]
    slots = given["cache_indices"]

    def run() -> Tensor:
        window = torch.cat([states[slots], x[:, :, None]], dim=2)
        states[slots] = window[:, :, 1:]
        return F.silu((window * weight).sum(2))

    return run


def _case(dtype: torch.dtype, **fields: Any) -> ConvCase:
    return ConvCase(dtype=str(dtype).removeprefix("torch."), dim=DIM, width=WIDTH, silu=True, **fields)


ROWS = [
    *(
        BenchRow(
            f"fwd {tokens} x {DIM}" + ("" if dtype == torch.bfloat16 else f", {str(dtype).removeprefix('torch.')}"),
            lambda tokens=tokens, dtype=dtype: _forward(tokens, dtype),  # type: ignore[misc]
            case=_case(dtype, form="varlen", lengths=(tokens,), layout={"x": "turned", "conv_states": "turned"}),
            bytes=2 * dtype.itemsize * tokens * DIM,
            peers={"torch": _torch_forward},
            floor=floor,
            counts=floor is not None and floor.over == PEERS,
        )
        for tokens, dtype, floor in (
            (128, torch.bfloat16, None),
            (1024, torch.bfloat16, Floor(2.0)),
            (1024, torch.float16, Floor(0.5, over="torch")),
            (1024, torch.float32, Floor(0.5, over="torch")),
        )
    ),
    *(
        BenchRow(
            f"update {requests} x {DIM}",
            lambda requests=requests: _update(requests),  # type: ignore[misc]
            case=_case(torch.bfloat16, lengths=(1,) * requests, indexed=True, layout={"conv_states": "turned"}),
            bytes=2 * 2 * requests * DIM * WIDTH,
            peers={"torch": _torch_update},
            floor=Floor(1.0) if requests == 64 else None,
            counts=requests == 64,
        )
        for requests in (1, 64)
    ),
]


BENCH = Bench(
    rows=ROWS,
    case=ConvCase(
        seed=8, dtype="bfloat16", form="varlen", dim=256, width=4, lengths=(100, 28), indexed=True, initial="some", silu=True,
        layout={"x": "turned", "conv_states": "turned"}, int32=("query_start_loc", "cache_indices"),
    ),
    prepare=lambda given: in_order(*optimized_call(**given)),
    memory="on the stack of each thread: taps and history of 1,024 channels, 34 KiB at most",
)
