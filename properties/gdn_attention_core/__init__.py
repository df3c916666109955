"""gdn_attention_core on trial: a layer of decodes and prefills, in which each kernel reads what another one rounded.

The truth is the layer in float64 throughout. Every value that a kernel hands on rounded differs from it by an ulp, which the
bounds of both parts admit: the decode's with c + 8 max(u, 2^-17), the prefill's with twice the working unit and output rounding.
Where the convolution's terms cancel, its error is no ulp of the sum: that is handed to them element by element.
"""

from kernelpair.contract.pair import Bench, Cases, Coverage, Pair, Signature, Within
from properties.gdn_attention_core.bench import BENCH
from properties.gdn_attention_core.bound import bound
from properties.gdn_attention_core.cases import (
    EDGES,
    INDICES,
    LAYOUTS,
    GdnCase,
    _written_rows,
    call_optimized,
    call_reference,
    inputs,
    small_enough,
    strategy,
    written_slots,
)
from properties.gdn_attention_core.models import models
from properties.gdn_attention_core.relations import RELATIONS
from properties.gdn_attention_core.wrong_calls import WRONG_CALLS

PAIR = Pair(
    name="gdn_attention_core",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=GdnCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
        small=small_enough,
        idle=lambda case: case.tokens == 0,
    ),
    signature=Signature(
        written={
            "core_attn_out": _written_rows,
            "conv_state": lambda case, given: written_slots(case, given, "conv_state")[:, None, None],
            "ssm_state": lambda case, given: written_slots(case, given, "ssm_state")[:, None, None, None],
        },
        indices=INDICES,
        layouts=LAYOUTS,
    ),
    truth=Within(bound, sharp=lambda case: case.dtype == "float32"),
    relations=RELATIONS,
    wrong_calls=WRONG_CALLS,
    fuzz=lambda case, inputs: inputs.keys() - {"conv_weight", "conv_width"},
    coverage=Coverage(
        edges=EDGES,
    ),
    bench=Bench(
        rows=BENCH,
    ),
)
