"""The operator chunk_gated_delta_rule with two more arguments, as engines' calls have them. Nothing is copied for them."""

from typing import Any

from torch import Tensor

from optimized.operators import operator


def gated_delta_rule_prefill(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor, *,
    output_final_state: bool = True, head_first: bool = False, **rest: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs, and the final states of all sequences or None.

    q, k [T, HK, K], v [T, HV, V], g, beta [T, HV]; with head_first [HK, T, K], [HV, T, V], [HV, T], and outputs alike: views of
    what the kernel reads and writes. Raises TypeError, ValueError and IndexError as chunk_gated_delta_rule.
    """
    for name, flag in (("output_final_state", output_final_state), ("head_first", head_first)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
    if head_first:
        q, k, v, g, beta = (_tokens_first(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta)))
    out, final_state = operator("chunk_gated_delta_rule")(q, k, v, g, beta, initial_state, cu_seqlens, **rest)
    return out.transpose(0, 1) if head_first else out, final_state if output_final_state else None


def _tokens_first(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dim() < 2:
        raise ValueError(f"{name} must have at least 2 dimensions with head_first, got shape {list(tensor.shape)}")
    return tensor.transpose(0, 1)
