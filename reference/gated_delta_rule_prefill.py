"""gated_delta_rule_prefill: chunk_gated_delta_rule with two more arguments, as engines' calls have them. It computes nothing
itself."""

from typing import Any

from torch import Tensor

from reference import checks
from reference.chunk_gated_delta_rule import chunk_gated_delta_rule


def gated_delta_rule_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    *,
    output_final_state: bool = True,
    head_first: bool = False,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Outputs, and the final states or None where output_final_state is False.

    head_first: q, k are [HK, T, K], v and the outputs [HV, T, V], g and beta [HV, T]; else heads follow tokens. States are as
    they are in either form. `rest` and errors are chunk_gated_delta_rule's; TypeError for flags that are no bools.
    """
    checks.is_bool("output_final_state", output_final_state)
    checks.is_bool("head_first", head_first)
    if head_first:
        for name, tensor, rank in (("q", q, 3), ("k", k, 3), ("v", v, 3), ("g", g, 2), ("beta", beta, 2)):
            checks.is_tensor(name, tensor, rank)
        q, k, v, g, beta = (tensor.transpose(0, 1) for tensor in (q, k, v, g, beta))
    out, final_state = chunk_gated_delta_rule(q, k, v, g, beta, initial_state, cu_seqlens, **rest)
    return out.transpose(0, 1) if head_first else out, final_state if output_final_state else None
