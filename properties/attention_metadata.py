"""attention_metadata on trial: the eager builder, and static buffers replayed over a sequence of batches. All integers."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import optimized.attention_metadata
import reference.attention_metadata
from kernelpair.pair import Inputs, Pair
from properties._metadata_cases import (
    EXTEND_MODES,
    INDICES,
    LAYOUTS,
    PAGES,
    STATIC_MODES,
    Batch,
    MetadataCase,
    cases,
    inputs,
    static_of,
)
from properties._metadata_relations import RELATIONS
from properties._metadata_wrong import BAD, BENCH
from properties.trials.metadata_replay import Step, carry_out, fields_of, form_faults

# --- what is called ---


def _call(
    module: ModuleType, steps: tuple[Step, ...], static: Mapping[str, Any] | None, given: Inputs, checked: bool
) -> dict[str, Any]:
    if static is not None:
        return carry_out(module, steps, static, given, checked)
    meta = module.build_attention_metadata(steps[0][0], **given)
    return {**fields_of(meta), "faults": form_faults(meta) if checked else []}


def optimized_metadata(*, steps: tuple[Step, ...], static: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """Every field of the metadata by name, and `faults`: what no comparison of values sees."""
    return _call(optimized.attention_metadata, steps, static, given, checked=True)


def reference_metadata(*, steps: tuple[Step, ...], static: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """The same of the reference, taken to be without faults."""
    return _call(reference.attention_metadata, steps, static, given, checked=False)


# --- edges ---


def _replayed(case: MetadataCase) -> list[Batch]:
    return list(case.batches) if case.static else []


def _long_short_long(case: MetadataCase) -> bool:
    """Replays of one buffer whose longest request shrinks and grows again."""
    longest: dict[tuple[str, int], list[int]] = {}
    for batch in _replayed(case):
        most = max((request.total for request in batch.requests), default=0)
        longest.setdefault((batch.mode, len(batch.requests) + batch.pads), []).append(most)
    return any(a > b < c for several in longest.values() for a, b, c in zip(several, several[1:], several[2:]))


EDGES = {
    "no requests": lambda case: not case.static and not case.requests,
    "no live requests in a replay": lambda case: any(not b.requests and b.pads for b in _replayed(case)),
    "bs 0": lambda case: any(not b.requests and not b.pads for b in _replayed(case)),
    "three requests": lambda case: any(len(b.requests) == 3 for b in case.batches),
    "bs = max_bs": lambda case: case.static and case.spare == 0,
    "length 0": lambda case: any(r.total == 0 for r in case.requests),
    "a whole number of pages": lambda case: any(
        r.total > 0 and r.total % case.page_size == 0 and case.page_size > 1 for r in case.requests
    ),
    "one token more than pages": lambda case: any(
        r.total > case.page_size > 1 == r.total % case.page_size for r in case.requests
    ),
    "distinct encoder lengths, one of them 0": lambda case: any(
        b.encoder and len({r.encoder for r in b.requests}) > 1 and any(r.encoder == 0 for r in b.requests) for b in case.batches
    ),
    "encoder ends inside a page": lambda case: any(r.encoder % case.page_size for r in case.requests),
    "no new tokens": lambda case: any(b.mode in EXTEND_MODES and r.new == 0 for b in case.batches for r in b.requests),
    "all tokens new": lambda case: any(
        b.mode in EXTEND_MODES and r.new == r.total > 0 for b in case.batches for r in b.requests
    ),
    "requests share a row": lambda case: any(len({r.row for r in b.requests}) < len(b.requests) for b in case.batches),
    "row beyond max_bs": lambda case: any(r.row > static_of(case)["max_bs"] for b in _replayed(case) for r in b.requests),
    "long, short, long": _long_short_long,
    "bs grows and shrinks": lambda case: len({len(b.requests) + b.pads for b in _replayed(case)}) > 1,
    "modes of equal bs": lambda case: any(
        a.mode != b.mode and len(a.requests) + a.pads == len(b.requests) + b.pads
        for a in _replayed(case)
        for b in _replayed(case)
    ),
    "replay with and without encoder": lambda case: len({b.encoder for b in _replayed(case)}) > 1,
    "several draft steps": lambda case: case.draft_steps > 1,
    "local metadata": lambda case: case.chunk_pages > 0 and not case.static,
    "static local metadata": lambda case: case.chunk_pages > 0 and case.static,
    "highest page ids": lambda case: case.high and bool(case.requests),
    **{f"page {page}": lambda case, page=page: case.page_size == page for page in PAGES},  # type: ignore[misc]
    **{
        f"mode {mode}": lambda case, mode=mode: not case.static and case.batches[0].mode == mode  # type: ignore[misc]
        for mode in STATIC_MODES + EXTEND_MODES
    },
    **{
        f"replayed {mode}": lambda case, mode=mode: any(b.mode == mode for b in _replayed(case))  # type: ignore[misc]
        for mode in STATIC_MODES
    },
}

PAIR = Pair(
    name="attention_metadata",
    fuzz=lambda case, inputs: () if case.static else inputs.keys() - {"steps", "static"},
    version=1,
    case=MetadataCase,
    cases=cases(),
    inputs=inputs,
    reference=reference_metadata,
    optimized=optimized_metadata,
    dtypes=(),
    exact_reference=True,
    layouts=LAYOUTS,
    indices=INDICES,
    relations=RELATIONS,
    bad=BAD,
    edges=EDGES,
    bench=BENCH,
    memory="none: a plan gives the sizes of the results, which are all that is allocated",
)
