"""quantize_rows_int8 on trial: rows of any values, whose bits in int8 the contract fixes."""

from functools import partial

import torch

from kernelpair.contract.pair import Cases, Coverage, Exact, Pair, Signature
from properties.quantize_rows_int8.bench import BENCH
from properties.quantize_rows_int8.cases import (
    EDGES,
    LAYOUTS,
    MEASURES,
    RESULTS,
    QuantizeCase,
    call_optimized,
    call_reference,
    inputs,
    models,
    strategy,
)
from properties.quantize_rows_int8.relations import RELATIONS
from properties.quantize_rows_int8.slips import QUANTIZERS
from properties.shared.wrong_calls import cast, changed, one_rank_more, replaced, sparse
from properties.thresholds import branches

PAIR = Pair(
    name="quantize_rows_int8",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=QuantizeCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        results=RESULTS,
        layouts=LAYOUTS,
    ),
    truth=Exact(),
    relations=RELATIONS,
    wrong_calls={
        "x_rank": one_rank_more("x"),
        "x_vector": changed("x", lambda x: x.reshape(-1), ValueError),
        "x_integers": cast("x", torch.int32),
        "x_strides": sparse("x"),
        "x_none": replaced("x", None, TypeError),
        "symmetric_word": replaced("symmetric", "yes", TypeError),
    },
    slips=QUANTIZERS,
    coverage=Coverage(edges=EDGES, measures=MEASURES, branches=partial(branches, "quantize_rows_int8")),
    bench=BENCH,
)
