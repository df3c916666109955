"""fp8_linear on trial: rows against codes of float8 with block scales, summed in float32 and rounded once."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.fp8_linear.bench import BENCH
from properties.fp8_linear.bound import bound
from properties.fp8_linear.cases import (
    EDGES,
    LAYOUTS,
    Fp8LinearCase,
    call_optimized,
    call_reference,
    inputs,
    strategy,
)
from properties.fp8_linear.models import MEASURES, models
from properties.fp8_linear.relations import RELATIONS
from properties.fp8_linear.slips import slips
from properties.fp8_linear.wrong_calls import WRONG_CALLS
from properties.shared import linear_layers
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="fp8_linear",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=Fp8LinearCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        small=linear_layers.small,
    ),
    signature=Signature(layouts=LAYOUTS),
    truth=Within(bound, sharp=lambda case: case.values != "uniform" or case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: {"x", "data", "scales", "bias"},
    slips=slips(call_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "fp8_linear"),
        paths=kernel_paths("fp8_"),
    ),
    bench=BENCH,
)
