"""Linear modules on trial: weights of any rank and dtype through the dispatch, layers with and without a loaded bias, and the
workspace that layers share. See docs/contracts/backend.md."""

from kernelpair.contract.pair import Cases, Coverage, NotFuzzed, Pair, Signature, Within
from properties.scenarios.linear_modules.bound import bound
from properties.scenarios.linear_modules.cases import (
    EDGES,
    LAYOUTS,
    LinearModulesCase,
    inputs,
    run_optimized,
    run_reference,
    strategy,
)

PAIR = Pair(
    name="linear_modules",
    reference=run_reference,
    optimized=run_optimized,
    cases=Cases(
        type=LinearModulesCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
    ),
    signature=Signature(
        results=(),
        layouts=LAYOUTS,
    ),
    truth=Within(bound, sharp=lambda case: case.dtype == "float32"),
    fuzz=NotFuzzed("its arguments are the layers of a module and the steps that are tried on them"),
    coverage=Coverage(
        edges=EDGES,
    ),
)
