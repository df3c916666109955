"""chunk_gated_delta_rule: the gated delta rule over whole sequences, token by token. It does not work in chunks: the chunk
form is an optimisation that kernels may use."""

from itertools import pairwise

import torch
from torch import Tensor

from reference import checks

GATE_DTYPES = (torch.float32, torch.float64)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    state_layout: str = "kv",
    use_qk_l2norm: bool = True,
    eps: float = 1e-5,
    scale: float | None = None,
    accurate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, HV, V] and the fresh final states of N sequences; sequence n owns tokens cu_seqlens[n]:cu_seqlens[n + 1].

    q, k [T, HK, K]; v [T, HV, V], HV % HK == 0, all of one float dtype; g [T, HV] float32 (log decay); beta [T, HV] float32 or
    q's dtype; initial_state [N, HV, K, V] ("kv") or [N, HV, V, K] ("vk"), float32 or bfloat16, None: zeros.
    Uncovered tokens give 0. `accurate` asks kernels to round less; nothing here is rounded before the end.
    Raises TypeError (dtypes), ValueError (shapes, strides, scalars, offsets).
    """
    _check_inputs(q, k, v, g, beta, cu_seqlens, state_layout, use_qk_l2norm, eps, scale, accurate)
    HV, K, V, N = v.shape[1], q.shape[2], v.shape[2], len(cu_seqlens) - 1
    shape = [N, HV, K, V] if state_layout == "kv" else [N, HV, V, K]
    if initial_state is not None:
        checks.is_tensor("initial_state", initial_state, 4)
        checks.state_dtype("initial_state", initial_state, q.dtype)
        checks.has_shape("initial_state", initial_state, shape)
        checks.dense_last_dim("initial_state", initial_state)

    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    if initial_state is None:
        final_state = torch.zeros(shape, dtype=exact, device=q.device)
    else:
        final_state = initial_state.clone(memory_format=torch.contiguous_format)
    out = torch.zeros(v.shape, dtype=q.dtype, device=q.device)
    for n, (begin, end) in enumerate(_sequences(cu_seqlens)):
        S = _as_kv(final_state[n], state_layout)
        tokens = slice(begin, end)
        out[tokens], S_end = _token_loop(
            q[tokens], k[tokens], v[tokens], g[tokens], beta[tokens], S.to(exact), use_qk_l2norm, eps, scale
        )
        S.copy_(S_end)
    return out, final_state


def chunk_gated_delta_rule_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    has_initial_state: Tensor | None,
    cu_seqlens: Tensor,
    state_layout: str = "kv",
    use_qk_l2norm: bool = True,
    eps: float = 1e-5,
    scale: float | None = None,
    pad_slot: int | None = None,
    accurate: bool = False,
) -> Tensor:
    """Outputs [T, HV, V]; sequence n starts from and ends in `state[state_indices[n]]`, which is changed in place.

    As `chunk_gated_delta_rule`, with state [slots, HV, K, V] or [slots, HV, V, K], state_indices [N], has_initial_state [N]
    bool: False (or None) starts from zeros whatever the slot holds. A sequence whose index equals pad_slot is skipped (output
    0), a sequence without tokens leaves its slot alone.
    Raises TypeError, ValueError (also a slot used twice, overlapping memory) and IndexError (slot out of range).
    """
    _check_inputs(q, k, v, g, beta, cu_seqlens, state_layout, use_qk_l2norm, eps, scale, accurate)
    HV, K, V, N = v.shape[1], q.shape[2], v.shape[2], len(cu_seqlens) - 1
    checks.is_tensor("state", state, 4)
    checks.state_dtype("state", state, q.dtype)
    checks.has_shape("state", state, [len(state), HV, K, V] if state_layout == "kv" else [len(state), HV, V, K])
    checks.dense_last_dim("state", state)
    checks.is_index("state_indices", state_indices, [N])
    if has_initial_state is not None:
        checks.is_tensor("has_initial_state", has_initial_state)
        checks.has_dtype("has_initial_state", has_initial_state, [torch.bool])
        checks.has_shape("has_initial_state", has_initial_state, [N])
    live = checks.written_slots("state_indices", state_indices, len(state), pad_slot, cu_seqlens[1:] > cu_seqlens[:-1])
    read = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state_indices": state_indices}
    checks.disjoint({"state": state}, read | {"has_initial_state": has_initial_state, "cu_seqlens": cu_seqlens})

    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.zeros(v.shape, dtype=q.dtype, device=q.device)
    for n, (begin, end) in enumerate(_sequences(cu_seqlens)):
        if not live[n]:
            continue
        slot = _as_kv(state[int(state_indices[n])], state_layout)
        starts_warm = has_initial_state is not None and bool(has_initial_state[n])
        S = slot.to(exact) if starts_warm else torch.zeros(slot.shape, dtype=exact, device=q.device)
        tokens = slice(begin, end)
        out[tokens], S_end = _token_loop(q[tokens], k[tokens], v[tokens], g[tokens], beta[tokens], S, use_qk_l2norm, eps, scale)
        slot.copy_(S_end)
    return out


def _token_loop(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, l2norm: bool, eps: float, scale: float | None
) -> tuple[Tensor, Tensor]:
    """The recurrence itself, for one sequence and all heads; S [HV, K, V] is of the dtype in which everything is computed."""
    q, k, v, gamma, beta = q.to(S.dtype), k.to(S.dtype), v.to(S.dtype), g.to(S.dtype).exp(), beta.to(S.dtype)
    if l2norm:
        q = q * (q.square().sum(-1, keepdim=True) + eps).rsqrt()
        k = k * (k.square().sum(-1, keepdim=True) + eps).rsqrt()
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    group = v.shape[1] // k.shape[1]  # value head n reads key head n // group
    q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
    q, k, v, gamma, beta = q[:, :, None], k[:, :, None], v[:, :, None], gamma[..., None, None], beta[..., None, None]
    out = torch.empty_like(v)  # all [T, HV, 1, ...]: a row of each head
    for t in range(len(q)):
        S = gamma[t] * S
        w = (v[t] - k[t] @ S) * beta[t]
        S = S + k[t].mT * w
        out[t] = q[t] @ S
    return out[:, :, 0], S


def _as_kv(state: Tensor, state_layout: str) -> Tensor:
    """One slot as a [HV, K, V] view; "vk" is transposed, never reinterpreted."""
    return state if state_layout == "kv" else state.transpose(-1, -2)


def _sequences(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    return list(pairwise(cu_seqlens.tolist()))


def _check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    state_layout: str,
    use_qk_l2norm: bool,
    eps: float,
    scale: float | None,
    accurate: bool,
) -> None:
    """What both forms ask of their common arguments."""
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        checks.is_tensor(name, tensor, 3)
        checks.dense_last_dim(name, tensor)
    checks.same_dtype({"q": q, "k": k, "v": v})
    T, HK, K = q.shape
    HV, V = v.shape[1:]
    checks.has_shape("k", k, [T, HK, K])
    checks.has_shape("v", v, [T, HV, V])
    if min(HK, HV, K, V) < 1 or HV % HK:
        checks.fail(ValueError, f"v needs a multiple of q's heads and no empty head, got q {list(q.shape)}, v {list(v.shape)}")
    for name, tensor in {"g": g, "beta": beta}.items():
        checks.is_tensor(name, tensor, 2)
        checks.has_shape(name, tensor, [T, HV])
    checks.has_dtype("g", g, GATE_DTYPES if q.dtype == torch.float64 else GATE_DTYPES[:1])
    checks.has_dtype("beta", beta, (q.dtype, torch.float32))
    checks.is_tensor("cu_seqlens", cu_seqlens, 1)
    checks.is_index("cu_seqlens", cu_seqlens)
    checks.offsets("cu_seqlens", cu_seqlens, T)
    checks.one_of("state_layout", state_layout, ("kv", "vk"))
    checks.is_bool("use_qk_l2norm", use_qk_l2norm)
    checks.is_bool("accurate", accurate)
    checks.positive("eps", eps)
    if scale is not None:
        checks.positive("scale", scale)
