"""rotary_embedding on trial: both pairings, parts of heads, positions of one axis and of three, in place."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.rotary_embedding.bench import BENCH
from properties.rotary_embedding.bound import bound
from properties.rotary_embedding.cases import (
    EDGES,
    FUSED,
    INDICES,
    LAYOUTS,
    MEASURES,
    RotaryCase,
    inputs,
    models,
    rotated,
    strategy,
)
from properties.rotary_embedding.relations import RELATIONS
from properties.rotary_embedding.slips import slips
from properties.rotary_embedding.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.rotary_embedding import rotary_embedding

PAIR = Pair(
    name="rotary_embedding",
    reference=rotary_embedding,
    optimized=operator("rotary_embedding"),
    cases=Cases(
        type=RotaryCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        written={"query": rotated, "key": rotated},
        indices=INDICES,
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Within(bound, sharp=lambda case: case.exact),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(rotary_embedding),
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("rotate_"),
        measures=MEASURES,
        branches=partial(branches, "rotary_embedding"),
    ),
    bench=BENCH,
)
