"""act_and_mul on trial: three activations from where they are flat to where they overflow, in rows anywhere in memory."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.act_and_mul.bench import BENCH
from properties.act_and_mul.bound import bound
from properties.act_and_mul.cases import EDGES, LAYOUTS, MEASURES, ActCase, inputs, models, strategy
from properties.act_and_mul.relations import RELATIONS
from properties.act_and_mul.slips import slips
from properties.act_and_mul.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.act_and_mul import act_and_mul

PAIR = Pair(
    name="act_and_mul",
    reference=act_and_mul,
    optimized=operator("act_and_mul"),
    cases=Cases(
        type=ActCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(layouts=LAYOUTS),
    truth=Within(bound),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(act_and_mul),
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("act_"),
        measures=MEASURES,
        branches=partial(branches, "act_and_mul"),
    ),
    bench=BENCH,
)
