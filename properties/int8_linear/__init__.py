"""int8_linear and int8_matmul on trial: exact sums of bytes, scaled in float32 and rounded once."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.int8_linear.bench import BENCH
from properties.int8_linear.bound import bound
from properties.int8_linear.cases import (
    EDGES,
    LAYOUTS,
    Int8Case,
    call_optimized,
    call_reference,
    inputs,
    small,
    strategy,
)
from properties.int8_linear.models import MEASURES, models
from properties.int8_linear.relations import RELATIONS
from properties.int8_linear.slips import slips
from properties.int8_linear.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="int8_linear",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=Int8Case,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        small=small,
    ),
    signature=Signature(layouts=LAYOUTS),
    truth=Within(bound, sharp=lambda case: case.values == "exact" or case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"form", "layout", "N", "K", "out_dtype"},
    slips=slips(call_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "int8_linear"),
        paths=kernel_paths("int8_"),
    ),
    bench=BENCH,
)
