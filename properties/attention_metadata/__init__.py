"""attention_metadata on trial: the eager builder, and static buffers replayed over a sequence of batches. All integers."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Exact, Pair, Signature
from properties.attention_metadata.bench import BENCH
from properties.attention_metadata.cases import (
    EDGES,
    INDICES,
    LAYOUTS,
    MetadataCase,
    inputs,
    optimized_metadata,
    reference_metadata,
    strategy,
)
from properties.attention_metadata.models import MEASURES, models
from properties.attention_metadata.relations import RELATIONS
from properties.attention_metadata.wrong_calls import WRONG_CALLS
from properties.thresholds import branches

PAIR = Pair(
    name="attention_metadata",
    reference=reference_metadata,
    optimized=optimized_metadata,
    cases=Cases(
        type=MetadataCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        dtypes=(),
        indices=INDICES,
        layouts=LAYOUTS,
    ),
    truth=Exact(),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: () if case.static else inputs.keys() - {"steps", "static"},
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "attention_metadata"),
    ),
    bench=BENCH,
)
