"""store_cache on trial: KV rows of any bits into slots of a cache. It moves data, so everything compares bit for bit."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Exact, Pair, Signature
from optimized import operator
from properties.shared.every_value import SWEEP_FIELDS
from properties.shared.strategies import kernel_paths
from properties.store_cache.bench import BENCH
from properties.store_cache.cases import DTYPES, EDGES, FUSED, LAYOUTS, StoreCacheCase, inputs, simpler, strategy, sweeps, written
from properties.store_cache.models import MEASURES, models
from properties.store_cache.relations import RELATIONS
from properties.store_cache.slips import slips
from properties.store_cache.wrong_calls import WRONG_CALLS
from properties.thresholds import branches
from reference.store_cache import store_cache

PAIR = Pair(
    name="store_cache",
    reference=store_cache,
    optimized=operator("store_cache"),
    cases=Cases(
        type=StoreCacheCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        constant=SWEEP_FIELDS,
        sweeps=sweeps(),
        simpler=simpler,
    ),
    signature=Signature(
        written={"k_cache": written, "v_cache": written},
        dtypes=DTYPES,
        indices=["indices"],
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Exact(),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(store_cache),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "store_cache"),
        paths=kernel_paths("store_"),
    ),
    bench=BENCH,
)
