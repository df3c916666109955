"""gdn_gating on trial: elementwise gates that must be accurate from the flat end to the saturated one, wherever they stand."""

from functools import partial

import torch

from kernelpair.contract.pair import Cases, Coverage, Pair, Signature, Within
from optimized import operator
from properties.gdn_gating.bench import BENCH
from properties.gdn_gating.bound import bound
from properties.gdn_gating.cases import ARGUMENT_LAYOUTS, EDGES, NAMES, GatingCase, inputs, simpler, strategy, sweeps
from properties.gdn_gating.models import MEASURES, models
from properties.gdn_gating.relations import RELATIONS
from properties.gdn_gating.slips import slips
from properties.gdn_gating.wrong_calls import WRONG_CALLS
from properties.shared.every_value import SWEEP_FIELDS
from properties.thresholds import branches
from reference.gdn_gating import gdn_gating

PAIR = Pair(
    name="gdn_gating",
    reference=gdn_gating,
    optimized=operator("gdn_gating"),
    cases=Cases(
        type=GatingCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        constant=SWEEP_FIELDS,
        sweeps=sweeps(),
        simpler=simpler,
    ),
    signature=Signature(
        results=NAMES,
        result_dtype=lambda case, name: torch.float32 if name == "g" else getattr(torch, case.dtype),
        layouts=ARGUMENT_LAYOUTS,
    ),
    truth=Within(bound),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    slips=slips(gdn_gating),
    coverage=Coverage(
        edges=EDGES,
        measures=MEASURES,
        branches=partial(branches, "gdn_gating"),
    ),
    bench=BENCH,
)
