"""A serving engine in miniature on trial: requests arrive, are prefilled in chunks, decode, draft, finish, and others take their
place. See docs/contracts/backend.md."""

from kernelpair.contract.pair import Cases, Coverage, NotFuzzed, Pair, Signature, Stepwise
from properties.scenarios.serving.cases import ServingCase
from properties.scenarios.serving.judge import verdict
from properties.scenarios.serving.lives import FUSED, LAYOUTS, simpler, strategy
from properties.scenarios.serving.plan import plan
from properties.scenarios.serving.sides import EDGES, EMULATED_STEPS, inputs, serve_optimized, serve_reference

LOADS = "properties.scenarios.serving.sides:load"
PAIR = Pair(
    name="serving",
    reference=serve_reference,
    optimized=serve_optimized,
    cases=Cases(
        type=ServingCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        small=lambda case: len(case.steps) <= EMULATED_STEPS and case.stretch == 1,
        idle=lambda case: not any(planned.calls for planned in plan(case)),
        simpler=simpler,
        sizes={
            "requests": (3, lambda case: sum(planned.arrives is not None for planned in plan(case))),
            "steps": (8, lambda case: len(case.steps)),
        },
    ),
    signature=Signature(
        written={name: lambda case, given: True for name in ("table", *LAYOUTS)},
        scratch=("table", "tables", *(name for pool in LAYOUTS for name in (pool, f"after_{pool}"))),
        results=(),
        layouts=LAYOUTS,
        fused=FUSED,
    ),
    truth=Stepwise(verdict, sharp=lambda case: case.dtype == "float32"),
    fuzz=NotFuzzed("its arguments are the steps of a server; wrong steps are among them"),
    coverage=Coverage(
        edges=EDGES,
    ),
)
