"""States of the chunked rule that grow within a chunk by more than float32 holds, and decay again before its end."""

import pytest

import optimized
from kernelpair.trial.truth import widen
from properties.chunk_gated_delta_rule.cases import ChunkCase, call_optimized, inputs, named_reference

CASE = ChunkCase(lengths=(40,), K=32, V=32, dtype="bfloat16", state="none", l2norm=False, size=1e-3, seed=3)


@pytest.mark.parametrize("tier", [tier.name for tier in optimized.tiers() if tier.runnable])
def test_growth_beyond_float32_leaves_numbers(tier: str) -> None:
    given = inputs(CASE)
    given["g"][:16], given["g"][16] = 5.8, -200.0
    truth = named_reference(**{name: widen(value) for name, value in given.items()})
    with optimized.use_tier(tier):
        got = call_optimized(**given)
    assert isinstance(truth, dict) and isinstance(got, dict)
    for name, expected in truth.items():
        assert (got[name].double() - expected).norm() < 0.01 * expected.norm()
