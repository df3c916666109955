"""gated_delta_rule_update_spec: what is drawn, and the arguments of a case. Tokens, gates and numbers are those of single steps,
one for each token; slots and counts are its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import properties.gated_delta_rule_update.cases as step
from kernelpair.call.layout import FAR_VECTOR, POOL, TURNED
from kernelpair.call.values import poison
from kernelpair.contract.pair import Inputs
from properties.gated_delta_rule_update.cases import PAD, DeltaCase
from properties.shared.crowds import few_if_wider
from properties.shared.drafts import DRAWN, DraftRequests, repeated
from properties.shared.pads import NOBODY, drawn_pad, drawn_pads, entry_of, free_slots, more_tokens, nobodys
from properties.shared.strategies import CROWD, any_of, between, common, either, float_dtypes, one_far, shrinking, together

TOKENS = (1, 2, 3, 0, 5, 1, 2, 9)  # of a request
MANY = (17, 33, 70, CROWD)  # requests
MANY_SIZES = (1, 5, 16, 17)  # of keys and values of so many
LONG = 40  # drafts of one request in one case of 32
VALUE_SIZES = (1, 15, 16, 17, 32, 40, 128, 272, 600)
MODELS = ((2, 4, 4, 2, 128), (9, 2, 1, 3, 64), (1, 4, 16, 2, 128))  # requests, tokens, key heads, value heads of each, width
MOST_ELEMENTS = 100_000  # of the states of all tokens
ARGUMENT_LAYOUTS = {
    **step.ARGUMENT_LAYOUTS,
    "state_indices": (*TURNED, *POOL, "strided", "transposed"),
    "num_accepted_tokens": FAR_VECTOR,
    "query_start_loc": FAR_VECTOR,
}
INDICES = ("state_indices", "num_accepted_tokens", "query_start_loc")


@dataclass(frozen=True, kw_only=True)
class DeltaSpecCase(DraftRequests, DeltaCase):
    """Requests with some drafts each; `requests` counts all tokens, `pads` names requests."""

    lengths: tuple[int, ...] = (1,)
    accepted: tuple[int, ...] = (1,)
    read_together: bool = False
    """All requests that start from a slot which they do not write start from the same."""
    more_columns: int = 0
    """Of state_indices, beyond those that some request needs."""
    before: int = 0
    after: int = 0
    """Uncovered tokens."""

    @property
    def columns(self) -> int:
        """Sn."""
        return self.most_drafts + self.more_columns


FIELDS = together({
    "dtype": float_dtypes,
    **common(ARGUMENT_LAYOUTS, INDICES, [("q", "k")]),
    "state_dtype": any_of("float32", "bfloat16"),
    "state_layout": any_of("kv", "vk"),
    "eps": any_of(*step.EPS),
    "softplus_beta": any_of(*step.BETAS),
    "softplus_threshold": any_of(*step.THRESHOLDS),
    "wide": any_of((), step.VECTORS, ("A_log",), ("dt_bias",)),
    "more_columns": any_of(0, 0, 2),
    "before": any_of(0, 0, 3),
    "after": any_of(0, 0, 2),
    "spare": any_of(0, 1, 3),
})


@st.composite
def strategy(draw: st.DrawFn) -> DeltaSpecCase:
    """Any call that the contract allows."""
    many = draw(between(0, 15), label="many") == 15
    keys, values = (MANY_SIZES, MANY_SIZES) if many else (step.KEY_SIZES, VALUE_SIZES)
    K, V = draw(any_of(*keys), label="K"), draw(any_of(*values), label="V")
    V = step.narrowed(K, V)
    group, key_heads = draw(any_of(1, 2, 3), label="group"), draw(any_of(*step.HEADS), label="key_heads")
    if key_heads == step.MANY_HEADS:
        K, V = min(K, step.MANY_HEADS_WIDTH), min(V, step.MANY_HEADS_WIDTH)
    requests = draw(any_of(*MANY) if many else any_of(1, 2, 0, 3, 2, 3), label="requests")
    tokens = any_of(1, 2, 1, 0) if many else any_of(*TOKENS)
    lengths = repeated(tuple(draw(tokens) for _ in range(min(requests, DRAWN))), requests)
    if draw(between(0, 31), label="long") == 31:
        K, V, key_heads, group, lengths = min(K, 16), min(V, 17), 1, 1, (*lengths[:1], draw(shrinking(LONG)))
    if requests == CROWD:
        key_heads, group = 1, 1
    room = max(MOST_ELEMENTS // (K * V * group * key_heads), 2)
    while sum(lengths) > room:
        lengths = lengths[:-1] if len(lengths) > 1 else (room,)
    return _completed(draw, lengths, {"key_size": K, "value_size": V, "group": group, "key_heads": key_heads})


def _completed(draw: st.DrawFn, lengths: tuple[int, ...], sizes: dict[str, Any]) -> DeltaSpecCase:
    fields = one_far(draw(FIELDS), ("num_accepted_tokens", "query_start_loc", *step.VECTORS))
    elements = sizes["key_size"] * sizes["value_size"] * sizes["key_heads"] * sizes["group"]
    fields["before"] += more_tokens(fields["seed"], fields["layout"], elements)
    pads = drawn_pads(draw, len(lengths))
    together = draw(between(0, 7)) == 7
    # More tokens or longer keys would leave the whole numbers that float32 holds.
    exact = max(lengths, default=0) <= 2 and sizes["key_size"] <= 16 and draw(between(0, 2)) == 2
    accepted = tuple(n + 1 if together else draw(any_of(1, 2, 3)) if draw(either) else max(n, 1) for n in lengths[:DRAWN])
    return DeltaSpecCase(
        **fields, **sizes, lengths=lengths, requests=fields["before"] + sum(lengths) + fields["after"], pads=pads,
        accepted=repeated(accepted, len(lengths)),
        read_together=together,
        pad_in_range=bool(pads) and fields["spare"] > 0 and draw(either),
        l2norm=not exact and draw(either), scale=1.0 if exact else draw(any_of(None, 0.3, 3.0)),
        size=1.0 if exact else draw(any_of(*step.SCALES)),
        decay="none" if exact else draw(any_of(*step.decays(fields["softplus_threshold"]))),
        weak=not exact and draw(between(0, 4)) == 4,
        exact=exact,
    )


def refit(drawn: DeltaSpecCase, fitted: DeltaSpecCase) -> DeltaSpecCase:
    """`few_if_wider`, after which `requests` counts the tokens that there are."""
    other: DeltaSpecCase = few_if_wider(drawn, fitted)
    return replace(other, requests=other.before + sum(other.lengths) + other.after)


@cache
def models(slow: bool) -> st.SearchStrategy[DeltaSpecCase]:
    """States of 128 x 128, of many heads or some requests: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> DeltaSpecCase:
    requests, tokens, key_heads, group, width = draw(any_of(*MODELS), label="requests, tokens, heads, width")
    lengths = (draw(shrinking(tokens)),) * draw(shrinking(requests))
    names = ("key_heads", "group", "key_size", "value_size")
    sizes: dict[str, Any] = {name: draw(shrinking(size)) for name, size in zip(names, (key_heads, group, width, width))}
    return _completed(draw, lengths, sizes)


def pad_slot(case: DeltaSpecCase) -> int | None:
    return drawn_pad(case, "state_indices", _slots(case), PAD)


def _slots(case: DeltaSpecCase) -> int:
    return max(len(case.lengths) * case.columns + case.spare, 1)


def _pool(case: DeltaSpecCase) -> Inputs:
    """Slots that hold numbers where a request starts, poison elsewhere; entries that nobody may interpret are no slots."""
    count, columns, slots = len(case.lengths), case.columns, _slots(case)
    heads, inner = case.key_heads * case.group, (case.key_size, case.value_size)
    dtype: torch.dtype = getattr(torch, case.state_dtype)
    order = free_slots(case, slots)[: count * columns].view(count, columns)
    state = poison(case.poison, (slots, heads, *(inner if case.state_layout == "kv" else inner[::-1])), dtype)
    shape = (count, *state.shape[1:])
    numbers = step.state_numbers(case, shape, dtype)
    indices = torch.full((count, columns), nobodys(case, [int(order[r, 0]) for r in case.live]))
    accepted = torch.full((count,), NOBODY)
    only_read = [(r, case.accepted[r] - 1) for r in case.live if case.accepted[r] > case.lengths[r]]
    started = [(r, case.accepted[r] - 1) for r in case.live if case.accepted[r] > 1]
    pad = entry_of(pad_slot(case), PAD)
    if case.pad_in_range and started and case.seed // 2 % 4:
        order[started[0]] = pad
    if case.read_together:
        for where in only_read:
            order[where] = order[only_read[0]]
    for r in case.live:
        used = [case.accepted[r] - 1, *range(case.lengths[r])]
        indices[r, used] = order[r, used]
        accepted[r] = case.accepted[r]
        state[order[r, case.accepted[r] - 1]] = numbers[r]
    indices[list(case.pads), 0] = pad
    return {"state": state, "state_indices": indices, "num_accepted_tokens": accepted}


def inputs(case: DeltaSpecCase) -> Inputs:
    """Tokens of pads, and those that nobody covers, hold poison."""
    given = step.inputs(replace(case, pads=(), pad_in_range=False, spare=0))
    hidden = torch.ones(case.requests, dtype=torch.bool)
    for r in case.live:
        hidden[case.starts[r] : case.starts[r + 1]] = False
    for name in ("q", "k", "v", "a", "b"):
        if case.layout.get(name) != "expanded":
            given[name][hidden] = poison(case.poison, (1,), given[name].dtype)
    pool = _pool(case)
    given |= {"state": pool["state"], "state_indices": pool["state_indices"], "pad_slot": pad_slot(case)}
    own = {"num_accepted_tokens": pool["num_accepted_tokens"], "query_start_loc": torch.tensor(case.starts)}
    names = list(given)
    at = names.index("state_indices") + 1
    return {name: (given | own)[name] for name in (*names[:at], *own, *names[at:])}


def live_requests(given: Inputs) -> list[int]:
    """The requests with tokens that are no pads."""
    lengths, first = given["query_start_loc"].diff().tolist(), given["state_indices"][:, :1].flatten().tolist()
    return [r for r, n in enumerate(lengths) if n and first[r] != given["pad_slot"]]


def written(case: DeltaSpecCase, given: Inputs) -> Tensor:
    """The slots of a request's first n columns."""
    mask = torch.zeros(len(given["state"]), 1, 1, 1, dtype=torch.bool)
    lengths = given["query_start_loc"].diff().tolist()
    for r in live_requests(given):
        mask[given["state_indices"][r, : lengths[r]].long()] = True
    return mask


MEASURES: dict[str, Callable[[Any], int]] = {
    "elements": lambda case: case.requests * case.key_heads * case.group * case.key_size * case.value_size,
}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": lambda case: not case.lengths,
    "a request without tokens among others": lambda case: 0 in case.lengths and any(case.lengths),
    "several tokens": lambda case: any(case.lengths[r] > 2 for r in case.live),
    "the first state": lambda case: any(case.accepted[r] == 1 for r in case.live),
    "a state that is overwritten": lambda case: any(1 < case.accepted[r] <= case.lengths[r] for r in case.live),
    "a state that is only read": lambda case: any(case.accepted[r] > case.lengths[r] for r in case.live),
    "a slot that several read": lambda case: case.read_together
    and sum(case.accepted[r] > case.lengths[r] for r in case.live) > 1,
    "columns that nobody needs": lambda case: case.more_columns > 0,
    "columns that nobody needs name a slot that is written": lambda case: case.more_columns > 0 and bool(case.live)
    and case.seed // 3 % 2 > 0,
    "some requests are pads": lambda case: 0 < len(case.pads) < len(case.lengths),
    "pad is a slot in range": lambda case: case.pad_in_range,
    "pad is slot 0 of several": lambda case: case.pad_in_range and pad_slot(case) == 0 and _slots(case) > 1,
    "a request starts from the pad's slot": lambda case: case.pad_in_range
    and any(case.accepted[r] > 1 for r in case.live) and case.seed // 2 % 4 > 0,
    "many requests": lambda case: len(case.lengths) > 16,
    "a crowd of requests": lambda case: len(case.lengths) == CROWD,
    "dozens of drafts": lambda case: any(case.lengths[r] > 16 for r in case.live),
    "a carried state of very long keys": lambda case: case.key_size > 600
    and case.state_dtype == "bfloat16"
    and any(case.lengths[r] > 1 for r in case.live),
    "more tokens than 16 bits count": lambda case: case.before >= 2**16 and len(case.live) > 0,
    "uncovered tokens": lambda case: case.before > 0 and case.after > 0,
    "a carried state in bfloat16": lambda case: case.state_dtype == "bfloat16" and max(case.lengths, default=0) > 1,
    "value-major states": lambda case: case.state_layout == "vk",
    "a partial vector": lambda case: case.value_size % 16 > 0 and case.key_size % 16 > 0,
    "no norm": lambda case: not case.l2norm,
    "little is written": lambda case: case.weak and bool(case.live),
    "exact sums": lambda case: case.exact,
    "exact sums of two tokens": lambda case: case.exact and 2 in case.lengths,
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
