"""One wrong call for each error in the contract of mla_decode."""

from collections.abc import Callable
from typing import Any

import torch

from kernelpair.contract.pair import Alias, Inputs, WrongCall
from optimized.mla_decode import mla_decode_workspace_size
from properties.shared.wrong_calls import (
    INF,
    NAN,
    all_integers,
    any_of,
    beyond_32_bits,
    cast,
    entry,
    grown,
    laid_over,
    no_index,
    one_rank_more,
    other_dtype,
    replaced,
    replaced_each,
    sparse,
)

FLOATS = ("q_nope", "q_pe", "kv_cache")


def _page(value: int) -> WrongCall:
    """A used page: the first or the last of a request."""

    def pick(case: Any, given: Inputs) -> tuple[tuple[int, int], int] | None:
        used = [(b, page) for b, n in enumerate(case.lens) if n for page in (0, (n - 1) // case.page)]
        return (any_of(case, used), value if value < 0 else len(given["kv_cache"]) + value) if used else None

    return entry("page_table", pick, IndexError)


def _narrow_table(case: Any, given: Inputs) -> Inputs | None:
    used = -(-max(case.lens, default=0) // case.page)
    return given | {"page_table": given["page_table"][:, : used - 1]} if used else None


def _length(value: int, error: type[Exception]) -> WrongCall:
    """The length of any request: `value`, behind what the table holds unless it is negative."""

    def pick(case: Any, given: Inputs) -> tuple[int, int]:
        room = given["page_table"].shape[1] * case.page
        return any_of(case, range(len(case.lens))), value if value < 0 else room + value

    return entry("seq_lens", pick, error, "seq_lens", "page_table")


def _pages_of_eight(case: Any, given: Inputs) -> Inputs:
    pages, _, width = given["kv_cache"].shape
    return given | {"kv_cache": given["kv_cache"].new_zeros(pages, 8, width)}


def _short_workspace(case: Any, given: Inputs) -> Inputs | None:
    needed = mla_decode_workspace_size(
        max(case.lens, default=0), len(case.lens), case.heads, case.page, case.latent, case.splits)
    return given | {"workspace": given["workspace"][: needed - 1]} if needed else None


def _strided_workspace(case: Any, given: Inputs) -> Inputs | None:
    return None if case.layout or len(given["workspace"]) < 2 else given | {
        "workspace": given["workspace"].repeat_interleave(2)[::2]}


def _overlap(case: Any, given: Inputs) -> Inputs | None:
    nbytes = len(given["workspace"])
    if not 0 < nbytes <= given["kv_cache"].numel() * given["kv_cache"].element_size():
        return None
    return given | {"workspace": Alias("kv_cache", lambda cache: cache.view(torch.uint8).flatten()[:nbytes])} \
        if "kv_cache" not in case.layout else None


def _not_placed(name: str) -> Callable[[Any], bool]:
    """A layout would lay it out anew."""
    return lambda case: name not in case.layout


WRONG_CALLS = {
    **{f"{name}_dtype": other_dtype(name, *FLOATS) for name in FLOATS},
    **{f"{name}_sparse": sparse(name, when=_not_placed(name)) for name in FLOATS},
    "q_nope_integer": cast("q_nope", torch.int32),
    "all_integers": all_integers(*FLOATS),
    **{f"q_pe_{dim}": grown("q_pe", dim, "q_nope", "kv_cache") for dim in range(3)},
    "q_nope_width": grown("q_nope", 2, "kv_cache"),
    "kv_cache_width": grown("kv_cache", 2),
    "kv_cache_rank": one_rank_more("kv_cache"),
    "q_nope_rank": one_rank_more("q_nope"),
    "page_size": WrongCall(_pages_of_eight, ValueError, "kv_cache"),
    "seq_lens_length": grown("seq_lens", 0),
    "page_table_rows": grown("page_table", 0),
    "page_table_rank": one_rank_more("page_table"),
    **{f"{name}_no_index": no_index(name) for name in ("seq_lens", "page_table")},
    "seq_lens_negative": _length(-1, ValueError),
    "seq_lens_too_large": _length(1, IndexError),
    "page_table_narrow": WrongCall(_narrow_table, IndexError, ("seq_lens", "page_table")),
    "page_negative": _page(-1),
    "page_too_large": _page(0),
    "page_huge": _page(2**30),
    "workspace_short": WrongCall(_short_workspace, ValueError, "workspace"),
    "workspace_dtype": cast("workspace", torch.float32),
    "workspace_rank": one_rank_more("workspace"),
    "workspace_strided": WrongCall(_strided_workspace, ValueError, "workspace"),
    "workspace_is_cache": WrongCall(_overlap, ValueError, ("workspace", "kv_cache")),
    "accurate_text": replaced("accurate", "yes", TypeError),
    **replaced_each("sm_scale", (0.0, -1.0, INF, NAN)),
    **{f"splits_{value}": replaced("num_kv_splits", value, ValueError) for value in (0, -2)},
    "laid_over": laid_over(("workspace",), ("q_nope", "q_pe", "kv_cache", "seq_lens", "page_table")),
    "seq_lens_beyond_32_bits": beyond_32_bits("seq_lens", IndexError, "page_table"),
}
