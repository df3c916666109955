"""int4_linear: what the drawn cases must contain."""

from collections.abc import Callable
from typing import Any

from properties.int4_linear.cases import ACTIVATIONS, DTYPES, GROUPS, VALUES
from properties.shared import linear_layers

EDGES: dict[str, Callable[[Any], bool]] = {
    **linear_layers.EDGES,
    "groups that end within a byte": lambda case: case.group in (1, 5) and case.K > 5,
    "groups that end within a block": lambda case: case.group == 48 and case.K > 48,
    "short last group": lambda case: case.group > 1 and case.group < case.K and case.K % case.group > 0,
    "no zero points": lambda case: not case.points,
    "zero points of four bits": lambda case: case.points == "nibble",
    "misaligned weight": lambda case: case.layout.get("data") == "offset",
    "rows in int8 that are strided": lambda case: case.activation == "int8" and case.layout.get("x") == "strided",
    **{f"group {size}": lambda case, size=size: case.group == size for size in GROUPS},  # type: ignore[misc]
    **{f"values {kind}": lambda case, kind=kind: case.values == kind for kind in VALUES},  # type: ignore[misc]
    **{f"activation {kind}": lambda case, kind=kind: case.activation == kind for kind in ACTIVATIONS},  # type: ignore[misc]
    **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
}  # fmt: skip
