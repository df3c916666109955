"""gated_delta_rule_update_spec on trial: drafts, each with a state of its own, of which the next call chooses one."""

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature
from optimized import operator
from properties.gated_delta_rule_update.slips import slips
from properties.gated_delta_rule_update_spec.bench import BENCH
from properties.gated_delta_rule_update_spec.bound import TRUTH
from properties.gated_delta_rule_update_spec.cases import (
    ARGUMENT_LAYOUTS,
    EDGES,
    INDICES,
    MEASURES,
    DeltaSpecCase,
    inputs,
    models,
    refit,
    strategy,
    written,
)
from properties.gated_delta_rule_update_spec.relations import RELATIONS
from properties.gated_delta_rule_update_spec.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from reference.gated_delta_rule_update_spec import gated_delta_rule_update_spec

PAIR = Pair(
    name="gated_delta_rule_update_spec",
    reference=gated_delta_rule_update_spec,
    optimized=operator("gated_delta_rule_update_spec"),
    cases=Cases(
        type=DeltaSpecCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=refit,
    ),
    signature=Signature(
        written={"state": written},
        indices=INDICES,
        layouts=ARGUMENT_LAYOUTS,
        fused=[("q", "k")],
    ),
    truth=TRUTH,
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(gated_delta_rule_update_spec),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        paths=kernel_paths("spec_step_"),
    ),
    bench=BENCH,
)
