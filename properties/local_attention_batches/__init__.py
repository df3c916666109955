"""local_attention_batches on trial: integers that are rearranged, so everything compares bit for bit."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Exact, Pair, Signature
from optimized.local_attention_batches import local_attention_batches as optimized
from properties.local_attention_batches.bench import BENCH
from properties.local_attention_batches.cases import EDGES, INDICES, LAYOUTS, RESULTS, LocalCase, inputs, strategy
from properties.local_attention_batches.models import MEASURES, models
from properties.local_attention_batches.relations import RELATIONS
from properties.local_attention_batches.wrong_calls import WRONG_CALLS
from properties.thresholds import branches
from reference.local_attention_batches import local_attention_batches

PAIR = Pair(
    name="local_attention_batches",
    reference=local_attention_batches,
    optimized=optimized,
    cases=Cases(
        type=LocalCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        results=RESULTS,
        dtypes=(),
        indices=INDICES,
        layouts=LAYOUTS,
    ),
    truth=Exact(),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "local_attention_batches"),
    ),
    bench=BENCH,
)
