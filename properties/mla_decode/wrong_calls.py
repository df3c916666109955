"""One wrong call for each error in the contract of mla_decode."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernelpair.contract.pair import Alias, Inputs, WrongCall
from optimized.mla_decode import mla_decode_workspace_size
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NO_SCALES,
    all_integers,
    any_column,
    any_of,
    beyond_32_bits,
    cast,
    entry,
    grown,
    no_index,
    one_rank_more,
    other_dtype,
    replaced,
    replaced_each,
    sparse,
)

FLOATS = ("q_nope", "q_pe", "kv_cache")


def _page(value: int) -> WrongCall:
    """A used page."""

    def pick(case: Any, given: Inputs) -> tuple[tuple[int, int], int] | None:
        where = any_column(case, [(b, range(-(-n // case.page))) for b, n in enumerate(case.lens)])
        return None if where is None else (where, value if value < 0 else len(given["kv_cache"]) + value)

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


def _one_of_many_pages(case: Any, given: Inputs) -> Inputs | None:
    """A request of more pages than are drawn, one of which is none."""
    if not case.lens:
        return None
    requests, pages = len(case.lens), max(given["page_table"].shape[1], 65 + case.seed // 7 % 100)
    lens, table, b = given["seq_lens"].clone(), torch.zeros(requests, pages, dtype=torch.int64), any_of(case, range(requests))
    lens[b] = pages * case.page
    table[b, case.seed // 5 % pages] = -1 if case.seed % 2 else len(given["kv_cache"])
    needed = mla_decode_workspace_size(int(lens.max()), requests, case.heads, case.page, case.latent, case.splits)
    return given | {"seq_lens": lens, "page_table": table, "workspace": given["workspace"].new_zeros(needed)}


def _pages_of_eight(case: Any, given: Inputs) -> Inputs:
    pages, _, width = given["kv_cache"].shape
    return given | {"kv_cache": given["kv_cache"].new_zeros(pages, 8, width)}


def _short_workspace(case: Any, given: Inputs) -> Inputs | None:
    needed = mla_decode_workspace_size(
        max(case.lens, default=0), len(case.lens), case.heads, case.page, case.latent, case.splits)
    return given | {"workspace": given["workspace"][: needed - 1]} if needed else None


def _splits_beyond_64_bits(case: Any, given: Inputs) -> Inputs | None:
    """So many that their workspace has a size that is small in 64 bits."""
    return given | {"num_kv_splits": 2 ** (60 + case.seed % 3)} if any(case.lens) else None


def _with_room(call: WrongCall, columns: int = 0) -> WrongCall:
    """With a workspace that the wrong lengths, or so many columns more of the latents, leave large enough: a kernel may look at
    that first."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        wrong = call.make(case, given)
        if wrong is None:
            return None
        lens, workspace = wrong["seq_lens"], given["workspace"]
        longest = int(lens.max()) if len(lens) else 0
        needed = mla_decode_workspace_size(longest, len(case.lens), case.heads, case.page, case.latent + columns, case.splits)
        return wrong | {"workspace": workspace.new_zeros(max(len(workspace), needed))}

    return replace(call, make=make)


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
    "q_nope_integer": cast("q_nope", torch.int32, *FLOATS),
    "all_integers": all_integers(*FLOATS),
    **{f"q_pe_{dim}": grown("q_pe", dim, "q_nope", "kv_cache") for dim in range(3)},
    "q_nope_width": _with_room(grown("q_nope", 2, "kv_cache"), 1),
    "kv_cache_width": grown("kv_cache", 2),
    "kv_cache_rank": one_rank_more("kv_cache"),
    "q_nope_rank": one_rank_more("q_nope"),
    "page_size": WrongCall(_pages_of_eight, ValueError, "kv_cache"),
    "seq_lens_length": grown("seq_lens", 0, "page_table", "q_nope"),
    "page_table_rows": grown("page_table", 0, "seq_lens", "q_nope"),
    "page_table_rank": one_rank_more("page_table"),
    **{f"{name}_no_index": no_index(name) for name in ("seq_lens", "page_table")},
    "seq_lens_negative": _length(-1, ValueError),
    "seq_lens_too_large": _with_room(_length(1, IndexError)),
    "page_table_narrow": WrongCall(_narrow_table, IndexError, ("seq_lens", "page_table")),
    "page_negative": _page(-1),
    "page_too_large": _page(0),
    "page_huge": _page(2**30),
    "page_of_many": WrongCall(_one_of_many_pages, IndexError, "page_table"),
    "workspace_short": WrongCall(_short_workspace, ValueError, "workspace"),
    "workspace_dtype": cast("workspace", torch.float32),
    "workspace_rank": one_rank_more("workspace"),
    "workspace_strided": WrongCall(_strided_workspace, ValueError, "workspace"),
    "workspace_is_cache": WrongCall(_overlap, ValueError, ("workspace", "kv_cache")),
    "accurate_text": replaced("accurate", "yes", TypeError),
    **replaced_each("sm_scale", NO_SCALES),
    **{f"splits_{value}": replaced("num_kv_splits", value, ValueError) for value in (0, -2)},
    "splits_beyond_64_bits": WrongCall(_splits_beyond_64_bits, ValueError, ("num_kv_splits", "workspace")),
    "laid_over": laid_over(("workspace",), ("q_nope", "q_pe", "kv_cache", "seq_lens", "page_table")),
    "seq_lens_beyond_32_bits": _with_room(beyond_32_bits("seq_lens", IndexError, "page_table")),
}
