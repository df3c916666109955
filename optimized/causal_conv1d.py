"""Causal convolution on packed weights: the compiled operators behind a PackedConvWeight."""

from torch import Tensor

import serving
from optimized.operators import operator

LAYOUT = "pairs-n32"  # blocks of 32 channels, taps in pairs


class PackedConvWeight(serving.PackedConvWeight):
    """A packed weight of a depthwise convolution, for `causal_conv1d_fwd` and `causal_conv1d_update`.

    packed = PackedConvWeight.pack(conv.weight)  # [dim, w] or [dim, 1, w]
    y = causal_conv1d_fwd(x, packed, bias, conv_states, query_start_loc, cache_indices, has_initial_state)
    """

    @classmethod
    def pack(cls, weight: Tensor) -> "PackedConvWeight":
        """Pack weight [dim, w] or [dim, 1, w]. Raises TypeError (dtype), ValueError (rank, width outside 2..4)."""
        data = causal_conv1d_pack_weight(weight)
        return cls(data, LAYOUT, weight.shape[0], weight.shape[-1])

    def unpack(self) -> Tensor:
        """The packed weight as it was, [dim, width]."""
        return causal_conv1d_unpack_weight(self.data, self.dim, self.width)


def causal_conv1d_pack_weight(weight: Tensor) -> Tensor:
    """Weight [dim, w] or [dim, 1, w] as blocks [ceil(dim/32), ceil(w/2), 32, 2]."""
    return operator("causal_conv1d_pack_weight")(weight)


def causal_conv1d_unpack_weight(packed_weight: Tensor, dim: int, width: int) -> Tensor:
    """The weight [dim, width] inside a packed one."""
    return operator("causal_conv1d_unpack_weight")(packed_weight, dim, width)


def causal_conv1d_fwd(
    x: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, conv_states: Tensor | None,
    query_start_loc: Tensor | None, cache_indices: Tensor | None, has_initial_state: Tensor | None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """Convolve whole sequences, x [B, dim, L] or [dim, T] with query_start_loc; conv_states is updated in place."""
    _check_packed(packed, x, 3 if query_start_loc is None else 2, -2)
    return operator("causal_conv1d_fwd")(
        x,
        packed.data,
        packed.width,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        silu_activation,
        pad_slot,
    )


def causal_conv1d_update(
    x: Tensor, conv_states: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, cache_indices: Tensor | None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """One token a sequence, x [B, dim]; conv_states is updated in place."""
    _check_packed(packed, x, 2, 1)
    return operator("causal_conv1d_update")(
        x, conv_states, packed.data, packed.width, bias, cache_indices, silu_activation, pad_slot
    )


def causal_conv1d_update_spec(
    x: Tensor, conv_states: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, query_start_loc: Tensor,
    cache_indices: Tensor, num_accepted_tokens: Tensor, silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """Drafts x [T, dim] of several requests; conv_states is updated in place and keeps a column for each of them."""
    _check_packed(packed, x, 2, 1)
    return operator("causal_conv1d_update_spec")(
        x, conv_states, packed.data, packed.width, bias, query_start_loc, cache_indices, num_accepted_tokens, silu_activation,
        pad_slot,
    )


def _check_packed(packed: serving.PackedConvWeight, x: Tensor, rank: int, dim: int) -> None:
    """What the blocks alone cannot tell: the exact channel count (they would admit up to 31 others) and their layout."""
    if not isinstance(packed, serving.PackedConvWeight):
        raise TypeError(f"packed must be a PackedConvWeight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has layout {packed.layout!r}, expected {LAYOUT!r}")
    if isinstance(x, Tensor) and x.dim() == rank and x.shape[dim] != packed.dim:
        raise ValueError(f"packed holds {packed.dim} channels, but x has {x.shape[dim]}")
