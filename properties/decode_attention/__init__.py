"""decode_attention on trial: one query token per request over a slot cache, alone, in a shared buffer, or across an encoder."""

from functools import partial

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within, everything
from optimized import operator
from properties.decode_attention.bench import BENCH
from properties.decode_attention.bound import bound, ours
from properties.decode_attention.cases import (
    EMULATED_WORK,
    FUSED,
    INDICES,
    LAYOUTS,
    DecodeAttentionCase,
    inputs,
    picture,
    strategy,
    work,
    written,
    written_values,
)
from properties.decode_attention.edges import EDGES
from properties.decode_attention.models import MEASURES, models
from properties.decode_attention.relations import RELATIONS
from properties.decode_attention.slips import slips
from properties.decode_attention.wrong_calls import WRONG_CALLS
from properties.shared.attention_values import sharp
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.decode_attention import decode_attention

PAIR = Pair(
    name="decode_attention",
    reference=decode_attention,
    optimized=operator("decode_attention"),
    cases=Cases(
        type=DecodeAttentionCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=lambda case: work(case) <= EMULATED_WORK,
        picture=picture,
    ),
    signature=Signature(
        written={"k_cache": written, "v_cache": written_values, "out": everything},
        scratch=("attn_logits",),
        indices=INDICES,
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Within(bound, ours=ours, sharp=sharp),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(decode_attention),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "decode_attention"),
        paths=kernel_paths("decode_"),
    ),
    bench=BENCH,
)
