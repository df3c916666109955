"""The calls that layers must refuse, of each side by itself: what both share could be wrong in both."""

from typing import Any

import pytest

import optimized.backends.experts
import optimized.backends.linear
import optimized.fused_moe
import reference.backends.experts
import reference.backends.linear
import reference.fused_moe
from properties.scenarios.linear_modules.wrong import answered_otherwise


@pytest.mark.parametrize(
    "side",
    [
        (reference.backends.linear, reference.backends.experts, reference.fused_moe),
        (optimized.backends.linear, optimized.backends.experts, optimized.fused_moe),
    ],
    ids=["reference", "optimized"],
)
def test_each_is_answered_with_its_error(side: tuple[Any, Any, Any]) -> None:
    assert answered_otherwise(*side) == []
