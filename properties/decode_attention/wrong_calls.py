"""One wrong call for each error in the contract of decode_attention."""

from collections.abc import Callable
from typing import Any

import torch

from kernelpair.contract.pair import Alias, Inputs, WrongCall
from properties.decode_attention.cases import INDICES, behind_of, keys_of, live_of, pad_slot_of
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    INF,
    NAN,
    NO_CAPS,
    NO_SCALES,
    aliased,
    all_integers,
    any_column,
    any_of,
    beside_wide,
    beyond_32_bits,
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
    replaced_each,
    self_overlapping,
    setting,
    slot_twice,
    sparse,
    with_sink,
)

FLOATS = ("q", "k_cache", "v_cache", "out", "key", "value")
OF_REQUESTS = ("loc", "req_pool_indices", "seq_lens", "encoder_lens")  # an entry for each


def _seen_key(case: Any, given: Inputs) -> tuple[int, int] | None:
    """Table entry of a visible key."""
    seen = []
    for b, tokens in enumerate(keys_of(case)):
        if tokens:
            cut = tokens - case.window if not case.cross and 0 < case.window < tokens else 0
            row, first = int(given["req_pool_indices"][b]), behind_of(case)[b]
            seen.append((row, range(first + cut, first + tokens)))
    return any_column(case, seen)


def _used(value: int) -> Callable[[Any, Inputs], tuple[Any, int] | None]:
    def pick(case: Any, given: Inputs) -> tuple[Any, int] | None:
        where = _seen_key(case, given)
        return None if where is None else (where, value if value < 0 else given["k_cache"].shape[0] + value)

    return pick


def _of_live(value: Callable[[Any, Inputs], int]) -> Callable[[Any, Inputs], tuple[Any, int] | None]:
    """The entry of a request that is no pad."""

    def pick(case: Any, given: Inputs) -> tuple[Any, int] | None:
        live = live_of(case)
        return (any_of(case, live), value(case, given)) if live else None

    return pick


def _negative(case: Any, given: Inputs) -> int:
    """A negative number that is not the pad."""
    return -2 if pad_slot_of(case) == -1 else -1


def _past_the_table(case: Any, given: Inputs) -> tuple[Any, int] | None:
    """One token more than the row has columns; a window does not excuse it."""
    live = live_of(case)
    if case.cross or not live:
        return None
    b = any_of(case, live)
    return b, given["req_to_token"].shape[1] - behind_of(case)[b] + 1


def _past_the_table_unseen(case: Any, given: Inputs) -> Inputs | None:
    """The same where the window hides all but one column, and what lies behind the row is a slot like any other."""
    where = _past_the_table(case, given)
    if where is None:
        return None
    lengths = given["seq_lens"].clone()
    lengths[where[0]] = where[1]
    return given | {"seq_lens": lengths, "req_to_token": torch.zeros_like(given["req_to_token"]), "sliding_window": 1}


def _too_long_encoder(case: Any, given: Inputs) -> tuple[Any, int] | None:
    columns, live = given["req_to_token"].shape[1], live_of(case)
    if not live:
        return None
    b = any_of(case, live)
    return b, columns + 1 - (0 if case.cross else case.lens[b])


def _pad_repeated(case: Any, given: Inputs) -> Inputs | None:
    """Slots that repeat are only excused by the pad slot: without it pads are requests like any other, of no tokens here."""
    if not case.write or len(case.pads) < 2 or case.pad != "zero":
        return None
    empty = {name: given[name].clone() for name in ("req_pool_indices", "seq_lens", "encoder_lens") if given[name] is not None}
    for entries in empty.values():
        entries[list(case.pads)] = 0
    return given | empty | {"pad_slot": None}


def _shifted_values(case: Any, given: Inputs) -> Inputs | None:
    """v_cache as the last part of k_cache: an overlap that is not the shared form."""
    if not 0 < case.width_v < case.width or not given["k_cache"].numel():
        return None
    return given | {"v_cache": Alias("k_cache", lambda k_cache: k_cache[..., -case.width_v :])}


def _one_head_more(case: Any, given: Inputs) -> Inputs | None:
    if case.kv_heads == 1 or not case.heads:
        return None
    wide = {name: torch.cat([given[name], given[name][:, :1]], dim=1) for name in ("q", "out", "attn_logits")}
    if given["sinks"] is not None:
        wide["sinks"] = torch.cat([given["sinks"], given["sinks"][:1]])
    return given | wide


def _apart(case: Any) -> bool:
    return not case.shared


def _not_placed(name: str) -> Callable[[Any], bool]:
    """A layout would lay it out anew."""
    return lambda case: name not in case.layout and "fused" not in case.layout.values()


def _writes(case: Any) -> bool:
    return bool(case.write)


def _writes_apart(case: Any) -> bool:
    return bool(case.write and not case.shared)


def _writes_shared(case: Any) -> bool:
    return bool(case.write and case.shared)


def _either(apart: WrongCall, shared: WrongCall) -> WrongCall:
    """The error of caches of their own, or that of a shared buffer, where the values stay part of the keys."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        wrong = (shared if case.shared else apart).make(case, given)
        joint, part = (None, None) if wrong is None else (wrong["k_cache"], wrong["v_cache"])
        if wrong is None or not isinstance(joint, Alias) or not isinstance(part, Alias):
            return wrong
        return wrong | {"v_cache": Alias(joint.of, lambda tensor: part.view(joint.view(tensor)))}

    return WrongCall(make, ValueError, apart.argument)


READ = ("q", "key", "value", *INDICES, "sinks")

WRONG_CALLS = {
    **{f"{name}_dtype": beside_wide(other_dtype(name, *FLOATS), "sinks") for name in ("q", "k_cache", "out", "key", "value")},
    "v_cache_dtype": other_dtype("v_cache", *FLOATS, when=_apart),
    "q_integer": beside_wide(cast("q", torch.int32, *FLOATS), "sinks"),
    "all_integers": beside_wide(all_integers(*FLOATS), "sinks"),
    "attn_logits_dtype": cast("attn_logits", torch.float16),
    "attn_logits_splits": changed("attn_logits", lambda sums: sums[:, :, :0], ValueError),
    **{f"attn_logits_{dim}": grown("attn_logits", dim) for dim in (0, 1, 3)},
    **{f"out_{dim}": grown("out", dim, "q", "v_cache") for dim in range(3)},
    **{f"q_{dim}": grown("q", dim, "out", "k_cache", "attn_logits", "key", "value", *OF_REQUESTS) for dim in (0, 2)},
    **{f"key_{dim}": grown("key", dim, "k_cache", "q") for dim in range(3)},
    **{f"value_{dim}": grown("value", dim, "v_cache", "q") for dim in range(3)},
    **{f"k_cache_{dim}": grown("k_cache", dim, "v_cache", "q", when=_apart) for dim in range(3)},
    **{f"{name}_sparse": sparse(name, when=_not_placed(name)) for name in ("q", *FLOATS[3:], "attn_logits")},
    "k_cache_sparse": sparse("k_cache", "v_cache", when=_not_placed("k_cache")),  # which may be a part of it
    **{
        f"{name}_rank": one_rank_more(name)
        for name in ("q", "out", "attn_logits", "req_to_token", "seq_lens", "req_pool_indices")
    },
    **{
        f"{name}_no_index": no_index(name)
        for name in ("loc", "req_to_token", "req_pool_indices", "seq_lens", "encoder_lens")
    },
    **{f"{name}_length": grown(name, 0, "q", *OF_REQUESTS) for name in OF_REQUESTS},
    "key_without_loc": replaced("loc", None, ValueError, "loc", "key", when=_writes),
    "key_without_value": replaced(
        "value", None, ValueError, "value", "key", when=lambda case: case.write and not case.shared
    ),
    "value_without_key": WrongCall(
        lambda case, given: given | {"key": None} if given["value"] is not None else None, ValueError, ("value", "key")),
    "no_encoder_lens": replaced(
        "encoder_lens", None, ValueError, "encoder_lens", "is_cross_attn", when=lambda case: case.cross
    ),
    "loc_negative": entry("loc", _of_live(_negative), IndexError, when=_writes),
    "loc_too_large": entry("loc", _of_live(lambda case, given: given["k_cache"].shape[0]), IndexError, when=_writes),
    "loc_duplicate": slot_twice("loc", lambda case, given: live_of(case) if case.write else []),
    "pads_without_pad_slot": WrongCall(_pad_repeated, ValueError, "loc"),
    "pad_slot_without_loc": made(
        setting(pad_slot=0, loc=None, key=None, value=None), ValueError, "pad_slot", "loc", when=lambda case: not case.pads
    ),  # without loc no request is a pad, and what stands for one that was would be wrong
    "pad_slot_float": replaced("pad_slot", 0.5, TypeError),
    "pool_negative": entry("req_pool_indices", _of_live(lambda case, given: -1), IndexError),
    "pool_too_large": entry("req_pool_indices", _of_live(lambda case, given: given["req_to_token"].shape[0]), IndexError),
    "table_negative": entry("req_to_token", _used(-1), IndexError),
    "table_too_large": entry("req_to_token", _used(0), IndexError),
    "table_huge": entry("req_to_token", _used(2**30), IndexError),
    "seq_lens_negative": entry("seq_lens", _of_live(lambda case, given: -1), ValueError, when=lambda case: not case.cross),
    "seq_lens_too_large_for_a_window": WrongCall(_past_the_table_unseen, IndexError, "seq_lens"),
    "seq_lens_too_large": entry("seq_lens", _past_the_table, IndexError, "seq_lens", "req_to_token"),
    "encoder_lens_negative": entry("encoder_lens", _of_live(lambda case, given: -1), ValueError),
    "encoder_lens_too_large": entry(
        "encoder_lens", _too_long_encoder, IndexError, "encoder_lens", "seq_lens", "req_to_token"),
    "heads": WrongCall(_one_head_more, ValueError, ("q", "k_cache")),
    **replaced_each("sm_scale", NO_SCALES),
    **replaced_each("logit_cap", NO_CAPS),
    "sink_nan": with_sink(NAN),
    "sink_inf": with_sink(INF),
    "sinks_length": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads + 1)}, ValueError, "sinks"),
    "out_is_q": aliased("out", "q"),
    "out_is_v_cache": aliased("out", "v_cache"),
    "key_is_k_cache": aliased("key", "k_cache"),
    "overlapping_caches": WrongCall(_shifted_values, ValueError, ("k_cache", "v_cache")),
    "out_overlaps_itself": self_overlapping("out"),
    "cache_overlaps_itself": _either(
        self_overlapping("k_cache", "v_cache", when=_writes_apart), self_overlapping("k_cache", when=_writes_shared)),
    "laid_over_cache": _either(
        laid_over(("k_cache", "v_cache"), READ, when=_writes_apart), laid_over(("k_cache",), READ, when=_writes_shared)),
    "laid_over": laid_over(("out", "attn_logits"), READ),
    "seq_lens_beyond_32_bits": beyond_32_bits(
        "seq_lens", IndexError, "req_to_token", live=live_of, when=lambda case: not case.cross),
    "encoder_lens_beyond_32_bits": beyond_32_bits("encoder_lens", IndexError, "seq_lens", "req_to_token", live=live_of),
    "sinks_other_half": other_half("sinks"),
}
