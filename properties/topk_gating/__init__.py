"""topk_gating on trial: choices that are judged and not compared, ties by the lower id, weights at the chosen experts."""

from functools import partial

import torch

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature
from optimized import operator
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from properties.topk_gating.bench import BENCH
from properties.topk_gating.bound import TRUTH
from properties.topk_gating.cases import EDGES, LAYOUTS, MEASURES, NAMES, TopkCase, inputs, models, strategy
from properties.topk_gating.relations import RELATIONS
from properties.topk_gating.slips import slips
from properties.topk_gating.wrong_calls import WRONG_CALLS
from reference.topk_gating import topk_gating

PAIR = Pair(
    name="topk_gating",
    reference=topk_gating,
    optimized=operator("topk_gating"),
    cases=Cases(
        type=TopkCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        results=NAMES,
        result_dtype=lambda case, name: torch.float32 if name == "weights" else torch.int32,
        layouts=LAYOUTS,
    ),
    truth=TRUTH,
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(topk_gating),
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("topk_"),
        measures=MEASURES,
        branches=partial(branches, "topk_gating"),
    ),
    bench=BENCH,
)
