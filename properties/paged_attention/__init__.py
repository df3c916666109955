"""paged_attention on trial: ragged queries over pages, causal or windowed, float8 caches, absorbed MLA."""

from functools import partial

from kernelpair.call.layout import FAR_PARAMETERS
from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized.paged_attention import paged_attention as optimized_paged_attention
from properties.paged_attention.bench import BENCH
from properties.paged_attention.bound import bound, ours
from properties.paged_attention.cases import (
    EMULATED_WORK,
    FUSED,
    INDICES,
    LAYOUTS,
    PagedAttentionCase,
    inputs,
    padded_work,
    picture,
    strategy,
)
from properties.paged_attention.edges import EDGES
from properties.paged_attention.models import MEASURES, models
from properties.paged_attention.relations import RELATIONS
from properties.paged_attention.slips import slips
from properties.paged_attention.wrong_calls import WRONG_CALLS
from properties.shared.attention_values import sharp
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.paged_attention import paged_attention

PAIR = Pair(
    name="paged_attention",
    reference=paged_attention,
    optimized=optimized_paged_attention,
    cases=Cases(
        type=PagedAttentionCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=lambda case: padded_work(case) <= EMULATED_WORK,
        picture=picture,
    ),
    signature=Signature(
        indices=INDICES,
        layouts=LAYOUTS | {"cache_seqlens": FAR_PARAMETERS},  # one length may stand for all (`alike`)
        fused=FUSED,
    ),
    truth=Within(bound, ours=ours, sharp=sharp),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(paged_attention),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "paged_attention"),
        paths=kernel_paths("decode_", "prefill_", "paged_"),
    ),
    bench=BENCH,
)
