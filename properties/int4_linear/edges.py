"""int4_linear: what the drawn cases must contain."""

from collections.abc import Callable
from math import prod
from typing import Any

from properties.int4_linear.cases import ACTIVATIONS, DTYPES, GROUPS, VALUES

EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: 0 in case.outer,
    "x of one dimension": lambda case: case.outer == (),
    "x of four dimensions": lambda case: len(case.outer) == 3,
    "x expanded": lambda case: case.layout.get("x") == "expanded" and case.outer[:1] > (1,),
    "x transposed": lambda case: case.layout.get("x") == "transposed" and case.K > 1 and prod(case.outer) > 1,
    "partial panel": lambda case: case.N % 32 > 0,
    "odd K": lambda case: case.K % 2 == 1,
    "groups that end within a byte": lambda case: case.group in (1, 5) and case.K > 5,
    "groups that end within a block": lambda case: case.group == 48 and case.K > 48,
    "short last group": lambda case: case.group > 1 and case.group < case.K and case.K % case.group > 0,
    "no zero points": lambda case: not case.points,
    "zero points of four bits": lambda case: case.points == "nibble",
    "long K": lambda case: case.K > 2048,
    "more than 1024 rows": lambda case: prod(case.outer) > 1024,
    "misaligned weight": lambda case: case.layout.get("data") == "offset",
    "rows in int8 that are strided": lambda case: case.activation == "int8" and case.layout.get("x") == "strided",
    **{f"group {size}": lambda case, size=size: case.group == size for size in GROUPS},  # type: ignore[misc]
    **{f"values {kind}": lambda case, kind=kind: case.values == kind for kind in VALUES},  # type: ignore[misc]
    **{f"activation {kind}": lambda case, kind=kind: case.activation == kind for kind in ACTIVATIONS},  # type: ignore[misc]
    **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
}  # fmt: skip
