"""The compiled kernels behind a Python face: `operator(name)` calls one, `use_tier(name)` chooses its instruction set."""

from optimized.operators import Operator, operator, operators
from optimized.tiers import (
    Tier,
    best_tier,
    build,
    forget_last_tier,
    last_tier,
    paths,
    selected_tier,
    set_tier,
    taken_paths,
    tiers,
    tiled_tiers,
    use_tier,
)

__all__ = [
    "Operator",
    "Tier",
    "best_tier",
    "build",
    "forget_last_tier",
    "last_tier",
    "operator",
    "operators",
    "paths",
    "selected_tier",
    "set_tier",
    "taken_paths",
    "tiers",
    "tiled_tiers",
    "use_tier",
]
