"""fused_moe and shared_expert: gate and up, silu, down, and the weighted sum of what a token's experts say. Choosing experts is
topk_gating's part."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

import serving
from reference import checks
from reference.fp8_linear import LAYOUT as FP8_LAYOUT
from reference.fp8_to_float import fp8_to_float
from reference.pack_fp8_weight import pack_fp8_weight, unpack_fp8_weight
from reference.pack_int8_weight import MOST_COLUMNS, pack_int8_weight, unpack_int8_weight
from reference.pack_linear_weight import pack_linear_weight, unpack_linear_weight
from reference.quantize_rows_int8 import quantize_rows_int8

INT8_LAYOUT = "vnni4-n32k64"
LAYOUTS = {2: "vnni2-n32k32", 1: "f32-n32k32"}  # by the k that lie side by side


class PackedExperts(serving.PackedExperts):
    """What serving.packed says, with the functions of reference.pack_linear_weight."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedExperts":
        """Pack weights [E, N, K] of a float dtype."""
        checks.is_tensor("weight", weight, 3)
        if len(weight) < 1:
            raise ValueError(f"weight must not be empty, got shape {list(weight.shape)}")
        data = torch.stack([pack_linear_weight(expert) for expert in weight])
        return PackedExperts(data.flatten(5), LAYOUTS[data.shape[-1]], *weight.shape)

    def unpack(self) -> Tensor:
        """The weights [E, N, K], bit for bit."""
        return torch.stack([_floats_of(self, expert) for expert in range(self.E)])


class PackedInt8Experts(serving.PackedInt8Experts):
    """What serving.packed says, with the functions of reference.pack_int8_weight."""

    @staticmethod
    def pack(weight: Tensor, scale: Tensor) -> "PackedInt8Experts":
        """Pack int8 weights [E, N, K] whose rows are to be multiplied with scale [E, N]."""
        checks.is_tensor("weight", weight, 3)
        if len(weight) < 1:
            raise ValueError(f"weight must not be empty, got shape {list(weight.shape)}")
        checks.is_tensor("scale", scale, 2)
        checks.has_dtype("scale", scale, (torch.float32,))
        checks.has_shape("scale", scale, list(weight.shape[:2]))
        data, sums = (torch.stack(parts) for parts in zip(*map(pack_int8_weight, weight)))
        return PackedInt8Experts(data.flatten(5), sums, scale, INT8_LAYOUT, *weight.shape)

    def unpack(self) -> Tensor:
        """The weights [E, N, K], bit for bit."""
        return torch.stack([_bytes_of(self, expert) for expert in range(self.E)])


class PackedFp8Experts(serving.PackedFp8Experts):
    """What serving.packed says, with the functions of reference.pack_fp8_weight."""

    @staticmethod
    def pack(weight: Tensor, scales: Tensor, block_size: tuple[int, int]) -> "PackedFp8Experts":
        """Pack float8_e4m3fn weights [E, N, K] with scales [E, ceil(N/bn), ceil(K/bk)] for `block_size` (bn, bk)."""
        checks.is_tensor("weight", weight, 3)
        if len(weight) < 1:
            raise ValueError(f"weight must not be empty, got shape {list(weight.shape)}")
        if len(block_size) != 2:
            raise ValueError(f"block_size must hold two numbers, got {block_size}")
        checks.is_tensor("scales", scales, 3)
        if len(scales) != len(weight):
            raise ValueError(f"scales must be those of {len(weight)} experts, got shape {list(scales.shape)}")
        E, N, K = weight.shape
        data, kept = (torch.stack(parts) for parts in zip(*(pack_fp8_weight(*of, *block_size) for of in zip(weight, scales))))
        return PackedFp8Experts(data.flatten(5), kept, FP8_LAYOUT, E, N, K, (block_size[0], block_size[1]))

    def unpack(self) -> Tensor:
        """The codes [E, N, K], bit for bit."""
        return torch.stack([_codes_of(self, expert) for expert in range(self.E)])


AnyExperts = serving.PackedExperts | serving.PackedInt8Experts | serving.PackedFp8Experts
KINDS = (serving.PackedExperts, serving.PackedInt8Experts, serving.PackedFp8Experts)


def fused_moe(
    x: Tensor, w13: AnyExperts, w2: AnyExperts, topk_weights: Tensor, topk_ids: Tensor,
    b13: Tensor | None = None, b2: Tensor | None = None, apply_router_weight_on_input: bool = False,
) -> Tensor:  # fmt: skip
    """out[t] = sum_j topk_weights[t, j] y, with y what expert e = topk_ids[t, j] makes of x[t]; e = -1 is left out.

    h = w13[e] x[t] + b13[e], a = silu(h[:I]) h[I:], y = w2[e] a + b2[e], in float32 and rounded once at the end. With
    apply_router_weight_on_input, of one expert a token, x[t] times the weight, both in x's dtype, takes x[t]'s place.
    x [T, D] float; w13 [E, 2I, D] and w2 [E, D, I] of x's dtype, int8 or float8, packed; topk_weights float32 and topk_ids
    [T, k]; b13 [E, 2I] and b2 [E, D] in x's dtype or float32. Raises TypeError (dtypes, plain tensors for weights), ValueError
    (shapes, strides), IndexError (ids).
    """
    _check_weights(x, w13, w2)
    _check_bias("b13", b13, w13, x.dtype)
    _check_bias("b2", b2, w2, x.dtype)
    checks.is_tensor("topk_ids", topk_ids, 2)
    checks.is_index("topk_ids", topk_ids, [len(x), topk_ids.shape[1]])
    checks.is_tensor("topk_weights", topk_weights, 2)
    checks.has_dtype("topk_weights", topk_weights, (torch.float32, torch.float64))
    checks.has_shape("topk_weights", topk_weights, list(topk_ids.shape))
    checks.is_bool("apply_router_weight_on_input", apply_router_weight_on_input)
    if apply_router_weight_on_input and topk_ids.shape[1] != 1:
        raise ValueError(f"apply_router_weight_on_input takes one expert a token, topk_ids has {topk_ids.shape[1]}")
    live = topk_ids != -1
    checks.in_range("topk_ids", topk_ids, w13.E, live)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    weights = topk_weights.masked_fill(~live, 0.0).to(wide)
    if apply_router_weight_on_input:
        x, weights = x * weights.to(x.dtype), torch.ones_like(weights)
    y = torch.zeros(*topk_ids.shape, x.shape[1], dtype=wide)
    for expert in topk_ids[live].unique().tolist():
        tokens, places = (topk_ids == expert).nonzero(as_tuple=True)
        y[tokens, places] = _expert(x[tokens], w13, w2, expert, b13, b2, wide)
    out = torch.zeros(x.shape, dtype=wide)
    for j in range(topk_ids.shape[1]):
        out += weights[:, j, None] * y[:, j]
    return out.to(x.dtype)


def shared_expert(
    x: Tensor,
    w13: AnyExperts,
    w2: AnyExperts,
    routed: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
) -> Tensor:
    """One expert of weight 1 for every row of x [T, D], plus routed_scaling_factor routed [T, D]: rounded once.

    Raises TypeError (dtypes, plain tensors for weights), ValueError (shapes, more than one expert, a factor that is not finite).
    """
    _check_weights(x, w13, w2)
    if w13.E != 1:
        raise ValueError(f"w13 must hold one expert, got {w13.E}")
    checks.is_number("routed_scaling_factor", routed_scaling_factor)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = _expert(x, w13, w2, 0, None, None, wide)
    if routed is not None:
        checks.is_tensor("routed", routed, 2)
        checks.same_dtype({"x": x, "routed": routed})
        checks.has_shape("routed", routed, list(x.shape))
        checks.dense_last_dim("routed", routed)
        factor = torch.tensor(routed_scaling_factor, dtype=torch.float64).to(torch.float32)
        if not factor.isfinite():
            raise ValueError(f"routed_scaling_factor = {routed_scaling_factor} is not finite in float32")
        out = out + factor.to(wide) * routed.to(wide)
    return out.to(x.dtype)


def _expert(
    rows: Tensor, w13: AnyExperts, w2: AnyExperts, expert: int, b13: Tensor | None, b2: Tensor | None,
    wide: torch.dtype,
) -> Tensor:  # fmt: skip
    """y [n, D] of rows [n, D]."""
    rows = rows.to(wide, copy=True)  # the bits do not depend on where x lies
    gate, up = _projected(rows, w13, expert, b13).chunk(2, dim=-1)
    return _projected(silu(gate) * up, w2, expert, b2)


def _projected(rows: Tensor, packed: AnyExperts, expert: int, bias: Tensor | None) -> Tensor:
    if isinstance(packed, serving.PackedInt8Experts):
        q, scale, _ = quantize_rows_int8(rows)
        sums = (q.to(torch.float64) @ _bytes_of(packed, expert).to(torch.float64).T).to(rows.dtype)  # exact
        out = sums * packed.scale[expert].to(rows.dtype) * scale[:, None].to(rows.dtype)
    else:
        out = rows @ _weight_of(packed, expert, rows.dtype).T
    return out if bias is None else out + bias[expert].to(rows.dtype)


def _weight_of(packed: serving.PackedExperts | serving.PackedFp8Experts, expert: int, wide: torch.dtype) -> Tensor:
    """The numbers of one expert's weights."""
    if isinstance(packed, serving.PackedFp8Experts):
        (block_n, block_k), codes = packed.block_size, _codes_of(packed, expert)
        outputs, columns = torch.arange(packed.N) // block_n, torch.arange(packed.K) // block_k
        return fp8_to_float(codes, wide) * packed.scales[expert][outputs][:, columns].to(wide)
    return _floats_of(packed, expert).to(wide)


def _floats_of(packed: serving.PackedExperts, expert: int) -> Tensor:
    return unpack_linear_weight(packed.data[expert].unflatten(-1, (16, -1)), packed.N, packed.K)


def _bytes_of(packed: serving.PackedInt8Experts, expert: int) -> Tensor:
    return unpack_int8_weight(packed.data[expert].unflatten(-1, (16, 4)), packed.N, packed.K)


def _codes_of(packed: serving.PackedFp8Experts, expert: int) -> Tensor:
    return unpack_fp8_weight(packed.data[expert].unflatten(-1, (16, 2)), packed.N, packed.K)


def _check_weights(x: Tensor, w13: AnyExperts, w2: AnyExperts) -> None:
    checks.is_tensor("x", x, 2)
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.dense_last_dim("x", x)
    D = x.shape[1]
    for name, packed in (("w13", w13), ("w2", w2)):
        if not isinstance(packed, KINDS):
            raise TypeError(f"{name} must be PackedExperts, PackedInt8Experts or PackedFp8Experts, got {type(packed).__name__}")
        int8, fp8 = isinstance(packed, serving.PackedInt8Experts), isinstance(packed, serving.PackedFp8Experts)
        if packed.layout not in ([INT8_LAYOUT] if int8 else [FP8_LAYOUT] if fp8 else LAYOUTS.values()):
            raise ValueError(f"{name} has the unknown layout {packed.layout!r}")
        checks.is_tensor(name, packed.data, 6)
        (_check_bytes if int8 else _check_codes if fp8 else _check_floats)(name, packed, x)
        if not packed.data.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {list(packed.data.stride())}")
    if not any(isinstance(w13, kind) and isinstance(w2, kind) for kind in KINDS):
        raise TypeError(f"w13 and w2 must be of one kind, got {type(w13).__name__} and {type(w2).__name__}")
    if w13.K != D or w13.N % 2:
        raise ValueError(f"w13 must hold weights [2I, {D}] for x of shape {list(x.shape)}, got {[w13.N, w13.K]}")
    if (w2.E, w2.N, w2.K) != (w13.E, D, w13.N // 2):
        raise ValueError(f"w2 must hold weights {[w13.E, D, w13.N // 2]}, got {[w2.E, w2.N, w2.K]}")
    if min(w13.E, D, w13.N) < 1:
        raise ValueError(f"w13 must hold an expert and no empty one, got weights {[w13.E, w13.N, w13.K]}")


def _check_floats(name: str, packed: Any, x: Tensor) -> None:
    checks.same_dtype({"x": x, name: packed.data})
    r = packed.data.shape[5] // 16 if x.dtype == torch.float64 else 1 if x.dtype == torch.float32 else 2
    checks.has_shape(name, packed.data, [packed.E, -(-packed.N // 32), -(-packed.K // 32), 2, 32 // r, 16 * r])


def _check_bytes(name: str, packed: Any, x: Tensor) -> None:
    checks.has_dtype(name, packed.data, (torch.int8,))
    checks.is_count(f"{name}.N", packed.N, 1)
    checks.is_count(f"{name}.K", packed.K, 1)
    if packed.K > MOST_COLUMNS:
        raise ValueError(f"{name}.K must be at most {MOST_COLUMNS}, got {packed.K}")
    checks.has_shape(name, packed.data, [packed.E, -(-packed.N // 32), -(-packed.K // 64), 2, 16, 64])
    for part, dtypes in (("sums", (torch.int32,)), ("scale", (torch.float32, torch.float64))):
        value = getattr(packed, part)
        checks.is_tensor(f"{name}_{part}", value, 2)
        checks.has_dtype(f"{name}_{part}", value, dtypes)
        checks.has_shape(f"{name}_{part}", value, [packed.E, packed.N])


def _check_codes(name: str, packed: Any, x: Tensor) -> None:
    checks.has_dtype(name, packed.data, (torch.uint8,))
    checks.has_shape(name, packed.data, [packed.E, -(-packed.N // 32), -(-packed.K // 32), 2, 16, 32])
    block_n, block_k = packed.block_size
    checks.is_count(f"{name}_block_n", block_n, 1)
    checks.is_count(f"{name}_block_k", block_k, 1)
    checks.is_tensor(f"{name}_scale", packed.scales, 3)
    checks.has_dtype(f"{name}_scale", packed.scales, (torch.float32, torch.float64))
    checks.has_shape(f"{name}_scale", packed.scales, [packed.E, -(-packed.N // block_n), -(-packed.K // block_k)])


def _check_bias(name: str, bias: Tensor | None, packed: AnyExperts, dtype: torch.dtype) -> None:
    if bias is None:
        return
    checks.is_tensor(name, bias, 2)
    checks.has_shape(name, bias, [packed.E, packed.N])
    checks.has_dtype(name, bias, (dtype, torch.float32))
    checks.dense_last_dim(name, bias)
