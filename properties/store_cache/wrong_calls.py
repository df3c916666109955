"""store_cache: calls that both sides refuse."""

from kernelpair.call.layout import FAR
from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, WrongCall
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    aliased,
    all_integers,
    all_negative,
    changed,
    grown,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    replaced,
    self_overlapping,
    slot,
    slot_twice,
    sparse,
)
from properties.store_cache.cases import LAYOUTS, MANY_ROWS, StoreCacheCase

POOL_SLOTS = 65_537
ROWS_AND_CACHES = tuple(LAYOUTS)[:4]


def _live(case: StoreCacheCase, given: Inputs) -> list[int]:
    return [row for row in range(case.rows) if row not in case.pads]


def _size(given: Inputs) -> int:
    return len(given["k_cache"])


def _twice_among(rows: int) -> WrongCall:
    """Rows of one element in a large pool. Slots that lie anywhere meet in a table of those that were seen."""

    def make(case: StoreCacheCase, given: Inputs) -> Inputs:
        indices = permutation(case.seed, "many", POOL_SLOTS)[:rows]
        indices[-1] = indices[case.seed % (rows - 1)]
        values, cache = given["k"].new_zeros(rows, 1, 1), given["k"].new_zeros(POOL_SLOTS, 1, 1)
        caches = {"k_cache": cache, "v_cache": cache.clone()}
        return given | {"k": values, "v": values.clone(), **caches, "indices": indices, "pad_slot": None}

    return made(make, ValueError, "indices", when=_near)


def _near(case: StoreCacheCase) -> bool:
    """Slots that lie apart would take a page of memory each."""
    return FAR not in case.layout.values()


WRONG_CALLS = {
    "index_negative": slot("indices", _live, -2),
    "all_negative": all_negative("indices", _live),
    "index_too_large": slot("indices", _live, 0, _size),
    "index_huge": slot("indices", _live, 2**31, _size),
    "index_duplicate": slot_twice("indices", _live),
    **{f"index_duplicate_of_{rows}": _twice_among(rows) for rows in MANY_ROWS},
    "index_float": no_index("indices"),
    "index_length": grown("indices", 0, "k"),
    "index_rank": one_rank_more("indices"),
    "v_rows": grown("v", 0, "k"),
    "v_heads": grown("v", 1, "k"),
    "k_cache_heads": grown("k_cache", 1, "k"),
    "v_cache_heads": grown("v_cache", 1, "v"),
    "k_cache_width": grown("k_cache", 2, "k"),
    "v_cache_width": grown("v_cache", 2, "v"),
    "v_cache_slots": grown("v_cache", 0, "k_cache"),
    "k_rank": changed("k", lambda k: k[0] if len(k) else k[None], ValueError),
    "k_none": replaced("k", None, TypeError),
    "k_strides": sparse("k"),
    "v_cache_strides": sparse("v_cache"),
    "v_dtype": other_dtype("v", *ROWS_AND_CACHES),
    "k_cache_dtype": other_dtype("k_cache", *ROWS_AND_CACHES),
    "all_integers": all_integers(*ROWS_AND_CACHES),
    "cache_overlap": aliased("v_cache", "k_cache"),
    "source_overlap": aliased("k", "k_cache"),
    "self_overlap": self_overlapping("k_cache", "v_cache"),
    "laid_over": laid_over(("k_cache", "v_cache"), ("k", "v", "indices")),
}
