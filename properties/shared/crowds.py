"""Cases of very many requests, keys, slots or tokens, which are small as they are drawn: a provider's limits may widen them."""

from dataclasses import replace
from math import prod
from typing import Any

from properties.shared.pads import MANY_SLOTS

MANY_REQUESTS, MANY_KEYS = 512, 2**16
FEW_REQUESTS, FEW_KEYS = 17, 300
WIDER = 4  # times the elements: so much more memory very many may take
SIZES = (
    "heads", "kv_heads", "width", "width_v", "latent", "rope", "key_heads", "group", "K", "V", "key_size", "value_size", "dim",
    "page",
)  # fmt: skip
REQUESTS = ("extends", "prefixes", "rows", "lens", "encoder", "lengths", "accepted")
NAMED = ("pads", "cold")  # requests by their numbers


def few_if_wider(drawn: Any, fitted: Any) -> Any:
    """`Cases.refit`: where the limits of a provider have made heads, states or pages larger, a crowd becomes a few requests,
    requests of more keys than 16 bits count get a few hundred, and slots and tokens of nobody go: they would take gigabytes."""
    if _elements(fitted) <= WIDER * _elements(drawn):
        return fitted
    fewer: dict[str, Any] = {}
    for name in REQUESTS:
        entries = getattr(fitted, name, None) or ()
        if len(entries) > MANY_REQUESTS or max(entries, default=0) > MANY_KEYS:
            fewer[name] = tuple(min(entry, FEW_KEYS) for entry in entries[:FEW_REQUESTS])
    if fewer:
        fewer |= {name: tuple(request for request in getattr(fitted, name) if request < FEW_REQUESTS)
                  for name in NAMED if hasattr(fitted, name)}
    for name in ("spare", "before"):
        if (many := getattr(fitted, name, 0)) >= MANY_SLOTS:
            fewer[name] = max(many - MANY_SLOTS, 1)  # a pad may be a slot of nobody
    return replace(fitted, **fewer)


def _elements(case: Any) -> int:
    return prod(max(int(getattr(case, name, 1)), 1) for name in SIZES)
