"""chunk_gated_delta_rule on trial, in its functional form and on a pool of states.

Each output element has a bound (`delta_rule_bound`), and so has each column of the state as a 2-norm. With 16-bit inputs that
bound is loose, for it must hold for the worst alignment of every rounding. Over a whole sequence and head roundings average
out, which a second check uses (`aggregate`): errors of independent roundings add in squares. The sharp cases, fp32 inputs and
beta = 0, leave no room for a rounding of the carried state at all.
"""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature
from properties.chunk_gated_delta_rule.bench import BENCH
from properties.chunk_gated_delta_rule.bound import TRUTH
from properties.chunk_gated_delta_rule.cases import (
    FUSED,
    INDICES,
    LAYOUTS,
    ChunkCase,
    call_optimized,
    inputs,
    named_reference,
    result_dtype,
    small_enough,
    strategy,
    written,
)
from properties.chunk_gated_delta_rule.edges import EDGES
from properties.chunk_gated_delta_rule.models import MEASURES, models
from properties.chunk_gated_delta_rule.relations import RELATIONS
from properties.chunk_gated_delta_rule.slips import slips
from properties.chunk_gated_delta_rule.wrong_calls import WRONG_CALLS
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches

PAIR = Pair(
    name="chunk_gated_delta_rule",
    reference=named_reference,
    optimized=call_optimized,
    cases=Cases(
        type=ChunkCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=small_enough,
    ),
    signature=Signature(
        written={"state": written},
        results=("out", "final_state"),
        result_dtype=result_dtype,
        indices=INDICES,
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=TRUTH,
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(named_reference),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "chunk_gated_delta_rule"),
        paths=kernel_paths("chunk_"),
    ),
    bench=BENCH,
)
