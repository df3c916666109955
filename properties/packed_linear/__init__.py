"""packed_linear on trial: any rows against a packed weight, summed in float32 and rounded once."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.packed_linear.bench import BENCH
from properties.packed_linear.bound import bound
from properties.packed_linear.cases import (
    EDGES,
    LAYOUTS,
    LinearCase,
    call_optimized,
    call_reference,
    inputs,
    strategy,
)
from properties.packed_linear.models import MEASURES, models
from properties.packed_linear.relations import RELATIONS
from properties.packed_linear.slips import slips
from properties.packed_linear.wrong_calls import WRONG_CALLS
from properties.shared import linear_layers
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="packed_linear",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=LinearCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        small=linear_layers.small,
    ),
    signature=Signature(
        layouts=LAYOUTS,
    ),
    truth=Within(bound, sharp=lambda case: case.values != "uniform" or case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(call_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "packed_linear"),
        paths=kernel_paths("linear_"),
    ),
    bench=BENCH,
)
