"""Rows of `kernelpair bench` for gated_delta_rule_update: a Qwen3-Next layer, 16 key and 32 value heads of 128 x 128."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from properties.gated_delta_rule_update.cases import DeltaCase

HK, HV, K, V = 16, 32, 128, 128


def _inputs(requests: int, layout: str, dtype: torch.dtype = torch.float32) -> Inputs:
    q, k = torch.randn(2, requests, HK, K, dtype=torch.bfloat16)
    a, b = torch.randn(2, requests, HV, dtype=torch.bfloat16)
    return {
        "A_log": torch.randn(HV),
        "dt_bias": torch.randn(HV),
        "q": q,
        "k": k,
        "v": torch.randn(requests, HV, V, dtype=torch.bfloat16),
        "a": a,
        "b": b,
        "state": torch.randn(requests, HV, K, V).to(dtype),
        "state_indices": torch.randperm(requests),
        "state_layout": layout,
    }


def _memcpy(given: Inputs) -> Callable[[], object]:
    state = given["state"]
    to = torch.empty_like(state)
    return lambda: to.copy_(state)


def _torch_step(given: Inputs) -> Callable[[], object]:
    """The same step as plain torch operations on a contiguous state."""
    state = given["state"].float().clone()
    if given["state_layout"] == "vk":
        state = state.transpose(2, 3).contiguous()
    q, k, v, a, b, A_log, dt_bias = (given[name].float() for name in ("q", "k", "v", "a", "b", "A_log", "dt_bias"))

    def run() -> object:
        qh, kh = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        qh, kh = (x.repeat_interleave(HV // HK, dim=1) for x in (qh, kh))
        gamma = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a + dt_bias))
        state.mul_(gamma[..., None, None])
        w = (v - (kh[:, :, None] @ state)[:, :, 0]) * b.sigmoid()[..., None]
        state.addcmul_(kh[..., None], w[:, :, None])
        return (qh[:, :, None] @ state)[:, :, 0] * K**-0.5

    return run


ROWS = [
    BenchRow(
        f"B = {requests}, {layout}, {str(dtype).removeprefix('torch.')} state",
        lambda requests=requests, layout=layout, dtype=dtype: _inputs(requests, layout, dtype),  # type: ignore[misc]
        case=DeltaCase(
            dtype="bfloat16", requests=requests, key_heads=HK, group=HV // HK, key_size=K, value_size=V, state_layout=layout,
            state_dtype=str(dtype).removeprefix("torch."), eps=1e-5, wide=("A_log", "dt_bias"),
        ),
        bytes=2 * requests * HV * K * V * dtype.itemsize,
        peers={"torch": _torch_step, "memcpy": _memcpy},
        floor=Floor(1.2) if layout == "kv" else None,
        counts=layout == "kv",
    )
    for requests, layout, dtype in (
        (1, "kv", torch.float32),
        (16, "kv", torch.float32),
        (64, "kv", torch.float32),
        (1, "vk", torch.float32),
        (64, "vk", torch.float32),
        (64, "vk", torch.bfloat16),
    )
]


BENCH = Bench(
    rows=ROWS,
    case=DeltaCase(
        seed=8, dtype="bfloat16", requests=4, key_heads=2, group=2, key_size=128, value_size=128, eps=1e-5, wide=("A_log",),
        int32=("state_indices",),
    ),
    memory="on the stack of each thread: 512 normalised elements of q and k, 4 KiB",
)
