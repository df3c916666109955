"""Attention backends by name, and what each of them can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; `mla_only`: it serves MLA layers and no others."""

    prefill: bool
    decode: bool
    mla: bool = False
    mla_prefill: bool = False
    mla_only: bool = False
    cross: bool = False
    chunked_prefill: bool = False
    local: bool = False
    float8: bool = False
    speculative: bool = False
    paged: bool = False
    recurrent: bool = False


BACKENDS: Mapping[str, Capabilities] = MappingProxyType({
    "slot": Capabilities(
        prefill=True, decode=True, mla=True, mla_prefill=True, cross=True, chunked_prefill=True, speculative=True
    ),
    "paged": Capabilities(
        prefill=True, decode=True, mla=True, mla_prefill=True, cross=True, chunked_prefill=True, local=True, float8=True,
        speculative=True, paged=True,
    ),
    "mla": Capabilities(prefill=False, decode=True, mla=True, mla_only=True, paged=True),
    "gdn": Capabilities(prefill=True, decode=True, chunked_prefill=True, speculative=True, recurrent=True),
})


def backend_named(name: str) -> Capabilities:
    """What the backend called `name` can do; ValueError lists those that exist."""
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def backends_for(*needs: str) -> list[str]:
    """The backends that can do all of `needs`, fields of Capabilities; ValueError for a need that no backend knows of."""
    for need in needs:
        if need not in Capabilities.__dataclass_fields__:
            raise ValueError(f"unknown capability {need!r}; known are {', '.join(Capabilities.__dataclass_fields__)}")
    return [name for name, can in BACKENDS.items() if all(getattr(can, need) for need in needs)]
