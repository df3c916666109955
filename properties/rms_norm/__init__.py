"""rms_norm on trial: normal, with a residual, gated, in groups, in Gemma's form, over rows anywhere in memory."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within, everything
from optimized import operator
from properties.rms_norm.bench import BENCH
from properties.rms_norm.bound import TWO_SUMS, aggregate, bound
from properties.rms_norm.cases import EDGES, FUSED, LAYOUTS, MEASURES, NormCase, inputs, models, strategy
from properties.rms_norm.relations import RELATIONS
from properties.rms_norm.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.rms_norm import rms_norm

PAIR = Pair(
    name="rms_norm",
    reference=rms_norm,
    optimized=operator("rms_norm"),
    cases=Cases(
        type=NormCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        written={"residual": everything},
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Within(bound, aggregate=aggregate, sharp=lambda case: case.exact >= 0, roundings={TWO_SUMS: Within(bound)}),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("norm_"),
        measures=MEASURES,
        branches=partial(branches, "rms_norm"),
    ),
    bench=BENCH,
)
