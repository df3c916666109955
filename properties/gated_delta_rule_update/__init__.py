"""gated_delta_rule_update on trial: one recurrent step on a pool of states, two layouts, two state dtypes."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature
from optimized import operator
from properties.gated_delta_rule_update.bench import BENCH
from properties.gated_delta_rule_update.bound import TRUTH
from properties.gated_delta_rule_update.cases import ARGUMENT_LAYOUTS, EDGES, DeltaCase, inputs, strategy, written
from properties.gated_delta_rule_update.models import MEASURES, models
from properties.gated_delta_rule_update.relations import RELATIONS
from properties.gated_delta_rule_update.slips import slips
from properties.gated_delta_rule_update.wrong_calls import WRONG_CALLS
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.gated_delta_rule_update import gated_delta_rule_update

PAIR = Pair(
    name="gated_delta_rule_update",
    reference=gated_delta_rule_update,
    optimized=operator("gated_delta_rule_update"),
    cases=Cases(
        type=DeltaCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
    ),
    signature=Signature(
        written={"state": written},
        indices=["state_indices"],
        layouts=ARGUMENT_LAYOUTS,
        fused=[("q", "k")],
    ),
    truth=TRUTH,
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(gated_delta_rule_update),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "gated_delta_rule_update"),
        paths=kernel_paths("step_"),
    ),
    bench=BENCH,
)
