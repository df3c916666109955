"""fused_moe and shared_expert on trial: gate and up, silu, down, and a weighted sum, by the experts that tokens ask for."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.fused_moe.bench import BENCH
from properties.fused_moe.bound import ROUNDED_H, bound, rounded_bound
from properties.fused_moe.calls import call_optimized, call_reference
from properties.fused_moe.cases import LAYOUTS, MoeCase, inputs, small, strategy
from properties.fused_moe.edges import EDGES, MEASURES
from properties.fused_moe.models import models
from properties.fused_moe.relations import RELATIONS
from properties.fused_moe.slips import slips
from properties.fused_moe.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="fused_moe",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=MoeCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        small=small,
    ),
    signature=Signature(layouts=LAYOUTS, indices=("topk_ids",)),
    truth=Within(
        bound, sharp=lambda case: case.values != "uniform" or case.dtype == "float32",
        roundings={ROUNDED_H: Within(rounded_bound)},
    ),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"form", "dtype", "layout", "D", "I"},
    slips=slips(call_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "fused_moe"),
        paths=kernel_paths("moe_"),
    ),
    bench=BENCH,
)
