"""rotary_embedding: calls that both sides refuse."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from kernelpair.contract.pair import Inputs
from properties.rotary_embedding.cases import RotaryCase
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    Make,
    aliased,
    all_integers,
    any_of,
    beside_wide,
    cast,
    changed,
    entry,
    grown,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    self_overlapping,
    setting,
    sparse,
    within,
)


def _has_key(case: RotaryCase) -> bool:
    return case.kv_heads is not None


def _columns(count: int) -> Make:
    """The table with some more columns, and all pairs of such a table on the first axis where there are several."""

    def make(case: RotaryCase, given: Inputs) -> Inputs | None:
        table = given["cos_sin_cache"]
        columns = table.shape[1] + count
        section = [columns // 2, 0, 0] if case.section else None
        wrong = {"cos_sin_cache": table.new_zeros(len(table), max(columns, 0)), "mrope_section": section}
        return None if columns < 0 else given | wrong

    return make


def _position(value: int | None) -> Any:
    """A token's position on one of the axes; None: the one behind the table."""

    def pick(case: RotaryCase, given: Inputs) -> tuple[tuple[int, ...], int] | None:
        wrong = case.table if value is None else value
        if wrong >= 2**31 and case.int32:
            return None
        return any_of(case, list(product(*map(range, given["positions"].shape)))), wrong

    return entry("positions", pick, IndexError)


def _section_of(numbers: Callable[[int], list[int]]) -> Make:
    """A section of these numbers, made of how many pairs there are; positions have three axes."""

    def make(case: RotaryCase, given: Inputs) -> Inputs:
        section = numbers(case.rotary // 2)
        return given | {"mrope_section": section, "positions": given["positions"].expand(3, -1).contiguous()}

    return make


def _section(change: int) -> Make:
    def make(case: RotaryCase, given: Inputs) -> Inputs | None:
        section = given["mrope_section"]
        return given | {"mrope_section": [section[0] + change, *section[1:]]} if section else None

    return make


WRONG_CALLS = {
    "query_rank": one_rank_more("query"),
    "query_integers": cast("query", torch.int32, "key", "cos_sin_cache"),
    "all_integers": beside_wide(all_integers("query", "key"), "cos_sin_cache"),
    "query_strides": sparse("query"),
    "query_none": replaced("query", None, TypeError),
    "query_overlaps_itself": self_overlapping("query"),
    "key_tokens": grown("key", 0, "query", when=_has_key),
    "key_width": grown("key", 2, "query", when=_has_key),
    "key_dtype": other_dtype("key", "query", when=_has_key),
    "key_strides": sparse("key", when=_has_key),
    "key_is_query": aliased("key", "query", when=_has_key),
    "cache_rank": one_rank_more("cos_sin_cache"),
    "cache_strides": sparse("cos_sin_cache"),
    "cache_float64": cast("cos_sin_cache", torch.float64),
    "cache_within_query": within("cos_sin_cache", "query", when=lambda case: not case.wide and case.dtype != "float32"),
    "rotary_odd": made(_columns(-1), ValueError, "cos_sin_cache"),
    "rotary_none": made(lambda case, given: _columns(-case.rotary)(case, given), ValueError, "cos_sin_cache"),
    "rotary_wide": made(lambda case, given: _columns(case.width)(case, given), ValueError, "cos_sin_cache"),
    "positions_floats": no_index("positions"),
    "positions_tokens": grown("positions", -1, "query"),
    "positions_axes": one_rank_more("positions"),
    "positions_without_section": made(
        setting(mrope_section=None), ValueError, "positions", "mrope_section", when=lambda case: bool(case.section)
    ),
    "section_without_axes": made(
        lambda case, given: given | {"mrope_section": [case.rotary // 2, 0, 0]}, ValueError, "positions", "mrope_section",
        when=lambda case: not case.section,
    ),
    "section_sum": made(_section(1), ValueError, "mrope_section"),
    "section_wraps": made(
        lambda case, given: given | {"mrope_section": [2**63 - 1, 2**63 - 1, case.rotary // 2 + 2]}, ValueError, "mrope_section",
        when=lambda case: bool(case.section),
    ),
    "section_negative": made(_section_of(lambda pairs: [-1, pairs + 1, 0]), ValueError, "mrope_section"),
    "section_two": made(_section_of(lambda pairs: [pairs, 0]), ValueError, "mrope_section"),
    "section_text": replaced("mrope_section", "text", TypeError),
    "position_negative": _position(-1),
    "position_behind": _position(None),
    "position_of_32_bits": _position(2**32),
    "key_narrow": changed("key", lambda key: key[..., :-1], ValueError, "query", when=_has_key),
    "laid_over": laid_over(("query", "key"), ("positions", "cos_sin_cache")),
    "cos_sin_cache_other_half": other_half("cos_sin_cache"),
}
