"""Usual slips of those who write a kernel (`Pair.slips`): mostly the reference with other arguments than the call has."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

WIDEST = 2**63 - 1  # of a window
Reference = Callable[..., Any]
Given = Mapping[str, Any]


def but(reference: Reference, **changes: Any) -> Reference:
    """The reference, with these arguments changed: to a value, or to what a function makes of all arguments. Arguments that a
    call does not have stay away."""

    def slips(**given: Any) -> Any:
        made = {name: change(given) if callable(change) else change for name, change in changes.items() if name in given}
        return reference(**given | made)

    return slips


def of_attention(reference: Reference, scale: str, cap: str) -> dict[str, Reference]:
    """Slips of every attention, by its names of the two numbers."""

    def scaled(given: Given) -> float:
        return float(given["q"].shape[-1] ** -0.5 if given[scale] is None else given[scale])

    return {
        "scores were capped before they are scaled": but(reference, **{cap: lambda given: given[cap] * scaled(given)}),
        "scores were not capped": but(reference, **{cap: 0.0}),
        "there were no sinks": but(reference, sinks=None),
        "each head had the sink of the one before": but(reference, sinks=lambda given: _rolled(given["sinks"])),
        f"{scale} were the width to the power -1/2": but(reference, **{scale: lambda given: given["q"].shape[-1] ** -0.5}),
        "query head h had the kv head h % Hkv, not h // (H // Hkv)": partial(_heads_in_turn, reference),
    }


def of_window(reference: Reference, window: str, least: int) -> dict[str, Reference]:
    """A window that is one off; the `least` that is one."""

    def wider(given: Given, keys: int) -> int:
        width = int(given[window])
        return width if width < least else min(max(width + keys, least), WIDEST)

    return {
        "a window had one key more": but(reference, **{window: lambda given: wider(given, 1)}),
        "a window had one key less": but(reference, **{window: lambda given: wider(given, -1)}),
        "there were no window": but(reference, **{window: least - 1}),
    }


def _rolled(sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.roll(1)


def _heads_in_turn(reference: Reference, **given: Any) -> Any:
    keys = given["k_cache"] if given.get("k_cache") is not None else given["k"]
    heads, kv_heads = given["q"].shape[-2], keys.shape[-2]
    order = torch.arange(heads).view(-1, kv_heads).T.flatten()  # those of the first kv head, then those of the second
    moved = {name: given[name][..., order, :] for name in ("q", "qv", "out") if given.get(name) is not None}
    moved |= {name: given[name][order] for name in ("sinks", "alibi_slopes") if given.get(name) is not None}
    result = reference(**given | moved)
    if result is None:
        given["out"][..., order, :] = moved["out"]
        return None
    found = torch.empty_like(result)
    found[..., order, :] = result
    return found
