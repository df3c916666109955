"""One wrong call for each error in the contract of mla_decode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs
from optimized.mla_decode import mla_decode_workspace_size

FLOATS = ("q_nope", "q_pe", "kv_cache")


def _changed(name: str, change: Callable[[Tensor], Tensor | None], error: type[Exception], *against: str) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        wrong = change(given[name])
        return None if wrong is None else given | {name: wrong}

    return Bad(spoil, error, (name, *against))


def _grown(name: str, dim: int, *against: str) -> Bad:
    def change(value: Tensor) -> Tensor:
        shape = list(value.shape)
        shape[dim] += 1
        return value.new_zeros(shape)

    return _changed(name, change, ValueError, *against)


def _other_dtype(name: str) -> Bad:
    def change(value: Tensor) -> Tensor:
        return value.to(torch.float16 if value.dtype == torch.float32 else torch.float32)

    return _changed(name, change, TypeError, *FLOATS)


def _sparse(name: str) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if name in case.layout or given[name].shape[-1] < 2 or not given[name].numel():
            return None
        return given | {name: given[name].repeat_interleave(2, dim=-1)[..., ::2]}

    return Bad(spoil, ValueError, name)


def _first_page(value: int) -> Bad:
    """The first used page of the first request that has keys."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        rows = [b for b, n in enumerate(case.lens) if n]
        if not rows:
            return None
        table = given["page_table"].clone()
        table[rows[0], 0] = value if value < 0 else len(given["kv_cache"]) + value
        return given | {"page_table": table}

    return Bad(spoil, IndexError, "page_table")


def _narrow_table(case: Any, given: Inputs) -> Inputs | None:
    used = -(-max(case.lens, default=0) // case.page)
    return given | {"page_table": given["page_table"][:, : used - 1]} if used else None


def _length(value: int, error: type[Exception]) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not case.lens:
            return None
        lens = given["seq_lens"].clone()
        lens[0] = value if value < 0 else given["page_table"].shape[1] * case.page + value
        return given | {"seq_lens": lens}

    return Bad(spoil, error, ("seq_lens", "page_table"))


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


def _scalar(name: str, value: float) -> Bad:
    return Bad(lambda case, given: given | {name: value}, ValueError, name)


BAD = {
    **{f"{name}_dtype": _other_dtype(name) for name in FLOATS},
    **{f"{name}_sparse": _sparse(name) for name in FLOATS},
    "q_nope_integer": _changed("q_nope", lambda value: value.int(), TypeError),
    **{f"q_pe_{dim}": _grown("q_pe", dim, "q_nope", "kv_cache") for dim in range(3)},
    "q_nope_width": _grown("q_nope", 2, "kv_cache"),
    "kv_cache_width": _grown("kv_cache", 2),
    "kv_cache_rank": _changed("kv_cache", lambda value: value[None], ValueError),
    "q_nope_rank": _changed("q_nope", lambda value: value[None], ValueError),
    "page_size": Bad(_pages_of_eight, ValueError, "kv_cache"),
    "seq_lens_length": _grown("seq_lens", 0),
    "page_table_rows": _grown("page_table", 0),
    "page_table_rank": _changed("page_table", lambda value: value[None], ValueError),
    **{f"{name}_no_index": _changed(name, lambda value: value.float(), TypeError) for name in ("seq_lens", "page_table")},
    "seq_lens_negative": _length(-1, ValueError),
    "seq_lens_too_large": _length(1, IndexError),
    "page_table_narrow": Bad(_narrow_table, IndexError, ("seq_lens", "page_table")),
    "page_negative": _first_page(-1),
    "page_too_large": _first_page(0),
    "page_huge": _first_page(2**30),
    "workspace_short": Bad(_short_workspace, ValueError, "workspace"),
    "workspace_dtype": _changed("workspace", lambda value: value.float(), TypeError),
    "workspace_rank": _changed("workspace", lambda value: value[None], ValueError),
    "workspace_strided": Bad(_strided_workspace, ValueError, "workspace"),
    "workspace_is_cache": Bad(_overlap, ValueError, ("workspace", "kv_cache")),
    **{f"sm_scale_{value}": _scalar("sm_scale", value) for value in (0.0, -1.0, torch.inf, torch.nan)},
    **{f"splits_{value}": _scalar("num_kv_splits", value) for value in (0, -2)},
}
