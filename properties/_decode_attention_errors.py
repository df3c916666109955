"""One wrong call for each error in the contract of decode_attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs

FLOATS = ("q", "k_cache", "v_cache", "out", "key", "value")
Spoil = Callable[[Any, Inputs], Inputs | None]


def _grown(name: str, dim: int, *against: str) -> Bad:
    """One more entry in one dimension; the message may name what it disagrees with instead."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not isinstance(given[name], Tensor):
            return None
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return Bad(spoil, ValueError, (name, *against))


def _other_dtype(name: str) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not isinstance(given[name], Tensor):
            return None
        return given | {name: given[name].to(torch.float16 if case.dtype == "float32" else torch.float32)}

    return Bad(spoil, TypeError, FLOATS)


def _replaced(name: str, value: Any, error: type[Exception], *names: str, when: Callable[[Any], bool] = lambda case: True) -> Bad:
    return Bad(lambda case, given: given | {name: value} if when(case) else None, error, names or (name,))


def _sparse(name: str) -> Bad:
    """Every second element of rows twice as long."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        value = given[name]
        placed = name in case.layout or "fused" in case.layout.values()  # a layout would lay it out anew
        if placed or not isinstance(value, Tensor) or value.shape[-1] < 2 or not value.numel():
            return None
        return given | {name: value.repeat_interleave(2, dim=-1)[..., ::2]}

    return Bad(spoil, ValueError, name)


def _rank(name: str) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        return given | {name: given[name][None]} if isinstance(given[name], Tensor) else None

    return Bad(spoil, ValueError, name)


def _no_index(name: str) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        return given | {name: given[name].float()} if given[name] is not None else None

    return Bad(spoil, TypeError, name)


def _entry(name: str, pick: Callable[[Any, Inputs], tuple[Any, int] | None], error: type[Exception], *names: str) -> Bad:
    """One entry of an index tensor set to a wrong value."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        chosen = pick(case, given) if given[name] is not None and given[name].numel() else None
        if chosen is None:
            return None
        where, value = chosen
        wrong = given[name].clone()
        wrong[where] = value
        return given | {name: wrong}

    return Bad(spoil, error, names or (name,))


def _first_key(case: Any, given: Inputs) -> tuple[int, int] | None:
    """Table entry of the first visible key of the first request that has one."""
    for b, tokens in enumerate(case.encoder if case.cross else case.lens):
        if tokens:
            cut = tokens - case.window if not case.cross and 0 < case.window < tokens else 0
            behind = case.encoder[b] if case.encoder is not None and not case.cross else 0
            return int(given["req_pool_indices"][b]), behind + cut
    return None


def _used(value: int) -> Callable[[Any, Inputs], tuple[Any, int] | None]:
    def pick(case: Any, given: Inputs) -> tuple[Any, int] | None:
        where = _first_key(case, given)
        return None if where is None else (where, value if value < 0 else given["k_cache"].shape[0] + value)

    return pick


def _past_the_table(case: Any, given: Inputs) -> tuple[Any, int] | None:
    """One token more than the row has columns; a window does not excuse it."""
    behind = case.encoder[0] if case.encoder is not None else 0
    return None if case.cross else (0, given["req_to_token"].shape[1] - behind + 1)


def _past_the_table_unseen(case: Any, given: Inputs) -> Inputs | None:
    """The same where the window hides all but one column, and what lies behind the row is a slot like any other."""
    where = _past_the_table(case, given) if case.lens else None
    if where is None:
        return None
    lengths = given["seq_lens"].clone()
    lengths[0] = where[1]
    return given | {"seq_lens": lengths, "req_to_token": torch.zeros_like(given["req_to_token"]), "sliding_window": 1}


def _too_long_encoder(case: Any, given: Inputs) -> tuple[Any, int] | None:
    columns = given["req_to_token"].shape[1]
    return (0, columns + 1) if case.cross else (0, columns - case.lens[0] + 1)


def _duplicate_loc(case: Any, given: Inputs) -> tuple[Any, int] | None:
    return (1, int(given["loc"][0])) if len(given["loc"]) > 1 else None


def _aliased(name: str, of: str) -> Bad:
    """One argument takes the memory of another."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        base, value = given[of], given[name]
        if not isinstance(base, Tensor) or not isinstance(value, Tensor) or not value.numel() or not base.numel():
            return None
        if any(n > m for n, m in zip(value.shape, base.shape)):
            return None
        region = tuple(slice(0, n) for n in value.shape)
        return given | {name: Alias(of, lambda tensor: tensor[region])}

    return Bad(spoil, ValueError, (name, of))


def _shifted_values(case: Any, given: Inputs) -> Inputs | None:
    """v_cache as the last part of k_cache: an overlap that is not the shared form."""
    if not 0 < case.width_v < case.width or not given["k_cache"].numel():
        return None
    return given | {"v_cache": Alias("k_cache", lambda k_cache: k_cache[..., -case.width_v :])}


def _one_head_more(case: Any, given: Inputs) -> Inputs | None:
    if case.kv_heads == 1:
        return None
    wide = {name: torch.cat([given[name], given[name][:, :1]], dim=1) for name in ("q", "out", "attn_logits")}
    if given["sinks"] is not None:
        wide["sinks"] = torch.cat([given["sinks"], given["sinks"][:1]])
    return given | wide


def _with_sink(value: float) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs:
        sinks = torch.zeros(case.heads)
        sinks[-1] = value
        return given | {"sinks": sinks}

    return Bad(spoil, ValueError, "sinks")


def _self_overlap(case: Any, given: Inputs) -> Inputs | None:
    return given | {"out": given["out"][:1].expand(given["out"].shape)} if len(case.lens) > 1 else None


def _writes(case: Any) -> bool:
    return bool(case.write)


BAD = {
    **{f"{name}_dtype": _other_dtype(name) for name in ("q", "k_cache", "out", "key", "value")},
    "v_cache_dtype": Bad(
        lambda case, given: None if case.shared else _other_dtype("v_cache").spoil(case, given), TypeError, FLOATS),
    "q_integer": Bad(lambda case, given: given | {"q": given["q"].int()}, TypeError, "q"),
    "attn_logits_dtype": Bad(
        lambda case, given: given | {"attn_logits": given["attn_logits"].half()}, TypeError, "attn_logits"),
    "attn_logits_splits": Bad(
        lambda case, given: given | {"attn_logits": given["attn_logits"][:, :, :0]}, ValueError, "attn_logits"),
    **{f"attn_logits_{dim}": _grown("attn_logits", dim) for dim in (0, 1, 3)},
    **{f"out_{dim}": _grown("out", dim, "q", "v_cache") for dim in range(3)},
    **{f"q_{dim}": _grown("q", dim, "out", "k_cache", "attn_logits", "key", "req_pool_indices") for dim in (0, 2)},
    **{f"key_{dim}": _grown("key", dim, "k_cache", "q") for dim in range(3)},
    **{f"value_{dim}": _grown("value", dim, "v_cache", "q") for dim in range(3)},
    **{f"k_cache_{dim}": Bad(
        lambda case, given, dim=dim: None if case.shared else _grown("k_cache", dim).spoil(case, given),  # type: ignore[misc]
        ValueError, ("k_cache", "v_cache", "q")) for dim in range(3)},
    **{f"{name}_sparse": _sparse(name) for name in (*FLOATS[:2], *FLOATS[3:], "attn_logits")},
    **{f"{name}_rank": _rank(name) for name in ("q", "out", "attn_logits", "req_to_token", "seq_lens", "req_pool_indices")},
    **{f"{name}_no_index": _no_index(name) for name in ("loc", "req_to_token", "req_pool_indices", "seq_lens", "encoder_lens")},
    **{f"{name}_length": _grown(name, 0, "q") for name in ("loc", "req_pool_indices", "seq_lens", "encoder_lens")},
    "key_without_loc": _replaced("loc", None, ValueError, when=_writes),
    "key_without_value": _replaced("value", None, ValueError, when=lambda case: case.write and not case.shared),
    "value_without_key": Bad(
        lambda case, given: given | {"key": None} if given["value"] is not None else None, ValueError, ("value", "key")),
    "no_encoder_lens": _replaced("encoder_lens", None, ValueError, when=lambda case: case.cross),
    "loc_negative": _entry("loc", lambda case, given: (0, -1), IndexError),
    "loc_too_large": _entry("loc", lambda case, given: (0, given["k_cache"].shape[0]), IndexError),
    "loc_duplicate": _entry("loc", _duplicate_loc, ValueError),
    "pool_negative": _entry("req_pool_indices", lambda case, given: (0, -1), IndexError),
    "pool_too_large": _entry(
        "req_pool_indices", lambda case, given: (0, given["req_to_token"].shape[0]), IndexError),
    "table_negative": _entry("req_to_token", _used(-1), IndexError),
    "table_too_large": _entry("req_to_token", _used(0), IndexError),
    "table_huge": _entry("req_to_token", _used(2**30), IndexError),
    "seq_lens_negative": _entry("seq_lens", lambda case, given: None if case.cross else (0, -1), ValueError),
    "seq_lens_too_large_for_a_window": Bad(_past_the_table_unseen, IndexError, "seq_lens"),
    "seq_lens_too_large": _entry("seq_lens", _past_the_table, IndexError, "seq_lens", "req_to_token"),
    "encoder_lens_negative": _entry("encoder_lens", lambda case, given: (0, -1), ValueError),
    "encoder_lens_too_large": _entry(
        "encoder_lens", _too_long_encoder, IndexError, "encoder_lens", "seq_lens", "req_to_token"),
    "heads": Bad(_one_head_more, ValueError, ("q", "k_cache")),
    **{f"sm_scale_{value}": _replaced("sm_scale", value, ValueError) for value in (0.0, -1.0, torch.inf, torch.nan)},
    **{f"logit_cap_{value}": _replaced("logit_cap", value, ValueError) for value in (-1.0, torch.inf, torch.nan)},
    "sink_nan": _with_sink(torch.nan),
    "sink_inf": _with_sink(torch.inf),
    "sinks_length": Bad(lambda case, given: given | {"sinks": torch.zeros(case.heads + 1)}, ValueError, "sinks"),
    "out_is_q": _aliased("out", "q"),
    "out_is_v_cache": _aliased("out", "v_cache"),
    "key_is_k_cache": _aliased("key", "k_cache"),
    "overlapping_caches": Bad(_shifted_values, ValueError, ("k_cache", "v_cache")),
    "out_overlaps_itself": Bad(_self_overlap, ValueError, "out"),
}
