"""One wrong call for each error in the contract of paged_attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.paged_attention.cases import of_four_dimensions
from properties.shared.wrong_calls import (
    INF,
    NAN,
    NEXT_TO_0,
    NO_CAPS,
    NO_SCALES,
    all_integers,
    any_column,
    any_of,
    beside_wide,
    beyond_32_bits,
    cast,
    entry,
    falling,
    grown,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    setting,
    sparse,
    with_sink,
)

FLOATS = ("q", "k_cache", "v_cache", "qv")
CACHES = ("k_cache", "v_cache")
DESCALES = ("k_descale", "v_descale")
VECTORS = ("cache_seqlens", "cu_seqlens_q")
Pick = Callable[[Any, Inputs], tuple[Any, int] | None]


def _same(case: Any) -> bool:
    return case.cache == "same"


def _float8(case: Any) -> bool:
    return case.cache != "same"


def _seen_page(case: Any) -> tuple[int, int] | None:
    """Table entry of a page that some row sees."""
    seen = []
    for b, (sq, sk) in enumerate(zip(case.rows, case.lens)):
        low = max(0, sk - sq - case.left) if case.left >= 0 else 0
        if sq and low < sk:
            seen.append((b, range(low // case.page, (sk - 1) // case.page + 1)))
    return any_column(case, seen)


def _used(value: int) -> Pick:
    def pick(case: Any, given: Inputs) -> tuple[Any, int] | None:
        where = _seen_page(case)
        return None if where is None else (where, value if value < 0 else given["k_cache"].shape[0] + value)

    return pick


def _one_of_many_pages(case: Any, given: Inputs) -> Inputs | None:
    """A request of more pages than are drawn, of which one that some row sees is none."""
    live = [b for b, rows in enumerate(case.rows) if rows]
    if not live or not len(given["k_cache"]):
        return None
    b, pages = any_of(case, live), max(given["page_table"].shape[1], 65 + case.seed // 7 % 100)
    lens, table = given["cache_seqlens"].clone(), torch.zeros(len(case.lens), pages, dtype=torch.int64)
    lens[b] = pages * case.page
    first = max(0, pages * case.page - case.rows[b] - case.left) // case.page if case.left >= 0 else 0
    table[b, first + case.seed // 5 % (pages - first)] = -1 if case.seed % 2 else len(given["k_cache"])
    return given | {"cache_seqlens": lens, "page_table": table}


def _too_many_keys(case: Any, given: Inputs) -> tuple[Any, int]:
    return any_of(case, range(len(case.lens))), given["page_table"].shape[1] * case.page + 1


def _negative_length(case: Any, given: Inputs) -> tuple[Any, int]:
    return any_of(case, range(len(case.lens))), -1


def _past_the_rows(case: Any, given: Inputs) -> tuple[Any, int]:
    return -1, given["q"].shape[0] + 1


def _one_head_more(case: Any, given: Inputs) -> Inputs | None:
    if case.kv_heads == 1:
        return None
    wide = {name: torch.cat([given[name], given[name][:, :1]], dim=1) for name in ("q", "qv") if given[name] is not None}
    of_heads = {name: given[name] for name in ("sinks", "alibi_slopes") if given[name] is not None}
    return given | wide | {name: torch.cat([value, value[:1]]) for name, value in of_heads.items()}


def _with_qv(case: Any, given: Inputs) -> Inputs | None:
    """qv beside a float8 cache or a descale."""
    if case.latent or (_same(case) and not any(case.descale)):
        return None
    return given | {"qv": torch.zeros(*given["q"].shape[:2], case.width_v, dtype=given["q"].dtype)}


def _descale_of_latent(case: Any, given: Inputs) -> Inputs | None:
    return given | {"k_descale": torch.ones(len(case.rows), case.kv_heads)} if case.latent else None


def _one_float8(name: str) -> WrongCall:
    """Only one of the caches in float8, or both in different kinds of it."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        if case.latent:
            return None
        other = torch.float8_e5m2 if case.cache == "float8_e4m3fn" else torch.float8_e4m3fn
        return given | {name: torch.zeros(given[name].shape).to(other)}

    return WrongCall(make, TypeError, CACHES)


def _descale_shape(name: str) -> WrongCall:
    def make(case: Any, given: Inputs) -> Inputs | None:
        return None if case.latent else given | {name: torch.ones(len(case.rows), case.kv_heads + 1)}

    return WrongCall(make, ValueError, name)


def _descale_dtype(name: str) -> WrongCall:
    def make(case: Any, given: Inputs) -> Inputs | None:
        return None if case.latent else given | {name: torch.ones(len(case.rows), case.kv_heads).half()}

    return WrongCall(make, TypeError, name)


def _descale_of_keys(value: float) -> WrongCall:
    """One factor of the scores, of any request and head, that is none."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        live = [b for b, (rows, keys) in enumerate(zip(case.rows, case.lens)) if rows and keys]
        if case.latent or not live:
            return None
        factors = torch.ones(len(case.rows), case.kv_heads)
        factors[any_of(case, live), any_of(case, range(case.kv_heads))] = value
        return given | {"k_descale": factors}

    return WrongCall(make, ValueError, "k_descale")


def _other_multiples(change: Callable[[Any, torch.Tensor], torch.Tensor], error: type[Exception]) -> WrongCall:
    """q of four dimensions beside offsets that are made of the multiples of its rows."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        if len(set(case.rows)) != 1:
            return None
        multiples = torch.arange(len(case.rows) + 1) * case.rows[0]
        return of_four_dimensions(case, given) | {"cu_seqlens_q": change(case, multiples)}

    return WrongCall(make, error, ("cu_seqlens_q", "q") if error is ValueError else "cu_seqlens_q")


def _one_more(case: Any, multiples: torch.Tensor) -> torch.Tensor:
    """Of one of the offsets."""
    return multiples + (torch.arange(len(multiples)) == any_of(case, range(len(multiples))))


def _slopes(make: Callable[[int], torch.Tensor], error: type[Exception]) -> WrongCall:
    """Slopes that are made for so many heads."""
    return WrongCall(lambda case, given: given | {"alibi_slopes": make(case.heads)}, error, "alibi_slopes")


def _slope_nan(case: Any, given: Inputs) -> Inputs:
    slopes = torch.zeros(case.heads)
    slopes[any_of(case, range(case.heads))] = NAN
    return given | {"alibi_slopes": slopes}


def _with_all_factors(call: WrongCall) -> WrongCall:
    """Wrong in nothing else where it gives rows or keys to a request whose factors nobody looked at."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        factors = given["k_descale"]
        good = None if factors is None else torch.where((factors > 0) & factors.isfinite(), factors, 1.0)
        return call.make(case, given | {"k_descale": good})

    return replace(call, make=make)


OF_ALL_FACTORS = {
    "q_dtype": beside_wide(other_dtype("q", *FLOATS, when=_same), "sinks"),
    "q_integer": beside_wide(cast("q", torch.int32, *FLOATS), "sinks"),
    "all_integers": beside_wide(all_integers(*FLOATS), "sinks"),
    **{f"{name}_dtype": other_dtype(name, *CACHES, when=_same) for name in CACHES},
    **{f"{name}_float8": _one_float8(name) for name in CACHES},
    "qv_dtype": other_dtype("qv", "q"),
    "qv_with_float8_or_descale": WrongCall(_with_qv, ValueError, ("qv", "k_descale", "v_descale")),
    "descale_with_qv": WrongCall(_descale_of_latent, ValueError, ("qv", "k_descale")),
    **{f"{name}_shape": _descale_shape(name) for name in ("k_descale", "v_descale")},
    **{f"{name}_dtype": _descale_dtype(name) for name in ("k_descale", "v_descale")},
    **{f"k_descale_{value}": _descale_of_keys(value) for value in (0.0, -1.0, INF, NAN)},
    "q_width": grown("q", 2, "k_cache"),
    **{f"qv_{dim}": grown("qv", dim, "q", "v_cache") for dim in range(3)},
    **{f"{name}_{dim}": grown(name, dim, *CACHES, "q", "qv", *DESCALES) for name in CACHES for dim in range(3)},
    "k_cache_3": grown("k_cache", 3, "q"),
    "no_slots": WrongCall(lambda case, given: given | {n: given[n][:, :0] for n in CACHES}, ValueError, CACHES),
    **{f"{name}_sparse": sparse(name) for name in FLOATS if name != "qv"},
    "qv_sparse": sparse("qv"),
    **{f"{name}_rank": one_rank_more(name) for name in ("k_cache", "v_cache", "page_table", *VECTORS)},
    "q_rank": WrongCall(lambda case, given: given | {"q": given["q"][None, None]}, ValueError, "q"),
    **{f"{name}_no_index": no_index(name) for name in ("page_table", *VECTORS)},
    **{f"{name}_length": grown(name, 0, "page_table", *VECTORS) for name in VECTORS},
    "page_negative": entry("page_table", _used(-1), IndexError),
    "page_too_large": entry("page_table", _used(0), IndexError),
    "page_of_many": WrongCall(_one_of_many_pages, IndexError, "page_table"),
    "page_huge": entry("page_table", _used(2**30), IndexError),
    "cache_seqlens_negative": entry("cache_seqlens", _negative_length, ValueError),
    "cache_seqlens_too_large": entry("cache_seqlens", _too_many_keys, IndexError, "cache_seqlens", "page_table"),
    "cu_seqlens_q_negative": entry("cu_seqlens_q", lambda case, given: (0, -1), ValueError),
    "cu_seqlens_q_falling": falling("cu_seqlens_q"),
    "cu_seqlens_q_too_large": entry("cu_seqlens_q", _past_the_rows, ValueError),
    "multiples_other": _other_multiples(_one_more, ValueError),
    "multiples_length": _other_multiples(lambda case, multiples: multiples[:-1], ValueError),
    "multiples_float": _other_multiples(lambda case, multiples: multiples.float(), TypeError),
    "heads": WrongCall(_one_head_more, ValueError, ("q", "k_cache")),
    **replaced_each("softmax_scale", NO_SCALES),
    **replaced_each("softcap", NO_CAPS),
    "softcap_next_to_0": made(setting(softcap=NEXT_TO_0, softmax_scale=0.5), ValueError, "softcap"),
    "window_left": replaced("window_left", -2, ValueError),
    "window_right": replaced("window_right", -2, ValueError),
    "num_splits": replaced("num_splits", -1, ValueError),
    "sink_nan": with_sink(NAN),
    "sink_inf": with_sink(INF),
    "slope_nan": WrongCall(_slope_nan, ValueError, "alibi_slopes"),
    "slope_inf": _slopes(lambda heads: torch.full((heads,), -INF), ValueError),
    "slopes_length": _slopes(lambda heads: torch.zeros(heads + 1), ValueError),
    "slopes_rank": _slopes(lambda heads: torch.zeros(1, heads), ValueError),
    "slopes_dtype": _slopes(lambda heads: torch.zeros(heads, dtype=torch.bfloat16), TypeError),
    "sinks_length": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads + 1)}, ValueError, "sinks"),
    "sinks_integer": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads).int()}, TypeError, "sinks"),
    "cache_seqlens_beyond_32_bits": beyond_32_bits("cache_seqlens", IndexError, "page_table"),
    "cu_seqlens_q_beyond_32_bits": beyond_32_bits("cu_seqlens_q", ValueError),
    "sinks_other_half": other_half("sinks"),
}
WRONG_CALLS = {name: _with_all_factors(call) for name, call in OF_ALL_FACTORS.items()}
