"""Serving with gdn_attention_core: requests arrive, are prefilled in chunks, decode, finish, and others take over their slots.

The steps are data in the case. Each step is one call, judged by its own bound against the reference from the candidate's own
pools: so every step is held to the one-step bound, however long the history. Slots of finished requests are poisoned before they
are used again. With fp32 states each request's outputs are also compared with one whole prefill of its tokens in float64.
"""

from dataclasses import replace

from kernelpair.contract.pair import Bench, Coverage, NotFuzzed, Within
from properties import gdn_attention_core as core
from properties.gdn_attention_core.bound import bound as layer_bound
from properties.scenarios.gdn_core.cases import EDGES, GdnServingCase, first_call, layer_case, strategy
from properties.scenarios.gdn_core.relations import RELATIONS

PAIR = replace(
    core.PAIR,
    name="gdn_core",
    cases=replace(
        core.PAIR.cases,
        type=GdnServingCase,
        strategy=strategy(),
        inputs=first_call,
        models=None,  # the layer's own pair has them; here the steps count
        constant=("pad_in_range",),
        small=lambda case: len(case.steps) <= 4,
        idle=lambda case: layer_case(case).tokens == 0,
    ),
    signature=replace(
        core.PAIR.signature,
        written={
            name: lambda case, given, mask=mask: mask(layer_case(case), given)  # type: ignore[misc]
            for name, mask in core.PAIR.signature.written.items()
        },
        indices=(),
        layouts={},
    ),
    truth=Within(
        lambda case, given, truth: layer_bound(layer_case(case), given, truth), sharp=lambda case: case.dtype == "float32"
    ),
    relations=RELATIONS,
    wrong_calls={},
    fuzz=NotFuzzed("its case is the steps of a run; the layer's own pair makes wrong calls"),
    coverage=Coverage(
        edges=EDGES,
    ),
    bench=Bench(),
)
