"""causal_conv1d: depthwise causal convolution with a shift-register state, as Mamba and gated-delta-net layers use it.

A weight is packed once (PackedConvWeight); `causal_conv1d_fwd` runs whole sequences, `causal_conv1d_update` one token a
sequence, `causal_conv1d_update_spec` several drafts a sequence of which the next call says how many were accepted.
"""

from itertools import pairwise

import torch
from torch import Tensor

import serving
from reference import checks

BLOCK = 32  # channels of one packed block
LAYOUT = "pairs-n32"  # blocks of 32 channels, taps in pairs
WIDTHS = (2, 3, 4)


def causal_conv1d_pack_weight(weight: Tensor) -> Tensor:
    """Pack weight [dim, w] or [dim, 1, w] into [ceil(dim/32), ceil(w/2), 32, 2]: `packed[i, j, n, c] = weight[32i + n, 2j + c]`,
    0 where that is out of range. Any strides; bit-exact. Raises TypeError (dtype), ValueError (rank, width outside 2..4)."""
    checks.is_tensor("weight", weight)
    checks.has_dtype("weight", weight, checks.FLOAT_DTYPES)
    if weight.dim() not in (2, 3) or (weight.dim() == 3 and weight.shape[1] != 1):
        raise ValueError(f"weight must have shape [dim, w] or [dim, 1, w], got {list(weight.shape)}")
    dim, width = weight.shape[0], weight.shape[-1]
    if dim < 1 or width not in WIDTHS:
        raise ValueError(f"weight must have dim >= 1 and width 2, 3 or 4, got {list(weight.shape)}")
    blocks, pairs = -(-dim // BLOCK), -(-width // 2)
    packed = weight.new_zeros(blocks * BLOCK, pairs * 2)
    packed[:dim, :width] = weight.reshape(dim, width)
    return packed.reshape(blocks, BLOCK, pairs, 2).transpose(1, 2).contiguous()


def causal_conv1d_unpack_weight(packed_weight: Tensor, dim: int, width: int) -> Tensor:
    """The weight [dim, w] that was packed, bit for bit."""
    _dim_and_width(dim, width)
    _packed_shape(packed_weight, dim, width)
    blocks, pairs = packed_weight.shape[:2]
    return packed_weight.transpose(1, 2).reshape(blocks * BLOCK, pairs * 2)[:dim, :width].contiguous()


class PackedConvWeight(serving.PackedConvWeight):
    """What serving.packed says, with the functions of this module."""

    @classmethod
    def pack(cls, weight: Tensor) -> "PackedConvWeight":
        """Pack weight [dim, w] or [dim, 1, w]; errors as causal_conv1d_pack_weight."""
        return cls(causal_conv1d_pack_weight(weight), LAYOUT, weight.shape[0], weight.shape[-1])

    def unpack(self) -> Tensor:
        """The weight [dim, w] that was packed, bit for bit."""
        return causal_conv1d_unpack_weight(self.data, self.dim, self.width)


def causal_conv1d_fwd(
    x: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, conv_states: Tensor | None,
    query_start_loc: Tensor | None, cache_indices: Tensor | None, has_initial_state: Tensor | None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """Convolve whole sequences: `y[t] = bias + sum_j W[:, j] x[t - (w-1) + j]`, then SiLU if asked, then one cast.

    x [B, dim, L], or [dim, T] with query_start_loc [B + 1]; bias [dim]; conv_states [slots, dim, w-1 or more] with either of its
    last two dimensions dense; cache_indices [B] (None: slot b); has_initial_state [B] bool (None: all False).
    The columns before a sequence are its slot's state if has_initial_state, else zeros; afterwards the slot holds as many of the
    last raw columns, oldest first. Only the last w-1 enter results. Pads and uncovered tokens give 0; pads and empty sequences
    leave their slot alone.
    Raises TypeError (types), ValueError (shapes, layout, offsets, a slot twice, overlap), IndexError (slot outside the pool).
    """
    checks.is_tensor("x", x)
    checks.is_bool("silu_activation", silu_activation)
    varlen = query_start_loc is not None
    if x.dim() != (2 if varlen else 3):
        wanted = "[dim, T] with query_start_loc" if varlen else "[B, dim, L] without query_start_loc"
        raise ValueError(f"x must have shape {wanted}, got {list(x.shape)}")
    dim, tokens = x.shape[-2:]
    _common(x, packed, bias, conv_states, dim)
    if query_start_loc is not None:
        checks.is_tensor("query_start_loc", query_start_loc, 1)
        checks.is_index("query_start_loc", query_start_loc)
        checks.offsets("query_start_loc", query_start_loc, tokens)
        bounds = query_start_loc.tolist()
        spans = [(x[:, start:end], start, end) for start, end in pairwise(bounds)]
    else:
        spans = [(row, 0, tokens) for row in x]
    live = torch.tensor([end > start for _, start, end in spans], dtype=torch.bool)
    slots, skipped = _slots(conv_states, cache_indices, has_initial_state, live, pad_slot)
    _no_overlap(x, packed, bias, conv_states, query_start_loc, cache_indices, has_initial_state)

    dense_channels = x.stride(-2) == 1
    y = torch.zeros(x.transpose(-2, -1).shape, dtype=x.dtype, device=x.device).transpose(-2, -1)
    y = y if dense_channels else y.contiguous()
    for b, (tokens_b, start, end) in enumerate(spans):
        if start == end or skipped[b]:
            continue
        history = x.new_zeros(dim, packed.width - 1 if conv_states is None else conv_states.shape[2])
        if conv_states is not None and has_initial_state is not None and has_initial_state[b]:
            history = conv_states[slots[b]]
        row = y if varlen else y[b]
        extended = torch.cat([history, tokens_b], dim=1)
        row[:, start:end] = _convolve(extended[:, history.shape[1] - (packed.width - 1) :], packed, bias, silu_activation)
        if conv_states is not None:
            conv_states[slots[b]] = extended[:, end - start :]
    return y


def causal_conv1d_update(
    x: Tensor, conv_states: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, cache_indices: Tensor | None,
    silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """One token a sequence: x [B, dim] follows the history in its slot, which then shifts by one column.

    Equal to `causal_conv1d_fwd` of length 1 with has_initial_state all True; shapes, pads and errors as there.
    """
    checks.is_tensor("x", x, 2)
    checks.is_bool("silu_activation", silu_activation)
    checks.is_tensor("conv_states", conv_states, 3)
    B, dim = x.shape
    _common(x, packed, bias, conv_states, dim)
    slots, skipped = _slots(conv_states, cache_indices, None, torch.ones(B, dtype=torch.bool), pad_slot)
    _no_overlap(x, packed, bias, conv_states, None, cache_indices, None)

    dense_rows = x.stride(0) == 1 and x.stride(1) != 1
    y = torch.zeros(dim, B, dtype=x.dtype, device=x.device).t() if dense_rows else torch.zeros_like(x.contiguous())
    rows = (~skipped).nonzero()[:, 0]
    extended = torch.cat([conv_states[slots[rows]], x[rows, :, None]], dim=2)
    y[rows] = _convolve(extended[..., -packed.width :], packed, bias, silu_activation)[..., 0]
    conv_states[slots[rows]] = extended[..., 1:]
    return y


def causal_conv1d_update_spec(
    x: Tensor, conv_states: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, query_start_loc: Tensor,
    cache_indices: Tensor, num_accepted_tokens: Tensor, silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:  # fmt: skip
    """Several tokens a request, of which some may turn out not to be accepted.

    x [T, dim], the tokens of request b from query_start_loc[b] on; conv_states [slots, dim, L]. The history of request b is
    columns a-1 .. a+w-3 of its slot, a = num_accepted_tokens[b]. With n tokens columns 0 .. w+n-3 become the history without
    its oldest column and the n raw tokens; later columns keep their bits. A request without tokens is never interpreted.
    Shapes, layouts, pads and errors as in causal_conv1d_fwd; ValueError for a < 1 and too few columns.
    """
    checks.is_tensor("x", x, 2)
    checks.is_bool("silu_activation", silu_activation)
    checks.is_tensor("conv_states", conv_states, 3)
    T, dim = x.shape
    _common(x, packed, bias, conv_states, dim, drafts=True)
    checks.is_tensor("query_start_loc", query_start_loc, 1)
    checks.is_index("query_start_loc", query_start_loc)
    checks.offsets("query_start_loc", query_start_loc, T)
    lengths = query_start_loc.diff()
    checks.is_tensor("cache_indices", cache_indices)
    slots, pads = _slots(conv_states, cache_indices, None, lengths > 0, pad_slot)
    checks.is_index("num_accepted_tokens", num_accepted_tokens, [len(lengths)])
    live = ((lengths > 0) & ~pads).nonzero()[:, 0].tolist()
    _enough_columns(conv_states.shape[2], packed.width, lengths, num_accepted_tokens, live)
    _no_overlap(x, packed, bias, conv_states, query_start_loc, cache_indices, None, num_accepted_tokens)

    y = torch.zeros_like(x.contiguous()) if x.stride(1) == 1 else torch.zeros(dim, T, dtype=x.dtype, device=x.device).t()
    for b in live:
        start, n, first = int(query_start_loc[b]), int(lengths[b]), int(num_accepted_tokens[b]) - 1
        history = conv_states[slots[b], :, first : first + packed.width - 1]
        extended = torch.cat([history, x[start : start + n].t()], dim=1)
        y[start : start + n] = _convolve(extended, packed, bias, silu_activation).t()
        conv_states[slots[b], :, : packed.width - 2 + n] = extended[:, 1:]
    return y


def _enough_columns(columns: int, width: int, lengths: Tensor, accepted: Tensor, live: list[int]) -> None:
    most = columns - width + 2
    for b in live:
        if not 1 <= int(accepted[b]) <= most:
            raise ValueError(
                f"num_accepted_tokens[{b}] = {int(accepted[b])} is outside [1, {most}], for conv_states has {columns} columns"
            )
        if int(lengths[b]) > most:
            raise ValueError(f"conv_states has {columns} columns, request {b} needs {width - 2 + int(lengths[b])}")


def _convolve(extended: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, silu: bool) -> Tensor:
    """extended [..., dim, w-1 + L], history first -> [..., dim, L] in its dtype; float32 inside (float64 if given that)."""
    compute = torch.promote_types(extended.dtype, torch.float32)
    weight = causal_conv1d_unpack_weight(packed.data, packed.dim, packed.width).to(compute)
    length = extended.shape[-1] - packed.width + 1
    columns = extended.to(compute).unfold(-1, length, 1)  # [..., dim, w, L]
    y = (weight[:, :, None] * columns).sum(-2)
    if bias is not None:
        y = y + bias.to(compute)[:, None]
    if silu:
        tail = torch.exp(-y.abs())  # never overflows, where exp(-y) makes everything below -88 a zero
        y = y * torch.where(y < 0, tail, 1.0) / (1 + tail)
    return y.to(extended.dtype)


def _dim_and_width(dim: int, width: int) -> None:
    if dim < 1:
        raise ValueError(f"dim must be >= 1, got {dim}")
    if width not in WIDTHS:
        raise ValueError(f"width must be 2, 3 or 4, got {width}")


def _packed_shape(packed_weight: Tensor, dim: int, width: int) -> None:
    checks.is_tensor("packed_weight", packed_weight, 4)
    checks.has_dtype("packed_weight", packed_weight, checks.FLOAT_DTYPES)
    checks.has_shape("packed_weight", packed_weight, [-(-dim // BLOCK), -(-width // 2), BLOCK, 2])
    if not packed_weight.is_contiguous():
        raise ValueError(f"packed_weight must be contiguous, got strides {list(packed_weight.stride())}")


def _common(
    x: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, conv_states: Tensor | None, dim: int, drafts: bool = False
) -> None:
    """The checks of dtypes, widths and state layout that all forms share; drafts may take more columns than w-1."""
    if not isinstance(packed, serving.PackedConvWeight):
        raise TypeError(f"packed must be a PackedConvWeight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has layout {packed.layout!r}, expected {LAYOUT!r}")
    _dim_and_width(packed.dim, packed.width)
    _packed_shape(packed.data, packed.dim, packed.width)
    if packed.dim != dim:
        raise ValueError(f"packed holds {packed.dim} channels, but x has {dim}")
    if conv_states is not None:
        checks.is_tensor("conv_states", conv_states, 3)
    checks.same_dtype({"x": x, "packed": packed.data, "conv_states": conv_states})
    if bias is not None:
        checks.parameter_vector("bias", bias, dim, x.dtype)
    if conv_states is not None:
        columns = conv_states.shape[2]
        checks.has_shape("conv_states", conv_states, [conv_states.shape[0], dim, columns])
        if columns < packed.width - 1 and not drafts:
            raise ValueError(f"conv_states needs at least {packed.width - 1} columns, got {columns}")
        dense = [size == 1 or stride == 1 for size, stride in zip(conv_states.shape[1:], conv_states.stride()[1:])]
        if conv_states.numel() and not any(dense):
            raise ValueError(f"conv_states needs stride 1 over dim or over columns, got {list(conv_states.stride())}")


def _slots(
    conv_states: Tensor | None,
    cache_indices: Tensor | None,
    has_initial_state: Tensor | None,
    live: Tensor,
    pad_slot: int | None,
) -> tuple[Tensor, Tensor]:
    """The slot of each sequence, and whether it is a pad (True for no sequence without cache_indices)."""
    B = len(live)
    if pad_slot is not None:
        checks.is_integer("pad_slot", pad_slot)
    if conv_states is None:
        for name, value in (("cache_indices", cache_indices), ("has_initial_state", has_initial_state)):
            if value is not None:
                raise ValueError(f"{name} needs conv_states")
        return torch.arange(B), torch.zeros(B, dtype=torch.bool)
    if has_initial_state is not None:
        checks.is_tensor("has_initial_state", has_initial_state)
        checks.has_dtype("has_initial_state", has_initial_state, (torch.bool,))
        checks.has_shape("has_initial_state", has_initial_state, [B])
    if cache_indices is None:
        slots = conv_states.shape[0]
        if slots < B:
            raise ValueError(f"conv_states has {slots} slots for {B} sequences without cache_indices")
        return torch.arange(B), torch.zeros(B, dtype=torch.bool)
    checks.is_index("cache_indices", cache_indices, [B])
    checks.written_slots("cache_indices", cache_indices, conv_states.shape[0], pad_slot, live)
    return cache_indices.long(), checks.are_pads(cache_indices, pad_slot)


def _no_overlap(
    x: Tensor, packed: serving.PackedConvWeight, bias: Tensor | None, conv_states: Tensor | None,
    query_start_loc: Tensor | None, cache_indices: Tensor | None, has_initial_state: Tensor | None,
    num_accepted_tokens: Tensor | None = None,
) -> None:  # fmt: skip
    """conv_states is written: it may share no byte with itself or another argument."""
    read = {
        "x": x,
        "packed": packed.data,
        "bias": bias,
        "query_start_loc": query_start_loc,
        "cache_indices": cache_indices,
        "has_initial_state": has_initial_state,
        "num_accepted_tokens": num_accepted_tokens,
    }
    checks.disjoint({"conv_states": conv_states}, read)
