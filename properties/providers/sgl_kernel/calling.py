"""How an operator of whatever version is called: each argument is handed over by its name, and a case that needs one that the
loaded version lacks is unsupported."""

from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported

RENAMED = {"k_cache": "k_buffer", "v_cache": "v_buffer", "v_cahce": "v_buffer", "k_cache_scale": "k_buf_scale",
           "v_cache_scale": "v_buf_scale", "is_packed": "is_vnni"}
"""Name of an argument in some versions -> in the others."""
NUMBERS_FOR_NONE = {"k_buf_scale": 1.0, "v_buf_scale": 1.0}
"""What stands for none where a version has the argument as a number (so do the callers give it)."""


def takes(name: str, argument: str) -> bool:
    """Whether this version's operator has an argument of that name. Raises Unsupported where there is no such operator."""
    return any(known.name == argument for known in _operator(name)._schema.arguments)


def call(name: str, **values: Any) -> Any:
    """Call an operator by the names of its arguments. Raises Unsupported where this version does not offer what is asked for."""
    operator = _operator(name)
    given: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        known = argument.name if argument.name in values else RENAMED.get(argument.name, argument.name)
        if known in values:
            value = values.pop(known)
            if value is None and str(argument.type) == "float":
                value = NUMBERS_FOR_NONE.get(known)
            if value is None and "Optional" not in str(argument.type):
                raise Unsupported(f"this version of {name} needs {argument.name}")
            given[argument.name] = value
        elif not argument.has_default_value():
            raise Unsupported(f"this version of {name} wants an argument {argument.name}, of which this adapter knows nothing")
    for left, value in values.items():
        if isinstance(value, Tensor) or value:
            raise Unsupported(f"this version of {name} has no argument {left}")
    return operator(**given)


def _operator(name: str) -> Any:
    try:
        return getattr(torch.ops.sgl_kernel, name).default
    except AttributeError:
        raise Unsupported(f"this version has no {name}") from None
