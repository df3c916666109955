"""mla_decode on trial: one query token per request over paged latents, split in any way, with exactly the workspace asked for."""

from functools import partial

from kernelpair.call.layout import FAR_PARAMETERS
from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.mla_decode.bench import BENCH
from properties.mla_decode.bound import bound, ours
from properties.mla_decode.cases import EDGES, EMULATED_WORK, INDICES, LAYOUTS, MlaDecodeCase, inputs, strategy, work
from properties.mla_decode.models import MEASURES, models
from properties.mla_decode.relations import RELATIONS
from properties.mla_decode.slips import slips
from properties.mla_decode.wrong_calls import WRONG_CALLS
from properties.shared.attention_values import sharp
from properties.shared.crowds import few_if_wider
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.mla_decode import mla_decode

PAIR = Pair(
    name="mla_decode",
    reference=mla_decode,
    optimized=operator("mla_decode"),
    cases=Cases(
        type=MlaDecodeCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        refit=few_if_wider,
        small=lambda case: work(case) <= EMULATED_WORK,
    ),
    signature=Signature(
        scratch=("workspace",),
        indices=INDICES,
        layouts=LAYOUTS | {"seq_lens": FAR_PARAMETERS},  # one length may stand for all (`alike`)
    ),
    truth=Within(bound, ours=ours, sharp=sharp),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(mla_decode),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "mla_decode"),
        paths=kernel_paths("decode_", but=["decode_head_parts"]),
    ),
    bench=BENCH,
)
