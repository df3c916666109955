"""rms_norm on trial: normal, with a residual, gated, in groups, in Gemma's form, over rows anywhere in memory."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within, everything
from optimized import operator
from properties.rms_norm.bench import BENCH
from properties.rms_norm.bound import TWO_SUMS, aggregate, bound
from properties.rms_norm.cases import EDGES, FUSED, LAYOUTS, MEASURES, Face, NormCase, inputs, models, strategy
from properties.rms_norm.relations import RELATIONS
from properties.rms_norm.slips import slips
from properties.rms_norm.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.rms_norm import rms_norm, rms_norm_in_place

PAIR = Pair(
    name="rms_norm",
    reference=Face(rms_norm, rms_norm_in_place),
    optimized=Face(operator("rms_norm"), operator("rms_norm_in_place")),
    cases=Cases(
        type=NormCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        written={"residual": everything, "x": lambda case, given: case.in_place},
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Within(bound, aggregate=aggregate, sharp=lambda case: case.exact >= 0, roundings={TWO_SUMS: Within(bound)}),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"in_place"},
    slips=slips(Face(rms_norm, rms_norm_in_place)),
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("norm_"),
        measures=MEASURES,
        branches=partial(branches, "rms_norm"),
    ),
    bench=BENCH,
)
