"""Defaults of arguments: what a caller gets who leaves them out."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

PLAIN = (bool, int, float, str, type(None))
"""Types of defaults that are compared: the values of others, such as a dtype, differ between Python and a schema."""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Argument -> its default, of those that have a plain one; none where a function does not say what it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if type(each.default) in PLAIN}


def other_defaults(defaults: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, str]:
    """Argument -> in words, where both have a default and these differ."""
    return {
        name: f"its default is {defaults[name]!r}, that of the reference {value!r}"
        for name, value in wanted.items()
        if name in defaults and defaults[name] != value
    }
