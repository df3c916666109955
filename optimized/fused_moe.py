"""fused_moe and shared_expert with packed experts that know their size and layout.

w13, w2 = PackedExperts.pack(gate_up), PackedExperts.pack(down)      # [E, 2I, D] and [E, D, I], once
y = fused_moe(x, w13, w2, topk_weights, topk_ids)                    # x [T, D] -> y [T, D]
"""

import torch
from torch import Tensor

import serving
from optimized import huge_pages
from optimized.checks import check_integer
from optimized.fp8_linear import LAYOUT as FP8_LAYOUT
from optimized.int8_linear import LAYOUT as INT8_LAYOUT
from optimized.operators import operator
from optimized.packed_linear import LAYOUTS


class PackedExperts(serving.PackedExperts):
    """Packed weights [E, N, K] of bfloat16, float16 or float32."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedExperts":
        """Pack weights [E, N, K] of bfloat16, float16 or float32. Raises TypeError (dtype), ValueError (rank, empty)."""
        _check_stack(weight)
        pack = operator("pack_linear_weight")
        [data] = huge_pages.stack(([pack(expert)] for expert in weight), len(weight))
        return PackedExperts(data.flatten(5), LAYOUTS[weight.dtype], *weight.shape)

    def unpack(self) -> Tensor:
        """The weights [E, N, K], bit for bit."""
        unpack = operator("unpack_linear_weight")
        return torch.stack([unpack(expert, self.N, self.K) for expert in self.data.unflatten(5, (16, -1))])


class PackedInt8Experts(serving.PackedInt8Experts):
    """Packed int8 weights [E, N, K] with the sums and scales of their rows."""

    @staticmethod
    def pack(weight: Tensor, scale: Tensor) -> "PackedInt8Experts":
        """Pack int8 weights [E, N, K] whose rows are multiplied with scale [E, N]. Raises TypeError, ValueError (shapes)."""
        _check_stack(weight)
        if not isinstance(scale, Tensor) or scale.dtype != torch.float32:
            raise TypeError(f"scale must be a tensor of float32, got {getattr(scale, 'dtype', type(scale).__name__)}")
        if scale.shape != weight.shape[:2]:
            raise ValueError(f"scale must have shape {list(weight.shape[:2])}, got {list(scale.shape)}")
        data, sums = huge_pages.stack(map(operator("pack_int8_weight"), weight), len(weight))
        return PackedInt8Experts(data.flatten(5), sums, scale, INT8_LAYOUT, *weight.shape)

    def unpack(self) -> Tensor:
        """The weights [E, N, K], bit for bit."""
        unpack = operator("unpack_int8_weight")
        return torch.stack([unpack(expert, self.N, self.K) for expert in self.data.unflatten(5, (16, 4))])


class PackedFp8Experts(serving.PackedFp8Experts):
    """Packed weights [E, N, K] of float8_e4m3fn with the scales of their blocks."""

    @staticmethod
    def pack(weight: Tensor, scales: Tensor, block_size: tuple[int, int]) -> "PackedFp8Experts":
        """Pack float8_e4m3fn weights [E, N, K]; scales float32 [E, ceil(N/bn), ceil(K/bk)] for `block_size` (bn, bk).

        Raises TypeError (dtypes), ValueError (shapes, block_size, a scale that is not finite).
        """
        _check_stack(weight)
        if len(block_size) != 2:
            raise ValueError(f"block_size must hold two numbers, got {block_size}")
        if not isinstance(scales, Tensor):
            raise TypeError(f"scales must be a tensor, got {type(scales).__name__}")
        if scales.dim() != 3 or len(scales) != len(weight):
            raise ValueError(f"scales must be those of {len(weight)} experts, got shape {list(scales.shape)}")
        E, N, K = weight.shape
        pack = operator("pack_fp8_weight")
        data, kept = huge_pages.stack((pack(*of, *block_size) for of in zip(weight, scales)), E)
        return PackedFp8Experts(data.flatten(5), kept, FP8_LAYOUT, E, N, K, (block_size[0], block_size[1]))

    def unpack(self) -> Tensor:
        """The codes [E, N, K], bit for bit."""
        unpack = operator("unpack_fp8_weight")
        return torch.stack([unpack(expert, self.N, self.K) for expert in self.data.unflatten(5, (16, 2))])


Experts = serving.PackedExperts | serving.PackedInt8Experts | serving.PackedFp8Experts
KINDS = {
    serving.PackedExperts: LAYOUTS.values(), serving.PackedInt8Experts: [INT8_LAYOUT], serving.PackedFp8Experts: [FP8_LAYOUT],
}  # fmt: skip
"""Of packed weights, and the layouts that each has."""


def _check_stack(weight: Tensor) -> None:
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor, got {type(weight).__name__}")
    if weight.dim() != 3 or len(weight) < 1:
        raise ValueError(f"weight must be [E, N, K] and not empty, got shape {list(weight.shape)}")


def fused_moe(
    x: Tensor, w13: Experts, w2: Experts, topk_weights: Tensor, topk_ids: Tensor,
    b13: Tensor | None = None, b2: Tensor | None = None, apply_router_weight_on_input: bool = False,
) -> Tensor:  # fmt: skip
    """The weighted sum of what the experts topk_ids [T, k] make of x [T, D]: silu(gate) up of w13 [E, 2I, D], then w2 [E, D, I].

    Raises TypeError (dtypes, plain tensors for weights), ValueError (shapes, strides, an unknown layout), IndexError (an id that
    is no expert and not -1).
    """
    inner = _inner_of(x, w13, w2)
    out: Tensor = operator("fused_moe")(
        x, w13.data, *_parts(w13), w2.data, *_parts(w2), inner, topk_weights, topk_ids, b13, b2, apply_router_weight_on_input
    )
    return out


def shared_expert(
    x: Tensor,
    w13: Experts,
    w2: Experts,
    routed: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
) -> Tensor:
    """One expert of weight 1 for all rows of x [T, D], plus routed_scaling_factor routed [T, D].

    Raises TypeError (dtypes, plain tensors for weights), ValueError (shapes, strides, an unknown layout, more than one expert).
    """
    inner = _inner_of(x, w13, w2)
    out: Tensor = operator("shared_expert")(
        x, w13.data, *_parts(w13), w2.data, *_parts(w2), inner, routed, routed_scaling_factor
    )
    return out


def _parts(packed: Experts) -> tuple[Tensor | None, Tensor | None, tuple[int, int] | None]:
    """Sums and scales of int8 weights, or the scales of float8 ones and the size of their blocks."""
    if isinstance(packed, serving.PackedFp8Experts):
        return None, packed.scales, packed.block_size
    return (packed.sums, packed.scale, None) if isinstance(packed, serving.PackedInt8Experts) else (None, None, None)


def _inner_of(x: Tensor, w13: Experts, w2: Experts) -> int:
    """I, where the kinds and sizes of the packed weights agree; what the operator sees are whole blocks."""
    kinds = []
    for name, packed in (("w13", w13), ("w2", w2)):
        kind = next((kind for kind in KINDS if isinstance(packed, kind)), None)
        if kind is None:
            raise TypeError(f"{name} must be PackedExperts, PackedInt8Experts or PackedFp8Experts, got {type(packed).__name__}")
        if packed.layout not in KINDS[kind]:
            raise ValueError(f"{name} has the unknown layout {packed.layout!r}")
        for side, size in zip("nk", packed.block_size if isinstance(packed, serving.PackedFp8Experts) else ()):
            check_integer(f"{name}_block_{side}", size)
        kinds.append(kind)
    if kinds[0] is not kinds[1]:
        raise TypeError(f"w13 and w2 must be of one kind, got {type(w13).__name__} and {type(w2).__name__}")
    if w13.N % 2 or w13.N < 2:
        raise ValueError(f"w13 must hold weights [2I, D], got {[w13.N, w13.K]}")
    if isinstance(x, Tensor) and x.dim() and x.shape[-1] != w13.K:
        raise ValueError(f"w13 must hold weights [2I, {x.shape[-1]}] for x of shape {list(x.shape)}, got {[w13.N, w13.K]}")
    if (w2.E, w2.N, w2.K) != (w13.E, w13.K, w13.N // 2):
        raise ValueError(f"w2 must hold weights {[w13.E, w13.K, w13.N // 2]}, got {[w2.E, w2.N, w2.K]}")
    return w13.N // 2
