"""merge_state on trial: partial attentions of any sizes, empty ones among them, in any order."""

from functools import partial

import torch

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.merge_state.bench import BENCH
from properties.merge_state.bound import bound
from properties.merge_state.cases import EDGES, LAYOUTS, MEASURES, NAMES, MergeCase, inputs, models, strategy
from properties.merge_state.relations import RELATIONS
from properties.merge_state.slips import slips
from properties.merge_state.wrong_calls import WRONG_CALLS
from properties.shared.strategies import kernel_paths
from properties.thresholds import branches
from reference.merge_state import merge_state

PAIR = Pair(
    name="merge_state",
    reference=merge_state,
    optimized=operator("merge_state"),
    cases=Cases(
        type=MergeCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        results=NAMES,
        result_dtype=lambda case, name: torch.float32 if name == "lse" else getattr(torch, case.dtype),
        layouts=LAYOUTS,
    ),
    truth=Within(bound),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(merge_state),
    coverage=Coverage(
        edges=EDGES,
        paths=kernel_paths("merge_"),
        measures=MEASURES,
        branches=partial(branches, "merge_state"),
    ),
    bench=BENCH,
)
