"""Layers of real models on trial against the `transformers` package: small random models of six families, no downloads.

The library runs each request alone. Each of its linear modules, attention layers and blocks of experts is then judged alone, fed
with the library's own activations at that layer: attention is served in chunks of the prompts and decodes of a changing batch,
over slots or pages, and compared with the library's own function evaluated in float64 on what it was given. See
docs/contracts/backend.md.
"""

from importlib.util import find_spec

from kernelpair.contract.pair import Cases, Coverage, NotFuzzed, Pair, Signature, Stepwise
from properties.scenarios.models.bound import verdict
from properties.scenarios.models.cases import ModelCase, strategy
from properties.scenarios.models.runner import serve_optimized, serve_reference
from properties.scenarios.models.sides import EDGES, inputs, picture

NEEDS = "transformers"  # its layers are the oracle
PAIR = None if find_spec(NEEDS) is None else Pair(
    name="models",
    reference=serve_reference,
    optimized=serve_optimized,
    cases=Cases(
        type=ModelCase,
        version=2,
        strategy=strategy(),
        inputs=inputs,
        small=lambda case: case.dtype == "float32" and case.decodes <= 4,
        picture=picture,
    ),
    signature=Signature(
        results=(),
        dtypes=("float32", "bfloat16"),
    ),
    truth=Stepwise(verdict, sharp=lambda case: case.dtype == "float32", remark="properties.scenarios.models.sides:remark"),
    fuzz=NotFuzzed("its arguments are a model and the schedule of its requests"),
    coverage=Coverage(
        edges=EDGES,
    ),
)  # fmt: skip
