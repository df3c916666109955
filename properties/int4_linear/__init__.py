"""int4_linear on trial: rows, as they are or in int8, against codes of four bits with scales and zero points of groups."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.int4_linear.bench import BENCH
from properties.int4_linear.bound import bound
from properties.int4_linear.cases import LAYOUTS, Int4Case, call_optimized, call_reference, inputs, strategy
from properties.int4_linear.edges import EDGES
from properties.int4_linear.models import MEASURES, models
from properties.int4_linear.relations import RELATIONS
from properties.int4_linear.slips import slips
from properties.int4_linear.wrong_calls import WRONG_CALLS
from properties.shared import linear_layers
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="int4_linear",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(type=Int4Case, version=1, strategy=strategy(), inputs=inputs, models=models, small=linear_layers.small),
    signature=Signature(layouts=LAYOUTS),
    truth=Within(bound, sharp=lambda case: case.values == "integers" or case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: {"x", "data", "scales", "zeros", "bias"},
    slips=slips(call_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "int4_linear"),
        paths=kernel_paths("int4_"),
    ),
    bench=BENCH,
)
