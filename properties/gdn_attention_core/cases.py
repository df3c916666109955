"""Cases of gdn_attention_core: a batch of decodes and prefills, and the tensors that it stands for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.gdn_attention_core
import reference.gdn_attention_core
from kernelpair.call.layout import ANY_STRIDES, FAR_PARAMETERS, FAR_VECTOR, POOL, READ_ROWS
from kernelpair.call.values import poison, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.delta_rule_bound import UNIT
from properties.shared.pads import SUBSETS, drawn_pad, entry_of, free_slots, named
from properties.shared.strategies import choices, common, one_laid_out, together
from reference.causal_conv1d import causal_conv1d_pack_weight
from serving import GdnMetadata, PackedConvWeight

PAD = -5
MANY = 19  # prefills of a batch: more than a table of 16 holds
LAYOUTS = {
    "mixed_qkv": READ_ROWS,
    "a": (*READ_ROWS, *ANY_STRIDES),
    "b": (*READ_ROWS, *ANY_STRIDES),
    "core_attn_out": POOL,
    "conv_state": POOL,
    "ssm_state": POOL,
    "conv_bias": FAR_PARAMETERS,
    "A_log": FAR_PARAMETERS,
    "dt_bias": FAR_PARAMETERS,
    "state_indices": FAR_VECTOR,
    "query_start_loc": FAR_VECTOR,
    "has_initial_state": FAR_VECTOR,
}
INDICES = ("state_indices", "query_start_loc")
VECTORS = {name: LAYOUTS[name] for name in (*INDICES, "has_initial_state", "conv_bias", "A_log", "dt_bias")}
BEYOND = 70  # slots behind the last one: where an entry leads that nobody uses
LONGER = 2  # slots that one cache has more than the other
MOST_COLUMNS = 80  # of convolution states with as many columns as channels
MOST_EMULATED = 24  # chunks x heads x 32-blocks of K and V: 10 ms of software tiles


@dataclass(frozen=True, kw_only=True)
class GdnCase(Case):
    """`decodes` requests of one token, then prefills of the given lengths."""

    decodes: int = 0
    prefills: tuple[int, ...] = (1,)
    pads: tuple[int, ...] = ()
    """Requests, decodes first, whose slot is the pad."""
    pad_in_range: bool = False
    cold: tuple[int, ...] = ()
    """Prefills that start from nothing: their slots are dirty."""
    spare: int = 0
    longer: str = ""
    """The cache that has more slots than the other: conv_state, ssm_state, none."""
    extra: int = 0
    """Rows of the token tensors beyond the last token."""
    key_heads: int = 1
    group: int = 1
    K: int = 16
    V: int = 16
    width: int = 4
    wider: int = 0
    """Columns of the convolution's states before the w-1 that enter results."""
    conv_layout: Literal["SD", "DS"] = "SD"
    state_layout: Literal["kv", "vk"] = "vk"
    state: Literal["float32", "bfloat16"] = "float32"
    bias: Literal["none", "call", "float32"] = "none"
    parameters_float32: bool = True
    silu: bool = True
    l2norm: bool = True
    eps: float = 1e-6
    size: float = 1.0
    steep: float = 1.0
    """Gates are so many times the usual ones: of the steep ones softplus is its argument, and sigmoid all but 0 or 1."""

    @property
    def heads(self) -> int:
        return self.key_heads * self.group

    @property
    def keys(self) -> int:
        """Channels of q and of k."""
        return self.key_heads * self.K

    @property
    def dim(self) -> int:
        return 2 * self.keys + self.heads * self.V

    @property
    def lengths(self) -> tuple[int, ...]:
        return (1,) * self.decodes + self.prefills

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def requests(self) -> int:
        return len(self.lengths)

    @property
    def slots(self) -> int:
        return self.requests + self.spare + 1

    @property
    def pad_slot(self) -> int | None:
        return drawn_pad(self, "state_indices", self.slots, PAD)

    @property
    def live(self) -> list[int]:
        return [r for r, length in enumerate(self.lengths) if length and r not in self.pads]

    @property
    def warm(self) -> list[int]:
        """Live requests whose slots hold a state."""
        return [r for r in self.live if r < self.decodes or r - self.decodes not in self.cold]


OPTIONS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "decodes": (0, 1, 3, 0, 1, 17),
    "prefills": (1, 0, 3, 1, 3, 10, 3, MANY),
    "length": (1, 2, 3, 0, 4, 5, 63, 64, 65),
    "other": (1, 2, 0, 3, 5),
    "extra": (0, 0, 3),
    "key_heads": (1, 2),
    "group": (1, 2, 3),
    "K": (16, 32, 20, 33, 1),
    "V": (16, 32, 33, 48),
    "width": (4, 3, 2),
    "wider": (0, 0, 1, 3, "square"),
    "conv_layout": ("SD", "DS"),
    "state_layout": ("vk", "kv"),
    "state": ("float32", "bfloat16"),
    "bias": ("none", "call", "float32"),
    "parameters_float32": (True, False),
    "silu": (True, False),
    "l2norm": (True, True, False),
    "eps": (1e-5, 1e-6, 0.01, 100.0),
    "size": (1.0, 1e-2, 30.0),
    "steep": (1.0, 1.0, 8.0),
}
SLOTS: dict[str, tuple[Any, ...]] = {
    "pads": ("none", "none", "some", "some", "some", "all"),
    "some_pads": SUBSETS,
    "pad_in_range": (False, True),
    "cold": ("none", "some", "all"),
    "some_cold": SUBSETS,
    "spare": (0, 2),
    "longer": ("", "", "conv_state", "ssm_state"),
}


BATCHES = st.tuples(choices(OPTIONS), choices(SLOTS)).map(lambda both: both[0] | both[1])
FIELDS = together(common(LAYOUTS, INDICES))


@st.composite
def strategy(draw: st.DrawFn) -> GdnCase:
    """Any batch, layouts and dtypes that the contract allows, small enough for the reference."""
    drawn = draw(BATCHES, label="batch")
    count, length, other = drawn.pop("prefills"), drawn.pop("length"), drawn.pop("other")
    fields = one_laid_out(draw(FIELDS), VECTORS)
    return completed(drawn, (length, other, *(1,) * MANY)[:count], fields)


def completed(drawn: dict[str, Any], prefills: tuple[int, ...], fields: dict[str, Any]) -> GdnCase:
    """The case of these prefills; pads and cold ones are named in words."""
    count = len(prefills)
    requests = drawn["decodes"] + count
    for name, entries in (("pads", requests), ("cold", count)):
        drawn[name] = named(drawn[name], drawn.pop(f"some_{name}"), entries)
    drawn["pad_in_range"] = bool(drawn["pads"]) and drawn["pad_in_range"]
    square = drawn["wider"] == "square"
    case = GdnCase(prefills=prefills, **drawn | {"wider": 0 if square else drawn["wider"]}, **fields)
    return replace(case, wider=case.dim - case.width + 1) if square and case.width <= case.dim <= MOST_COLUMNS else case


def mixed(case: GdnCase, name: str, rows: int, columns: int = 1) -> Tensor:
    """Channels such that |k| stays below 1 after the convolution, normalised or not: its weights sum to at most 1."""
    drawn = uniform(case.seed, name, (rows, columns, case.dim))
    drawn[..., : 2 * case.keys] *= 0.7 * case.K**-0.5
    drawn[..., 2 * case.keys :] *= case.size
    return drawn.to(getattr(torch, case.dtype))


def parameters(case: GdnCase) -> Inputs:
    """The layer's weights and scalars."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    of_vector = torch.float32 if case.parameters_float32 else dtype
    weight = uniform(case.seed, "weight", (case.dim, case.width), dtype, 1 / case.width)
    bias = None
    if case.bias != "none":
        bias = uniform(case.seed, "bias", (case.dim,), dtype if case.bias == "call" else torch.float32, 0.2 * case.K**-0.5)
    return {
        "conv_weight": causal_conv1d_pack_weight(weight),
        "conv_bias": bias,
        "A_log": uniform(case.seed, "A_log", (case.heads,), of_vector, 2.0),
        "dt_bias": uniform(case.seed, "dt_bias", (case.heads,), of_vector, 1.0),
    }


def scalars(case: GdnCase) -> Inputs:
    return {
        "conv_width": case.width,
        "num_k_heads": case.key_heads,
        "head_k_dim": case.K,
        "num_v_heads": case.heads,
        "head_v_dim": case.V,
        "conv_layout": case.conv_layout,
        "state_layout": case.state_layout,
        "silu_activation": case.silu,
        "use_qk_l2norm": case.l2norm,
        "eps": case.eps,
    }


def conv_shaped(case: GdnCase, columns: Tensor) -> Tensor:
    """[slots, S, dim] in the declared layout."""
    return columns if case.conv_layout == "SD" else columns.transpose(1, 2).contiguous()


def state_shaped(case: GdnCase, states: Tensor) -> Tensor:
    """[slots, HV, K, V] in the declared layout."""
    return states if case.state_layout == "kv" else states.transpose(2, 3).contiguous()


def pools(case: GdnCase, slots: int) -> tuple[Tensor, Tensor]:
    """States in every slot, as warm requests find them."""
    dtype = torch.bfloat16 if case.state == "bfloat16" else torch.float32
    states = uniform(case.seed, "ssm", (slots, case.heads, case.K, case.V), scale=case.size).to(dtype)
    return conv_shaped(case, mixed(case, "conv", slots, case.wider + case.width - 1)), state_shaped(case, states)


def batch(case: GdnCase) -> Inputs:
    """The metadata, flat."""
    lengths = case.lengths
    indices = free_slots(case, case.slots)[: case.requests]
    indices[list(case.pads)] = entry_of(case.pad_slot, PAD)
    for request in (r for r, length in enumerate(case.lengths) if not length and r not in case.pads):
        indices[request] = (case.slots + BEYOND, indices[0])[case.seed % 2]  # of no request with tokens: never looked at
    flags = [True] * case.decodes + [n not in case.cold for n in range(len(case.prefills))]
    if case.decodes:
        flags[0] = False  # ignored for decodes
    return {
        "num_decodes": case.decodes,
        "num_decode_tokens": case.decodes,
        "num_prefills": len(case.prefills),
        "num_prefill_tokens": sum(case.prefills),
        "num_actual_tokens": case.tokens,
        "state_indices": indices,
        "query_start_loc": torch.tensor(list(accumulate(lengths, initial=0))),
        "has_initial_state": torch.tensor(flags, dtype=torch.bool),
        "pad_slot": case.pad_slot,
    }


def inputs(case: GdnCase) -> Inputs:
    """Arguments with the metadata's fields among them; slots that nobody may read hold poison."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    rows, meta = case.tokens + case.extra, batch(case)
    conv, ssm = pools(case, case.slots)
    unread = torch.ones(case.slots, dtype=torch.bool)
    unread[meta["state_indices"][case.warm].long()] = False
    conv[unread] = poison(case.poison, tuple(conv[unread].shape), conv.dtype)
    ssm[unread] = poison(case.poison, tuple(ssm[unread].shape), ssm.dtype)
    caches = {"conv_state": conv, "ssm_state": ssm}
    if case.longer:
        cache = caches[case.longer]
        caches[case.longer] = torch.cat([cache, poison(case.poison, (LONGER, *cache.shape[1:]), cache.dtype)])
    return {
        "mixed_qkv": mixed(case, "mixed", rows)[:, 0],
        "a": uniform(case.seed, "a", (rows, case.heads), dtype, 3.0 * case.steep),
        "b": uniform(case.seed, "b", (rows, case.heads), dtype, 4.0 * case.steep),
        "core_attn_out": poison(case.poison, (rows, case.heads, case.V), dtype),
        **caches,
        **parameters(case),
        **meta,
        **scalars(case),
    }


def written_slots(case: GdnCase, given: Inputs, cache: str) -> Tensor:
    """[slots] of a cache: those of live requests."""
    mask = torch.zeros(len(given[cache]), dtype=torch.bool)
    mask[given["state_indices"][case.live].long()] = True
    return mask


def small_enough(case: GdnCase) -> bool:
    """For the emulated tier."""
    chunks = sum(-(-length // 64) for length in case.prefills)
    return chunks * case.heads * -(-case.K // 32) * -(-case.V // 32) <= MOST_EMULATED


METADATA = (
    "num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens", "num_actual_tokens", "state_indices",
    "query_start_loc", "has_initial_state", "pad_slot",
)  # fmt: skip


def _layer(core: Callable[..., None]) -> Callable[..., None]:
    """The layer with the metadata's fields and the packed weight's data and width as arguments of their own."""

    def call(conv_weight: Any, conv_width: int, **given: Any) -> None:
        packed: Any = conv_weight
        if isinstance(conv_weight, Tensor) and conv_weight.dim() == 4:
            sizes = [given[name] for name in ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")]
            HK, K, HV, V = sizes if all(isinstance(size, int) for size in sizes) else (0, 0, 0, 0)  # a wrong call
            channels = given.pop("channels", 2 * HK * K + HV * V)  # others are a wrong call, too
            packed = PackedConvWeight(conv_weight, given.pop("tag", "pairs-n32"), channels, conv_width)
        about = GdnMetadata(**{name: given.pop(name) for name in METADATA})
        core(conv_weight=packed, metadata=about, **given)

    return call


call_reference = _layer(reference.gdn_attention_core.gdn_attention_core)
call_optimized = _layer(optimized.gdn_attention_core.gdn_attention_core)


def _written_rows(case: GdnCase, given: Inputs) -> Tensor:
    return (torch.arange(len(given["core_attn_out"])) < case.tokens)[:, None, None]


EDGES: dict[str, Callable[[Any], bool]] = {
    "nothing to do": lambda case: case.tokens == 0,
    "only decodes": lambda case: case.decodes > 0 and not case.prefills,
    "only prefills": lambda case: case.decodes == 0 and len(case.prefills) > 0,
    "both": lambda case: case.decodes > 0 and len(case.prefills) > 0,
    "a prefill without tokens": lambda case: 0 in case.prefills and case.tokens > 0,
    "a prefill shorter than the history": lambda case: 1 in case.prefills and case.width > 2,
    "more than a chunk": lambda case: max(case.prefills, default=0) > 64,
    "dirty slots start from zeros": lambda case: bool(case.cold) and any(case.prefills[n] for n in case.cold),
    "pads": lambda case: bool(case.pads) and case.tokens > 0,
    "pad is a slot in range": lambda case: case.pad_in_range and case.tokens > 0,
    "pad is slot 0": lambda case: case.pad_in_range and case.pad_slot == 0 and case.tokens > 0,
    "more slots for convolutions": lambda case: case.longer == "conv_state" and case.tokens > 0,
    "more slots for the delta rule": lambda case: case.longer == "ssm_state" and case.tokens > 0,
    "rows beyond the tokens": lambda case: case.extra > 0,
    "wider conv states, tokens move into the front": lambda case: case.wider > 0
    and any(length > case.wider + case.width - 1 for n, length in enumerate(case.prefills) if case.decodes + n in case.live),
    "wider conv states, a decode moves them": lambda case: case.wider > 0 and any(r < case.decodes for r in case.live),
    "SD": lambda case: case.conv_layout == "SD",
    "DS": lambda case: case.conv_layout == "DS",
    "kv": lambda case: case.state_layout == "kv" and case.K != case.V,
    "vk": lambda case: case.state_layout == "vk" and case.K != case.V,
    "HV != HK": lambda case: case.group > 1,
    "bfloat16 states": lambda case: case.state == "bfloat16",
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in UNIT},  # type: ignore[misc]
}
