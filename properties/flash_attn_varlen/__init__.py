"""flash_attn_varlen on trial: rows and keys of any lengths, both alignments, causal or not request by request."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.flash_attn_varlen.bench import BENCH
from properties.flash_attn_varlen.bound import bound, ours
from properties.flash_attn_varlen.cases import (
    EDGES,
    EMULATED_WORK,
    FUSED,
    INDICES,
    LAYOUTS,
    VarlenCase,
    inputs,
    padded_work,
    strategy,
)
from properties.flash_attn_varlen.models import MEASURES, models
from properties.flash_attn_varlen.relations import RELATIONS
from properties.flash_attn_varlen.slips import slips
from properties.flash_attn_varlen.wrong_calls import WRONG_CALLS
from properties.shared.attention_values import sharp
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.flash_attn_varlen import flash_attn_varlen

PAIR = Pair(
    name="flash_attn_varlen",
    reference=flash_attn_varlen,
    optimized=operator("flash_attn_varlen"),
    cases=Cases(
        type=VarlenCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=lambda case: padded_work(case) <= EMULATED_WORK,
    ),
    signature=Signature(indices=INDICES, layouts=LAYOUTS, fused=FUSED),
    truth=Within(bound, ours=ours, sharp=sharp),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(flash_attn_varlen),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "flash_attn_varlen"),
        paths=kernel_paths("prefill_"),
    ),
    bench=BENCH,
)
