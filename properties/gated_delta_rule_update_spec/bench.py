"""gated_delta_rule_update_spec: what is timed, a Qwen3-Next layer's 32 states of 128 x 128 with two and four drafts."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Bench, BenchRow, Inputs
from properties.gated_delta_rule_update.bench import HK, HV, K, V
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase


def _inputs(requests: int, drafts: int) -> Inputs:
    tokens = requests * drafts
    q, k = torch.randn(2, tokens, HK, K, dtype=torch.bfloat16)
    a, b = torch.randn(2, tokens, HV, dtype=torch.bfloat16)
    return {
        "A_log": torch.randn(HV), "dt_bias": torch.randn(HV, dtype=torch.bfloat16), "q": q, "k": k,
        "v": torch.randn(tokens, HV, V, dtype=torch.bfloat16), "a": a, "b": b, "state": torch.randn(tokens, HV, K, V),
        "state_indices": torch.randperm(tokens).view(requests, drafts),
        "num_accepted_tokens": torch.arange(requests) % drafts + 1,
        "query_start_loc": torch.arange(requests + 1) * drafts,
    }


def _memcpy(given: Inputs) -> Callable[[], object]:
    """A state written for each that is written."""
    state = given["state"]
    to = torch.empty_like(state)
    return lambda: to.copy_(state)


BENCH = Bench(
    rows=[
        BenchRow(
            f"B = {requests}, {drafts} drafts",
            lambda requests=requests, drafts=drafts: _inputs(requests, drafts),  # type: ignore[misc]
            bytes=4 * requests * (drafts + 1) * HV * K * V,
            peers={"memcpy": _memcpy},
        )
        for requests in (1, 8, 64)
        for drafts in (2, 4)
    ],
    case=DeltaSpecCase(
        seed=8, dtype="bfloat16", requests=6, lengths=(2, 2, 2), accepted=(1, 2, 1), key_heads=2, group=2, key_size=128,
        value_size=128, eps=1e-5, wide=("A_log",), int32=("state_indices", "num_accepted_tokens", "query_start_loc"),
    ),
    memory="of a bfloat16 pool a float32 copy of one head's state in each thread",
)
