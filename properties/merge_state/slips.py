"""Usual slips where two attentions are merged."""

import math
from functools import partial
from typing import Any

from torch import Tensor

from properties.shared.slips import Reference


def _base_two(reference: Reference, **given: Any) -> tuple[Tensor, Tensor]:
    natural = {name: given[name] * math.log(2) for name in ("lse_a", "lse_b")}
    out, lse = reference(**given | natural)
    return out, lse / math.log(2)


def slips(reference: Reference) -> dict[str, Reference]:
    return {"logarithms were those to base 2": partial(_base_two, reference)}
