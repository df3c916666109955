"""extend_attention on trial: ragged requests that extend a cached prefix, alone, behind an encoder, or across one."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.extend_attention.bench import BENCH
from properties.extend_attention.bound import bound, ours
from properties.extend_attention.cases import (
    EDGES,
    EMULATED_WORK,
    FUSED,
    INDICES,
    LAYOUTS,
    ExtendAttentionCase,
    inputs,
    padded_work,
    picture,
    strategy,
    written,
)
from properties.extend_attention.models import MEASURES, models
from properties.extend_attention.relations import RELATIONS
from properties.extend_attention.slips import slips
from properties.extend_attention.wrong_calls import WRONG_CALLS
from properties.shared.attention_values import sharp
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.extend_attention import extend_attention

PAIR = Pair(
    name="extend_attention",
    reference=extend_attention,
    optimized=operator("extend_attention"),
    cases=Cases(
        type=ExtendAttentionCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=lambda case: padded_work(case) <= EMULATED_WORK,
        picture=picture,
    ),
    signature=Signature(
        written={"out": written},
        indices=INDICES,
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Within(bound, ours=ours, sharp=sharp),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(extend_attention),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "extend_attention"),
        paths=kernel_paths("prefill_"),
    ),
    bench=BENCH,
)
