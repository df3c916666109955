"""causal_conv1d_update_spec: what is timed, a Qwen3-Next layer's 8,192 channels with two and four drafts."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from kernelpair.timing.compare import in_order
from optimized.causal_conv1d import causal_conv1d_update_spec
from properties.causal_conv1d_update_spec.cases import ConvSpecCase, arguments
from reference.causal_conv1d import causal_conv1d_pack_weight, causal_conv1d_unpack_weight

DIM, WIDTH = 8192, 4


def _inputs(requests: int, drafts: int) -> Inputs:
    dtype = torch.bfloat16
    return {
        "x": torch.randn(requests * drafts, DIM, dtype=dtype),
        "conv_states": torch.randn(requests, WIDTH - 2 + drafts, DIM, dtype=dtype).transpose(1, 2),
        "packed_weight": causal_conv1d_pack_weight(torch.randn(DIM, WIDTH).to(dtype)),
        "dim": DIM,
        "width": WIDTH,
        "bias": None,
        "query_start_loc": torch.arange(requests + 1) * drafts,
        "cache_indices": torch.randperm(requests),
        "num_accepted_tokens": torch.arange(requests) % drafts + 1,
    }


def _torch(given: Inputs) -> Callable[[], object]:
    slots, requests = given["cache_indices"], len(given["cache_indices"])
    x, states = given["x"].view(requests, -1, DIM).transpose(1, 2), given["conv_states"].contiguous()
    weight = causal_conv1d_unpack_weight(given["packed_weight"], DIM, WIDTH)[:, None].contiguous()
    columns = (given["num_accepted_tokens"][:, None] - 1 + torch.arange(WIDTH - 1))[:, None].expand(-1, DIM, -1)

    def run() -> Tensor:
        window = torch.cat([states[slots].gather(2, columns), x], dim=2)
        states[slots] = window[:, :, 1:]
        return F.silu(F.conv1d(window, weight, groups=DIM))

    return run


BENCH = Bench(
    rows=[
        BenchRow(
            f"{requests} x {drafts} drafts x {DIM}",
            lambda requests=requests, drafts=drafts: _inputs(requests, drafts),  # type: ignore[misc]
            bytes=2 * requests * DIM * (2 * drafts + 2 * WIDTH - 3 + drafts),
            peers={"torch": _torch},
        )
        for requests in (1, 8, 64)
        for drafts in (2, 4)
    ],
    case=ConvSpecCase(
        seed=8, dtype="bfloat16", dim=256, width=4, lengths=(2, 2, 2), accepted=(1, 2, 1), silu=True,
        layout={"conv_states": "turned"}, int32=("query_start_loc", "cache_indices", "num_accepted_tokens"),
    ),
    prepare=lambda given: in_order(causal_conv1d_update_spec, arguments(**given)),
    memory="on the stack of each thread: taps and history of 1,024 channels, 34 KiB at most",
)
