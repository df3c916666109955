"""Finding and loading the compiled library, once in a process."""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "release"
"""Where `make build` builds in a checkout."""


def in_checkout() -> bool:
    """Whether this package stands beside its sources; an installed one has the library in its own folder."""
    return (ROOT / "CMakeLists.txt").is_file()


def library_path() -> Path:
    """Where the library is: KERNELPAIR_LIBRARY, or in the build of the checkout, or beside this package. Raises ImportError."""
    forced = os.environ.get("KERNELPAIR_LIBRARY")
    if forced:
        return Path(forced).resolve()
    path = (BUILT if in_checkout() else Path(__file__).resolve().parent) / "_kernels.so"
    if not path.is_file():
        raise ImportError(f"the compiled library {path} is missing: {'run `make build`' if in_checkout() else 'reinstall'}")
    return path


@cache
def _load_once() -> Mapping[str, str]:
    if hasattr(torch.ops.kernelpair, "_tiers"):
        raise ImportError("another copy of the kernelpair library is loaded; a second one would end the process")
    torch.ops.load_library(str(library_path()))
    found = json.loads(torch.ops.kernelpair._operators())
    for entry in found:
        torch.library.register_fake(f"kernelpair::{entry['name']}", _fake(entry["name"], entry["fake"]))
    public = [entry for entry in found if not entry["name"].startswith("_")]
    return MappingProxyType({entry["name"]: entry["name"] + entry["schema"] for entry in public})


def load_untried() -> Mapping[str, str]:
    """As `load`, but KERNELPAIR_TIER is not looked at before a kernel runs."""
    return _load_once()


@cache
def load() -> Mapping[str, str]:
    """Load the library, register fake implementations, and return operator name -> schema. Raises ValueError if
    KERNELPAIR_TIER names a tier that is unknown or cannot run here."""
    operators = _load_once()
    raise_as_marked(torch.ops.kernelpair._selected_tier)  # once: torch never frees the string that an operator returns
    return operators


def _fake(name: str, expression: str) -> Callable[..., Any]:
    """The fake of an operator: nothing if it only mutates, else the expression over its arguments that its source states.

    torch asks it for a call in which any tensor is on the meta device. TypeError where others are not: nothing would be written.
    """
    schema = getattr(torch.ops.kernelpair, name).default._schema.arguments
    arguments = [f"{each.name}={each.default_value!r}" if each.has_default_value() else each.name for each in schema]
    result = eval(f"lambda {', '.join(arguments)}: {expression or None}", {"torch": torch})  # noqa: S307 - our own source

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((each.name for each in schema), args)) | kwargs
        places = {name: value.device.type for name, value in given.items() if isinstance(value, torch.Tensor)}
        if "meta" in places.values() and len(set(places.values())) > 1:
            astray = [name for name, device in places.items() if device == "meta"]
            raise TypeError(f"{', '.join(astray)} must be on the CPU as the other tensors are, got device meta")
        return result(*args, **kwargs)

    return fake


MARKED_ERRORS = {"TypeError": TypeError, "ValueError": ValueError, "IndexError": IndexError}
SCHEMA_ERRORS = (
    "Expected a value of type",
    "is missing value for argument",
    "Unknown keyword argument",
    "expected at most",
)


def marked_error(error: Exception) -> Exception | None:
    """The exception that a failed check of the library stands for, or None if `error` is not one."""
    message = str(error)
    kind, separator, rest = message.partition(": ")
    if separator and kind in MARKED_ERRORS:
        return MARKED_ERRORS[kind](rest)
    if any(sign in message for sign in SCHEMA_ERRORS):
        return TypeError(message.partition("\n")[0])
    return None


def raise_as_marked(call: Callable[..., Any], *args: Any) -> Any:
    """Call, raising the class that the library's message names."""
    try:
        return call(*args)
    except RuntimeError as error:
        marked = marked_error(error)
        if marked is None:
            raise
        raise marked from None
