"""causal_conv1d_update_spec on trial: drafts, of which the next call says how many were accepted."""

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature
from properties.causal_conv1d.slips import of_drafts
from properties.causal_conv1d_update_spec.bench import BENCH
from properties.causal_conv1d_update_spec.bound import TRUTH
from properties.causal_conv1d_update_spec.cases import (
    ARGUMENT_LAYOUTS,
    EDGES,
    INDICES,
    MEASURES,
    ConvSpecCase,
    apply_optimized,
    apply_reference,
    inputs,
    models,
    result_layout,
    strategy,
    written,
)
from properties.causal_conv1d_update_spec.relations import RELATIONS
from properties.causal_conv1d_update_spec.wrong_calls import WRONG_CALLS
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths

PAIR = Pair(
    name="causal_conv1d_update_spec",
    reference=apply_reference,
    optimized=apply_optimized,
    cases=Cases(
        type=ConvSpecCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
    ),
    signature=Signature(
        written={"conv_states": written}, result_layout=result_layout, indices=INDICES, layouts=ARGUMENT_LAYOUTS
    ),
    truth=TRUTH,
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"dim", "width"},
    slips=of_drafts(apply_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        paths=kernel_paths("spec_conv_"),
    ),
    bench=BENCH,
)
