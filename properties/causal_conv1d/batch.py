"""The requests of a call of causal_conv1d, read off its arguments, and what its SiLU makes of an error."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs


@dataclass(frozen=True)
class ConvRequest:
    """One request: where its tokens are, and its slot."""

    form: str
    row: int
    start: int
    end: int
    slot: int
    live: bool
    """It has tokens and is no pad."""

    def of(self, tokens: Tensor) -> Tensor:
        """Its part of x or of the result, a view."""
        return tokens[:, self.start : self.end] if self.form == "varlen" else tokens[self.row]


def requests(given: Inputs) -> list[ConvRequest]:
    """All requests of a call, in order."""
    form, x, indices = given["form"], given["x"], given.get("cache_indices")
    if form == "varlen":
        offsets = given["query_start_loc"].tolist()
        spans = list(pairwise(offsets))
    else:
        spans = [(0, x.shape[2] if form == "batched" else 1)] * len(x)
    slots = list(range(len(spans))) if indices is None else indices.tolist()
    pads = [indices is not None and slot == given["pad_slot"] for slot in slots]
    return [
        ConvRequest(form, row, start, end, slot, end > start and not pad)
        for row, ((start, end), slot, pad) in enumerate(zip(spans, slots, pads))
    ]


def pick(given: Inputs, rows: list[int]) -> Inputs:
    """The same call for some of its requests, in the order of `rows`; slots stay what they are."""
    all_requests = requests(given)
    chosen = [all_requests[row] for row in rows]
    if given["form"] == "varlen":
        parts = [request.of(given["x"]) for request in chosen]
        return given | varlen(given, parts) | _slots_of(given, chosen, rows)
    return given | {"x": given["x"][rows]} | _slots_of(given, chosen, rows)


def varlen(given: Inputs, parts: list[Tensor]) -> Inputs:
    """Tokens [dim, n] of several requests end to end."""
    lengths = torch.tensor([0] + [part.shape[1] for part in parts])
    empty = given["x"].new_empty(given["dim"], 0)
    return {"form": "varlen", "x": torch.cat([empty, *parts], dim=1), "query_start_loc": lengths.cumsum(0)}


def as_varlen(given: Inputs) -> Inputs:
    """A batched call's tokens end to end, or a varlen call's without gaps."""
    return given | varlen(given, [request.of(given["x"]) for request in requests(given)])


def _slots_of(given: Inputs, chosen: list[ConvRequest], rows: list[int]) -> Inputs:
    if given["conv_states"] is None:
        return {}
    initial = given.get("has_initial_state")
    slots = {"cache_indices": torch.tensor([request.slot for request in chosen], dtype=torch.int64)}
    return slots | ({"has_initial_state": initial[rows]} if initial is not None else {})


def through_silu(y: Tensor, error: Tensor) -> Tensor:
    """How far an error of y moves SiLU(y): its slope is at most 1.1, and left of zero (1 - y) e^y, which grows with y."""
    highest = (y + error).clamp_max(0.0)
    return 1.1 * (1 - highest) * highest.exp() * error
