"""One wrong call for each error in the contract of extend_attention."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.extend_attention.cases import INDICES
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    INF,
    NAN,
    NEXT_TO_0,
    NO_CAPS,
    NO_SCALES,
    aliased,
    all_integers,
    any_column,
    any_of,
    beside_wide,
    beyond_32_bits,
    cast,
    entry,
    grown,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    self_overlapping,
    setting,
    slot,
    sparse,
    with_sink,
)

FLOATS = ("q", "k", "v", "out", "k_cache", "v_cache")
OF_COLUMNS = ("encoder_lens", "seq_lens", "req_to_token")
LENGTHS = ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc", "encoder_lens")
Pick = Callable[[Any, Inputs], tuple[Any, int] | None]


def _self(case: Any) -> bool:
    return not case.cross


def _own_cache(case: Any) -> bool:
    """Keys of its own, and caches of their shapes: those that nobody sees yet may have others, which a longer request would."""
    return not case.cross and not case.foreign_cache


def _reads_cache(case: Any) -> bool:
    """Some request sees a cached key, so that the caches' shapes are checked."""
    hidden = lambda p: case.window > 0 and case.window <= 1  # noqa: E731 - a window of one key sees no cached one
    return case.cross or any(e and p and not hidden(p) for e, p in zip(case.extends, case.prefixes))


def _all(case: Any, given: Inputs) -> list[int]:
    return list(range(len(case.extends)))


def _negative(case: Any, given: Inputs) -> tuple[int, int]:
    """The length of some request."""
    return any_of(case, _all(case, given)), -1


def _columns(case: Any, b: int) -> range:
    """Those of its table row that request b sees."""
    prefix = case.encoder[b] if case.cross else case.prefixes[b]
    hidden = min(max(0, prefix - case.window + 1), prefix) if case.window > 0 and not case.cross else 0
    behind = case.encoder[b] if case.encoder is not None and not case.cross else 0
    return range(behind + hidden, behind + prefix) if case.extends[b] else range(0)


def _seen_key(case: Any, given: Inputs) -> tuple[int, int] | None:
    """Table entry of a cached key that some row sees."""
    return any_column(case, [(int(given["req_pool_indices"][b]), _columns(case, b)) for b in _all(case, given)])


def _seen_by_the_later(case: Any, given: Inputs) -> Inputs | None:
    """Two requests share a row, in which an entry is wrong that the second alone sees."""
    later = [b for b in _all(case, given)[1:] if _columns(case, b) and _columns(case, b - 1).stop < _columns(case, b).stop]
    if not later:
        return None
    b, pools, table = any_of(case, later), given["req_pool_indices"].clone(), torch.zeros_like(given["req_to_token"])
    pools[b - 1] = pools[b]
    table[pools[b], _columns(case, b)[-1]] = given["k_cache"].shape[0]
    return given | {"req_pool_indices": pools, "req_to_token": table}


def _used(value: int) -> Pick:
    def pick(case: Any, given: Inputs) -> tuple[Any, int] | None:
        where = _seen_key(case, given)
        return None if where is None else (where, value if value < 0 else given["k_cache"].shape[0] + value)

    return pick


def _past_the_table(case: Any, given: Inputs) -> tuple[Any, int] | None:
    """One token more than the row has columns; a window does not excuse it."""
    b = any_of(case, _all(case, given))
    behind = case.encoder[b] if case.encoder is not None else 0
    return None if case.cross else (b, max(given["req_to_token"].shape[1] - behind + 1, case.extends[b]))


def _too_long_encoder(case: Any, given: Inputs) -> tuple[Any, int]:
    b = any_of(case, _all(case, given))
    return b, given["req_to_token"].shape[1] + 1 - (0 if case.cross else case.extends[b] + case.prefixes[b])


def _shorter_than_new(case: Any, given: Inputs) -> tuple[Any, int] | None:
    b = any_of(case, _all(case, given))
    return (b, case.extends[b] - 1) if case.extends[b] else None


def _before_the_rows(case: Any, given: Inputs) -> tuple[Any, int]:
    """A request whose rows all are negative: if some were not, they might be another's."""
    b = any_of(case, _all(case, given))
    return b, -max(case.extends[b], 1)


def _past_the_rows(case: Any, given: Inputs) -> tuple[Any, int] | None:
    """A request that would end one row behind the last, of those whose rows would be nobody else's."""
    T, starts, free = given["q"].shape[0], given["extend_start_loc"].tolist(), []
    for request, extend in enumerate(case.extends):
        ends = [start + other for a, (start, other) in enumerate(zip(starts, case.extends)) if a != request and other]
        if max(ends, default=0) <= T - extend + 1:
            free.append(request)
    if not free:
        return None
    b = any_of(case, free)
    return b, T - case.extends[b] + 1


def _overlapping(case: Any, given: Inputs) -> tuple[Any, int] | None:
    """A live request starts at the last row of another one."""
    live = [b for b, extend in enumerate(case.extends) if extend]
    if len(live) < 2:
        return None
    a, b = any_of(case, list(permutations(live, 2)))
    start = int(given["extend_start_loc"][a]) + case.extends[a] - 1
    start = min(start, given["q"].shape[0] - case.extends[b])
    return (b, start) if start + case.extends[b] > int(given["extend_start_loc"][a]) else None


def _one_head_more(case: Any, given: Inputs) -> Inputs | None:
    if case.kv_heads == 1 or not case.heads:
        return None
    wide = {name: torch.cat([given[name], given[name][:, :1]], dim=1) for name in ("q", "out")}
    if given["sinks"] is not None:
        wide["sinks"] = torch.cat([given["sinks"], given["sinks"][:1]])
    return given | wide


def _cross_without_lengths(case: Any, given: Inputs) -> Inputs | None:
    """Any call becomes one of cross attention."""
    return None if case.foreign_cache else given | {"is_cross_attn": True, "encoder_lens": None}


def _sum_beyond_64_bits(case: Any, given: Inputs) -> Inputs | None:
    """A length of 2^63 - 1 behind an encoder's token."""
    rows = _all(case, given)
    if not _own_cache(case) or not rows or {"seq_lens", "encoder_lens"} & set(case.int32):
        return None
    lengths, encoder = given["seq_lens"].clone(), torch.zeros_like(given["seq_lens"])
    at = any_of(case, rows)
    lengths[at], encoder[at] = 2**63 - 1, 1
    return given | {"seq_lens": lengths, "encoder_lens": encoder}


WRONG_CALLS = {
    "k_none": replaced("k", None, ValueError, when=_self),
    "v_none": replaced("v", None, ValueError, when=_self),
    "no_encoder_lens": WrongCall(_cross_without_lengths, ValueError, ("encoder_lens", "is_cross_attn")),
    **{f"{name}_dtype": beside_wide(other_dtype(name, *FLOATS), "sinks") for name in FLOATS},
    "q_integer": beside_wide(cast("q", torch.int32, *FLOATS), "sinks"),
    "all_integers": beside_wide(all_integers(*FLOATS), "sinks"),
    **{f"out_{dim}": grown("out", dim, "q", "v", "v_cache") for dim in range(3)},
    "q_tokens": grown("q", 0, "out", "k", "v"),
    "q_width": grown("q", 2, "k", "k_cache"),
    **{f"k_{dim}": grown("k", dim, "q", "v", "k_cache", when=_self) for dim in (0, 2)},
    "k_heads": grown("k", 1, "q", "v", "k_cache", "v_cache", when=_self),
    **{f"v_{dim}": grown("v", dim, "q", "k", "out", "v_cache", when=_self) for dim in range(3)},
    "k_cache_0": grown("k_cache", 0, "v_cache"),
    "v_cache_0": grown("v_cache", 0, "k_cache"),
    **{f"k_cache_{dim}": grown("k_cache", dim, "v_cache", "k", "q", when=_reads_cache) for dim in (1, 2)},
    **{f"v_cache_{dim}": grown("v_cache", dim, "k_cache", "v", "q", "out", when=_reads_cache) for dim in (1, 2)},
    **{f"{name}_sparse": sparse(name) for name in ("q", "out", "k_cache", "v_cache")},
    **{f"{name}_sparse": sparse(name, when=_self) for name in ("k", "v")},
    **{f"{name}_rank": one_rank_more(name) for name in ("q", "out", "k_cache", "v_cache", "req_to_token", *LENGTHS)},
    **{f"{name}_no_index": no_index(name) for name in ("req_to_token", *LENGTHS)},
    **{f"{name}_length": grown(name, 0, *LENGTHS) for name in LENGTHS},
    "pool_negative": slot("req_pool_indices", _all, -1),
    "pool_too_large": slot("req_pool_indices", _all, 0, lambda given: len(given["req_to_token"])),
    "table_negative": entry("req_to_token", _used(-1), IndexError),
    "table_too_large": entry("req_to_token", _used(0), IndexError),
    "table_huge": entry("req_to_token", _used(2**30), IndexError),
    "table_of_the_later": WrongCall(_seen_by_the_later, IndexError, "req_to_token"),
    "seq_lens_negative": entry("seq_lens", _negative, ValueError),
    "extend_seq_lens_negative": entry("extend_seq_lens", _negative, ValueError),
    "encoder_lens_negative": entry("encoder_lens", _negative, ValueError),
    "shorter_than_new": entry("seq_lens", _shorter_than_new, ValueError, "seq_lens", "extend_seq_lens"),
    "start_negative": entry("extend_start_loc", _before_the_rows, IndexError),
    "start_too_large": entry("extend_start_loc", _past_the_rows, IndexError),
    "seq_lens_too_large": entry("seq_lens", _past_the_table, IndexError, "seq_lens", "req_to_token", when=_own_cache),
    "encoder_lens_too_large": entry("encoder_lens", _too_long_encoder, IndexError, *OF_COLUMNS),
    "rows_overlap": entry("extend_start_loc", _overlapping, ValueError),
    "heads": WrongCall(_one_head_more, ValueError, ("q", "k", "k_cache")),
    **replaced_each("sm_scale", NO_SCALES),
    **replaced_each("logit_cap", NO_CAPS),
    "logit_cap_next_to_0": made(setting(logit_cap=NEXT_TO_0, sm_scale=0.5), ValueError, "logit_cap"),
    "sink_nan": with_sink(NAN),
    "sink_inf": with_sink(INF),
    "sinks_length": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads + 1)}, ValueError, "sinks"),
    "sinks_integer": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads).int()}, TypeError, "sinks"),
    "out_is_q": aliased("out", "q"),
    "out_is_v": aliased("out", "v"),
    "out_is_v_cache": aliased("out", "v_cache"),
    "out_overlaps_itself": self_overlapping("out"),
    "laid_over": laid_over(("out",), ("q", "k", "v", "k_cache", "v_cache", *INDICES, "sinks")),
    "seq_lens_beyond_32_bits": beyond_32_bits("seq_lens", IndexError, "req_to_token", when=_own_cache),
    "extend_start_loc_beyond_32_bits": beyond_32_bits("extend_start_loc", IndexError),
    "sum_beyond_64_bits": WrongCall(_sum_beyond_64_bits, IndexError, ("seq_lens", "encoder_lens", "req_to_token")),
    "encoder_lens_beyond_32_bits": beyond_32_bits("encoder_lens", IndexError, "seq_lens", "req_to_token"),
    "sinks_other_half": other_half("sinks"),
}
