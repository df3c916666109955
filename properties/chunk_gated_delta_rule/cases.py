"""Cases of chunk_gated_delta_rule: sequences, states and gates as plain data, and the tensors that they stand for."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.gated_delta_rule_prefill
from kernelpair.call.layout import EXPANDED, FAR, FAR_PARAMETERS, FAR_VECTOR, POOL, READ_ROWS, SHARED
from kernelpair.call.values import generator, poison, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from optimized import operator
from properties.shared.pads import SUBSETS, drawn_pad, entry_of, free_slots, more_slots, more_tokens, named
from properties.shared.strategies import around, choices, common, together
from reference import chunk_gated_delta_rule as reference
from reference.gated_delta_rule_prefill import gated_delta_rule_prefill

CHUNK = 64
LENGTHS = (0, 1, 2, *around(16, 32, 64, 128), 192)
LONG = (1100, 2100)  # tokens of a rare sequence
SHORT = (1, 2, 5, 16, 17, 0)  # of sequences among several, for speed
WIDTHS = (16, 32, 33, 64, 96, 128, 192, 300)  # K and V; whole tiles, a ragged one, several
MANY = (1, 0, 2, 0) * 20  # lengths of a large batch: more sequences than the bits of a word
MANY_HEADS = 23  # key heads, of small widths and few tokens; with three value heads each more than the bits of a word
MANY_HEADS_TOKENS = 64
FEW = 3  # keys and values of seldom pools, so that slots may be many
SMALL_WIDTHS = (16, 32, 33, 20, 1)
MOST_WORK = 64 * 128 * 128  # tokens x heads x K x V of a case, to keep the float64 token loops short
MOST_EMULATED = 48  # chunks x heads x 32-blocks of K and of V: 20 ms of software tiles
GROWTH, FAST_GROWTH = -0.02, -2.0
FORGETTING = -1e6  # log decay of a token that leaves nothing of its state
DECAYS = (0.05, 0.0, 1.0, 30.0, 1e37, GROWTH, FAST_GROWTH)  # largest |g| of a token; a chunk of 1e37 is beyond float32
MOST_GROWTH = {"float16": 6, "bfloat16": 40, "float32": 40}  # of a sequence, for outputs that stay in range
MOST_BURST = 40.0  # log growth of a token of a head that bursts: exp of it is a number
BURST = 130.0  # of a sequence of such tokens: exp of it is none, but times FAINT it is
BURST_TOKENS = 66  # of a sequence: with more of them none would grow fast
FAINT = 1e-30  # factor of values and states of a head that bursts
WEAK = 2.0**-20  # factor of a faint beta, and of the states beside it
LARGE_SCALE = 3.0  # not of float16 where states grow
EXACT_TOKENS = 2  # of a sequence: more would leave the whole numbers that float32 holds
SMALL_EPS = 1e-12  # with less of it keys are so small that it counts
PAD = -3
TOKENS = ("q", "k", "v", "g", "beta")

LAYOUTS = {
    "q": READ_ROWS,
    "k": READ_ROWS,
    "v": READ_ROWS,
    "g": (*FAR_PARAMETERS, FAR),
    "beta": (*FAR_PARAMETERS, FAR),
    "initial_state": READ_ROWS,
    "state": POOL,
    "state_indices": FAR_VECTOR,
    "has_initial_state": FAR_PARAMETERS,
    "cu_seqlens": FAR_VECTOR,
}
FUSED = (("q", "k"), ("k", "q"))
INDICES = ("state_indices", "cu_seqlens")


@dataclass(frozen=True, kw_only=True)
class ChunkCase(Case):
    """Sequences of the given lengths, in the functional form or on a pool of states."""

    form: Literal["functional", "pool"] = "functional"
    lengths: tuple[int, ...] = (1,)
    before: int = 0
    """Tokens ahead of the first sequence; no sequence covers them."""
    after: int = 0
    key_heads: int = 1
    group: int = 1
    """Value heads of each key head."""
    K: int = 16
    V: int = 16
    state_layout: Literal["kv", "vk"] = "kv"
    state: Literal["none", "float32", "bfloat16"] = "float32"
    """Initial state (functional; none: zeros) or pool."""
    flags: bool = True
    """The pool's has_initial_state is given; otherwise all sequences start from zeros."""
    cold: tuple[int, ...] = ()
    """Sequences whose flag is False: their slots hold poison."""
    pads: tuple[int, ...] = ()
    pad_in_range: bool = False
    """The pad is a slot that exists instead of a negative number."""
    spare: int = 0
    beta_float32: bool = False
    beta: Literal["mixed", "zero", "one", "strong", "faint"] = "mixed"
    """Strong: above 1, beside keys without normalisation that are short enough. Faint: so small that all that is written would be
    lost beside states of the usual size; theirs are as small."""
    decay: float = 0.05
    forgets: bool = False
    """One token of each sequence and head has the log decay FORGETTING."""
    bursts: bool = False
    """Of each key head the last value head grows fast, from faint numbers to large ones."""
    l2norm: bool = True
    eps: float = 1e-6
    scale: float | None = None
    accurate: bool = False
    keys: Literal["random", "parallel", "tiny"] = "random"
    size: float = 1.0
    """Of values and states."""
    exact: bool = False
    """Float32, small integers, keys and queries of one entry, one of which needs 20 bits, g = 0, beta 0 or 1, no norm, scale 1:
    every sum is exact."""

    @property
    def exact_sums(self) -> bool:
        """Whether all holds that `exact` asks for: a candidate's limits may have taken some of it."""
        plain = self.dtype == "float32" and not self.l2norm and self.scale == 1.0 and self.decay == 0 and not self.forgets
        return self.exact and plain and self.beta in ("zero", "one") and max(self.lengths, default=0) <= EXACT_TOKENS

    @property
    def heads(self) -> int:
        return self.key_heads * self.group

    @property
    def tokens(self) -> int:
        return self.before + sum(self.lengths) + self.after

    @property
    def spans(self) -> list[tuple[int, int]]:
        return list(pairwise(accumulate(self.lengths, initial=self.before)))

    @property
    def live(self) -> tuple[int, ...]:
        """Sequences that do something."""
        pads = self.pads if self.form == "pool" else ()
        return tuple(n for n, length in enumerate(self.lengths) if length and n not in pads)

    @property
    def warm(self) -> tuple[int, ...]:
        """Sequences that start from a given state."""
        if self.form == "functional":
            return tuple(range(len(self.lengths))) if self.state != "none" else ()
        one_flag = self.layout.get("has_initial_state") == EXPANDED
        return tuple(n for n in range(len(self.lengths)) if self.flags and (0 if one_flag else n) not in self.cold)

    @property
    def slots(self) -> int:
        return len(self.lengths) + self.spare + 1

    @property
    def pad_slot(self) -> int | None:
        return drawn_pad(self, "state_indices", self.slots, PAD)


SHAPES = {
    "batch": ("one", "one", "none", "four", "five") * 2 + ("many",) * 2,
    "length": (1, *LENGTHS[:-6], *LENGTHS, *LONG, LONG[1]),
    "second": SHORT,
    "third": SHORT,
    "long_first": (0, 0, 33, 64, 65),
    "group": (1, 2, 3),
    "key_heads": (1, 2, 1, 2, 1, 2, 1, 2, MANY_HEADS),
    "K": SMALL_WIDTHS + WIDTHS,
    "V": SMALL_WIDTHS + WIDTHS,
}
STATES = {
    "form": ("functional", "pool"),
    "state": ("float32", "bfloat16", "none"),
    "pads": ("none", "none", "some", "some", "some", "all"),
    "some_pads": SUBSETS,
    "cold": ("none", "some", "all"),
    "some_cold": SUBSETS,
    "flags": (True, True, True, False),
    "pad_in_range": (False, True),
    "spare": (0, 1, 2),
}
NUMBERS = {
    "dtype": ("float32", "bfloat16", "float16"),
    "before": (0, 0, 1, 3),
    "after": (0, 0, 2),
    "state_layout": ("kv", "vk"),
    "beta_float32": (False, True),
    "beta": ("mixed", "mixed", "zero", "one", "mixed", "strong", "faint"),
    "decay": DECAYS,
    "forgets": (False, False, False, True),
    "bursts": (False, False, True),
    "l2norm": (True, True, False),
    "eps": (1e-5, 1e-6, 0.1, 1e-16, 100.0),
    "scale": (None, None, 0.7, LARGE_SCALE),
    "accurate": (False, False, True),
    "keys": ("random", "random", "parallel", "tiny"),
    "size": (1.0, 1e-3, 100.0),
    "exact": (False, False, True),
}


def _shapes(drawn: dict[str, Any]) -> dict[str, Any]:
    """Lengths, heads and widths within the budget of work: many sequences are short, and long ones narrow."""
    first = drawn["long_first"] or drawn["second"]
    several = (first, drawn["second"], drawn["third"], drawn["second"], drawn["third"])
    batches = {"one": (drawn["length"],), "none": (), "four": several[:4], "five": several, "many": MANY}
    lengths = batches[drawn["batch"]]
    group, key_heads, K, V = (drawn[name] for name in ("group", "key_heads", "K", "V"))
    if key_heads == MANY_HEADS:
        K, V, key_heads = min(K, 20), min(V, 20), key_heads if sum(lengths) <= MANY_HEADS_TOKENS else 2
    if sum(lengths) * group * key_heads * K * V > MOST_WORK:
        K, V = min(K, 33), min(V, 32)
    return {"lengths": lengths, "key_heads": key_heads, "group": group, "K": K, "V": V}


def _states_of(drawn: dict[str, Any], count: int) -> dict[str, Any]:
    if drawn["form"] == "functional":
        return {"form": "functional", "state": drawn["state"]}
    pads, cold = (named(drawn[name], drawn[f"some_{name}"], count) for name in ("pads", "cold"))
    return {
        "form": "pool",
        "state": drawn["state"] if drawn["state"] != "none" else "float32",
        "flags": drawn["flags"],
        "cold": cold,
        "pads": pads,
        "pad_in_range": bool(pads) and drawn["pad_in_range"],
        "spare": drawn["spare"],
    }


FIELDS = st.tuples(choices(SHAPES), choices(STATES), choices(NUMBERS), together(common(LAYOUTS, INDICES, FUSED)))


@st.composite
def strategy(draw: st.DrawFn) -> ChunkCase:
    """Any sequences, states, gates and layouts that the contract allows, within the budget of work."""
    shapes_code, states_code, numbers, fields = draw(FIELDS, label="shapes, states, numbers, layouts")
    return completed(_shapes(shapes_code), states_code, numbers, fields)


def completed(
    shapes: dict[str, Any], states_code: dict[str, Any], numbers: dict[str, Any], fields: dict[str, Any]
) -> ChunkCase:
    """The case of these sizes: of what was drawn, all that goes together."""
    if shapes["lengths"] == MANY and fields["seed"] % 2:
        states_code = states_code | {"form": "pool", "cold": "some", "flags": True}
    numbers, longest = dict(numbers), max(shapes["lengths"], default=0)
    numbers["exact"] = numbers["exact"] and numbers["dtype"] == "float32" and longest <= EXACT_TOKENS
    if numbers["exact"]:
        beta = "zero" if numbers["beta"] == "zero" else "one"
        numbers |= {"beta": beta, "decay": 0.0, "forgets": False, "l2norm": False, "scale": 1.0}
    if numbers["beta"] == "strong":
        numbers["l2norm"] = False
    for slower in (GROWTH, 0.0):
        if -numbers["decay"] * longest > MOST_GROWTH[numbers["dtype"]]:
            numbers["decay"] = slower
    if numbers["scale"] == LARGE_SCALE and numbers["dtype"] == "float16" and numbers["decay"] < 0:
        numbers["scale"] = None
    small = numbers["keys"] == "tiny" or numbers["eps"] < SMALL_EPS or numbers["beta"] == "faint"
    numbers["bursts"] &= not small and not numbers["exact"] and numbers["dtype"] != "float16" and longest <= BURST_TOKENS
    states = _states_of(states_code, len(shapes["lengths"]))
    if states["form"] == "pool":
        if fields["seed"] % 8 == 4:
            shapes |= {name: min(shapes[name], FEW) for name in "KV"}
        elements = shapes["key_heads"] * shapes["group"] * shapes["K"] * shapes["V"]
        states["spare"] += more_slots(fields["seed"], fields["layout"], elements)
    per_token = shapes["key_heads"] * (2 * shapes["K"] + shapes["group"] * (shapes["V"] + 2))
    numbers["before"] += more_tokens(fields["seed"], fields["layout"], per_token)
    return ChunkCase(**shapes, **states, **numbers, **fields)


def _keys(case: ChunkCase, name: str, dtype: torch.dtype) -> Tensor:
    """Rows of norm at most 1, so that beta |k|^2 <= 1 with and without normalisation; 1e-3 of that if tiny, and 1e-8 of it beside
    a small eps; 0.7 of it beside a strong beta."""
    shape = (case.tokens, case.key_heads, case.K)
    if case.exact_sums:
        return _one_entry(case, name, shape)
    size = (1e-3 if case.keys == "tiny" else 1.0) * (1e-8 if case.l2norm and case.eps < SMALL_EPS else 1.0) * case.K**-0.5
    size *= 0.7 if case.beta == "strong" else 1.0
    drawn = uniform(case.seed, name, shape, scale=size)
    if case.keys == "parallel" and name == "k":
        drawn = 0.1 * drawn + 0.9 * uniform(case.seed, "direction", shape[1:], scale=size)
    return drawn.to(dtype)


def _one_entry(case: ChunkCase, name: str, shape: tuple[int, int, int]) -> Tensor:
    """Rows with one entry that is not 0: 1 or -1, of q a number of 20 bits."""
    draw = generator(case.seed, name)
    where = torch.from_numpy(draw.integers(0, case.K, size=(*shape[:2], 1)))
    signs = torch.from_numpy(draw.integers(0, 2, size=where.shape) * 2 - 1)
    sizes = torch.from_numpy(draw.integers(2**18, 2**19, size=where.shape)) * 2 + 1 if name == "q" else torch.ones_like(where)
    return torch.zeros(shape).scatter_(2, where, (signs * sizes).float())


def _numbers(case: ChunkCase, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of values and states; their second dimension are the heads."""
    if case.exact_sums:
        return small_integers(case.seed, name, shape, dtype)
    numbers = uniform(case.seed, name, shape, dtype, case.size * (WEAK if name == "state" and case.beta == "faint" else 1.0))
    if case.bursts:  # where heads share their rows, those that burst have the numbers of another
        every = 1 if case.layout.get("initial_state" if name == "state" else name) == SHARED else case.group
        numbers[:, every - 1 :: every] *= FAINT
    return numbers


def _gates(case: ChunkCase, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (case.tokens, case.heads)
    g, where = -case.decay * (0.5 + 0.5 * uniform(case.seed, "g", shape).abs()), generator(case.seed, "forgets")
    if case.bursts:
        rate = min(MOST_BURST, BURST / max((1, *case.lengths)))
        drawn = uniform(case.seed, "bursts", (case.tokens, case.key_heads))
        g[:, case.group - 1 :: case.group] = rate * (0.5 + 0.5 * drawn.abs())
    for begin, end in case.spans if case.forgets else ():
        if end > begin:
            g[torch.from_numpy(where.integers(begin, end, size=case.heads)), torch.arange(case.heads)] = FORGETTING
    drawn = uniform(case.seed, "beta", shape).abs()
    beta = {"zero": torch.zeros(shape), "one": torch.ones(shape), "mixed": drawn, "strong": 1 + drawn, "faint": WEAK * drawn}
    return g, beta[case.beta].to(torch.float32 if case.beta_float32 else dtype)


def _states(case: ChunkCase, count: int) -> Tensor:
    inner = (case.K, case.V) if case.state_layout == "kv" else (case.V, case.K)
    dtype = torch.bfloat16 if case.state == "bfloat16" else torch.float32
    drawn = _numbers(case, "state", (count, case.heads, case.K, case.V), torch.float32)
    drawn = drawn if case.state_layout == "kv" else drawn.transpose(2, 3)
    return drawn.reshape(count, case.heads, *inner).to(dtype).contiguous()


def inputs(case: ChunkCase) -> Inputs:
    """Arguments of `chunk_gated_delta_rule`, or of its pool form: states nobody may read are poison."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    g, beta = _gates(case, dtype)
    values = _numbers(case, "v", (case.tokens, case.heads, case.V), dtype)
    given: Inputs = {"q": _keys(case, "q", dtype), "k": _keys(case, "k", dtype), "v": values, "g": g, "beta": beta}
    offsets = torch.tensor(list(accumulate(case.lengths, initial=case.before)))
    common_last = {"cu_seqlens": offsets, "state_layout": case.state_layout, "use_qk_l2norm": case.l2norm, "eps": case.eps,
                   "scale": case.scale, "accurate": case.accurate}  # fmt: skip
    if case.form == "functional":
        state = None if case.state == "none" else _states(case, len(case.lengths))
        return given | {"initial_state": state} | common_last
    indices = free_slots(case, case.slots)[: len(case.lengths)]
    known = _states(case, case.slots)
    state = poison(case.poison, tuple(known.shape), known.dtype)
    for n in case.warm:
        state[indices[n]] = known[indices[n]]
    indices[list(case.pads)] = entry_of(case.pad_slot, PAD)
    if case.live and case.seed // 3 % 2:  # entries of empty sequences are stale, and no duplicates
        empty = [n for n, length in enumerate(case.lengths) if not length and n not in case.pads]
        indices[empty] = int(indices[case.live[0]])
    flags = torch.tensor([n in case.warm for n in range(len(case.lengths))], dtype=torch.bool) if case.flags else None
    pool = {"state": state, "state_indices": indices, "has_initial_state": flags}
    return given | pool | common_last | {"pad_slot": case.pad_slot}


def written(case: ChunkCase, given: Inputs) -> Tensor | bool:
    """Slots of sequences that do something."""
    if "state" not in given:
        return True
    mask = torch.zeros(len(given["state"]), 1, 1, 1, dtype=torch.bool)
    mask[given["state_indices"][list(case.live)].long()] = True
    return mask


def small_enough(case: ChunkCase) -> bool:
    """For the emulated tier."""
    chunks = sum(-(-length // CHUNK) for length in case.lengths)
    return chunks * case.heads * -(-case.K // 32) * -(-case.V // 32) <= MOST_EMULATED


def call_reference(**given: object) -> object:
    """The form that the arguments belong to."""
    if "state" in given:
        return reference.chunk_gated_delta_rule_pool(**given)  # type: ignore[arg-type]
    return _functional(gated_delta_rule_prefill, given)


def call_optimized(**given: object) -> object:
    """The same of the compiled operators; results by name, for the two forms return different ones."""
    if "state" in given:
        return {"out": operator("chunk_gated_delta_rule_pool")(**given)}
    return _by_name(_functional(optimized.gated_delta_rule_prefill.gated_delta_rule_prefill, given))


def _functional(prefill: Callable[..., tuple[Tensor, Tensor | None]], given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """A call with tokens in front, whichever form `prefill` is asked for."""
    if given.get("head_first") is not True:
        return prefill(**given)
    turned = {name: given[name].transpose(0, 1) for name in TOKENS}
    out, final_state = prefill(**given | turned)
    return out.transpose(0, 1), final_state


def _by_name(result: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
    """Without final states where none were asked for."""
    return {name: value for name, value in zip(("out", "final_state"), result) if value is not None}


def named_reference(**given: object) -> object:
    result = call_reference(**given)
    return _by_name(result) if isinstance(result, tuple) else {"out": result}


def result_dtype(case: ChunkCase, name: str) -> torch.dtype:
    """A final state has the initial one's dtype, float32 where there is none."""
    if name == "out":
        return getattr(torch, case.dtype)
    return torch.bfloat16 if case.state == "bfloat16" else torch.float32
