"""causal_conv1d on trial: packing, whole sequences (batched or end to end), and single tokens, as one pair of five forms."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from properties.causal_conv1d.bench import BENCH
from properties.causal_conv1d.bound import bound
from properties.causal_conv1d.cases import (
    ARGUMENT_LAYOUTS,
    EDGES,
    INDICES,
    ConvCase,
    apply_optimized,
    apply_reference,
    inputs,
    result_layout,
    strategy,
    written,
)
from properties.causal_conv1d.models import MEASURES, models
from properties.causal_conv1d.relations import RELATIONS
from properties.causal_conv1d.slips import slips
from properties.causal_conv1d.wrong_calls import WRONG_CALLS
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="causal_conv1d",
    reference=apply_reference,
    optimized=apply_optimized,
    cases=Cases(
        type=ConvCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
    ),
    signature=Signature(
        written={"conv_states": written},
        result_layout=result_layout,
        indices=INDICES,
        layouts=ARGUMENT_LAYOUTS,
    ),
    truth=Within(bound, sharp=lambda case: case.exact or case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"form", "dim", "width"},
    slips=slips(apply_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "causal_conv1d"),
        paths=kernel_paths("conv_"),
    ),
    bench=BENCH,
)
