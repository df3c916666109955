"""gated_delta_rule_update_spec: several draft tokens a request, each with a state of its own; the next call chooses one."""

import torch
from torch import Tensor

from reference import checks
from reference.gated_delta_rule_update import check_step, gated_delta_rule_update


def gated_delta_rule_update_spec(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    query_start_loc: Tensor,
    state_layout: str = "kv",
    use_qk_l2norm: bool = True,
    eps: float = 1e-5,
    scale: float | None = None,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    pad_slot: int | None = None,
) -> Tensor:
    """Take the steps of gated_delta_rule_update for each request's tokens in turn; returns o [T, HV, V] in q's dtype.

    q, k, v, a, b as there, over T tokens; those of request r from query_start_loc[r] on. state_indices [B, Sn]. The state of
    request r starts as state[state_indices[r, num_accepted_tokens[r] - 1]], is carried in float32, and is stored after token i
    at state[state_indices[r, i]], rounded once. A request without tokens, and one whose first index is pad_slot, touches
    nothing. Raises TypeError, ValueError and IndexError as there; ValueError also for counts outside of Sn, a slot written
    twice, and a slot that one request writes and another reads.
    """
    step = (state_layout, use_qk_l2norm, eps, scale, softplus_beta, softplus_threshold)
    check_step(A_log, dt_bias, q, k, v, a, b, state, *step)
    live = _check(state_indices, num_accepted_tokens, query_start_loc, len(state), len(q), pad_slot)
    read = {"A_log": A_log, "dt_bias": dt_bias, "q": q, "k": k, "v": v, "a": a, "b": b, "state_indices": state_indices,
            "num_accepted_tokens": num_accepted_tokens, "query_start_loc": query_start_loc}  # fmt: skip
    checks.disjoint({"state": state}, read)

    starts, only = query_start_loc.tolist(), torch.zeros(1, dtype=torch.int64)
    out = q.new_zeros(v.shape)
    first = {r: state[int(state_indices[r, int(num_accepted_tokens[r]) - 1])] for r in live}
    carried = {r: S.to(torch.promote_types(q.dtype, torch.float32), copy=True)[None] for r, S in first.items()}
    for r, S in carried.items():
        for i, t in enumerate(range(starts[r], starts[r + 1])):
            here = slice(t, t + 1)
            token = gated_delta_rule_update(A_log, dt_bias, q[here], k[here], v[here], a[here], b[here], S, only, *step)
            out[t] = token[0]
            state[int(state_indices[r, i])] = S[0].to(state.dtype)
    return out


def _check(
    state_indices: Tensor, num_accepted_tokens: Tensor, query_start_loc: Tensor, slots: int, tokens: int, pad_slot: int | None
) -> list[int]:
    """Every check of offsets, counts and slots; returns the requests that are computed."""
    checks.is_tensor("query_start_loc", query_start_loc, 1)
    checks.is_index("query_start_loc", query_start_loc)
    checks.offsets("query_start_loc", query_start_loc, tokens)
    B = len(query_start_loc) - 1
    checks.is_tensor("state_indices", state_indices, 2)
    columns = state_indices.shape[1]
    checks.is_index("state_indices", state_indices, [B, columns])
    checks.is_index("num_accepted_tokens", num_accepted_tokens, [B])
    if pad_slot is not None:
        checks.is_integer("pad_slot", pad_slot)
    writer: dict[int, int] = {}
    reader: dict[int, int] = {}
    for r, n in enumerate(query_start_loc.diff().tolist()):
        if n == 0:
            continue
        if n > columns:
            raise ValueError(f"state_indices has {columns} columns, request {r} has {n} tokens")
        if pad_slot is not None and int(state_indices[r, 0]) == pad_slot:
            continue
        accepted = int(num_accepted_tokens[r])
        if not 1 <= accepted <= columns:
            raise ValueError(f"num_accepted_tokens[{r}] = {accepted} is outside [1, {columns}]")
        for i in (accepted - 1, *range(n)):
            if not 0 <= int(state_indices[r, i]) < slots:
                raise IndexError(f"state_indices[{r}, {i}] = {int(state_indices[r, i])} is outside [0, {slots})")
        reader[r] = int(state_indices[r, accepted - 1])
        for slot in state_indices[r, :n].tolist():
            if slot in writer:
                raise ValueError(f"state_indices holds slot {slot} more than once")
            writer[slot] = r
    for r, slot in reader.items():
        if writer.get(slot, r) != r:
            raise ValueError(f"state_indices: request {writer[slot]} writes slot {slot}, which request {r} reads")
    return list(reader)
