"""store_cache on trial: KV rows of any bits into slots of a cache. It moves data, so everything compares bit for bit."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, POOL, READ_ONLY
from kernelpair.pair import Alias, Bad, BenchRow, Floor, Inputs, Pair, Relation, every_argument
from kernelpair.session import Session
from kernelpair.values import generator, permutation, poison
from optimized import operator
from properties.strategies import any_of, around, between, common, either, kernel_paths, together
from reference.store_cache import store_cache

DTYPES = ("bfloat16", "float16", "float32", "uint8", "float8_e4m3fn", "float8_e5m2")
ROWS = (0, 1, 2, 3, 5, 17, 133)  # 133: more rows than any thread's share of a small call
ROW_SIZES = ((1, 1), *((1, size) for size in around(16, 32, 64, 128)), (2, 32), (3, 43), (2, 64))  # (H, D)
LARGE = {"heads": 2, "width_k": 4003, "width_v": 4003}  # with 133 rows of 2 bytes an element: more than a cache keeps
WIDTHS = ((0, 0), (64, 64), (192, 128), (33, 1), (0, 5), (7, 0))  # Dk, Dv that differ; a cache of zero width
PAD = -7  # an entry to be skipped; -7 and a slot inside the cache are both tried

LAYOUTS = {
    "k": READ_ONLY,
    "v": READ_ONLY,
    "k_cache": POOL,
    "v_cache": POOL,
    "indices": ANY_STRIDES,
}
FUSED = (("k", "v"), ("k_cache", "v_cache"))


@dataclass(frozen=True, kw_only=True)
class StoreCacheCase(Case):
    """Rows [N, H, Dk] and [N, H, Dv] into P = N + spare slots."""

    rows: int = 1
    heads: int = 1
    width_k: int = 1
    width_v: int = 1
    spare: int = 0
    """Slots beyond the rows; they must stay as they are."""
    pads: tuple[int, ...] = ()
    """Rows whose index is the pad."""
    pad_in_range: bool = False
    """The pad is a slot that exists (the last one) instead of a negative number."""


@st.composite
def _sizes(draw: st.DrawFn) -> dict[str, Any]:
    heads, width = draw(any_of(*ROW_SIZES))
    if draw(between(0, 3)) < 3:
        return {"heads": heads, "width_k": width, "width_v": width}
    width_k, width_v = draw(any_of(*WIDTHS))
    return {"heads": heads if heads * width <= 64 else 1, "width_k": width_k, "width_v": width_v}


FIELDS = together({"dtype": st.sampled_from(DTYPES), **common(LAYOUTS, ["indices"], FUSED)})
SIZES = _sizes()


@st.composite
def cases(draw: st.DrawFn) -> StoreCacheCase:
    """Any rows, sizes, dtype, pads and layouts that the contract allows."""
    fields = draw(FIELDS)
    rows, sizes = draw(any_of(*ROWS[1:], *ROWS[:1]), label="rows"), draw(SIZES)
    if draw(between(0, 63), label="large") == 63:
        rows, sizes = max(ROWS), LARGE
    pads = draw(any_of("none", "some", "all"), label="pads")
    chosen = {"none": (), "some": tuple(range(0, rows, 3)), "all": tuple(range(rows))}[pads]
    spare = draw(between(0, 3), label="spare")
    in_range = pads != "none" and spare > 0 and draw(either)
    return StoreCacheCase(**fields, rows=rows, **sizes, spare=spare, pads=chosen, pad_in_range=in_range)


def _bits(case: StoreCacheCase, name: str, shape: tuple[int, ...]) -> Tensor:
    """Every bit pattern of the dtype: NaN payloads, -0 and subnormals are among them."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    width = shape[-1] * dtype.itemsize
    drawn = generator(case.seed, name).integers(0, 256, size=(*shape[:-1], width), dtype="uint8")
    return torch.from_numpy(drawn).flatten().view(dtype).reshape(shape)


def _slots(case: StoreCacheCase) -> int:
    return max(case.rows + case.spare, 1)


def _pad_slot(case: StoreCacheCase) -> int | None:
    if not case.pads:
        return None
    return _slots(case) - 1 if case.pad_in_range else PAD


def inputs(case: StoreCacheCase) -> Inputs:
    """Rows of arbitrary bits, a cache of poison, and distinct slots in any order."""
    dtype = getattr(torch, case.dtype)
    slots = _slots(case) - (1 if case.pad_in_range else 0)
    indices = permutation(case.seed, "indices", slots)[: case.rows]
    indices[list(case.pads)] = _pad_slot(case) or PAD
    k, v = (case.rows, case.heads, case.width_k), (case.rows, case.heads, case.width_v)
    return {
        "k": _bits(case, "k", k),
        "v": _bits(case, "v", v),
        "k_cache": poison(case.poison, (_slots(case), *k[1:]), dtype),
        "v_cache": poison(case.poison, (_slots(case), *v[1:]), dtype),
        "indices": indices,
        "pad_slot": _pad_slot(case),
    }


def written(case: StoreCacheCase, inputs: Inputs) -> Tensor:
    """Slots that an index other than the pad names."""
    mask = torch.zeros(_slots(case), 1, 1, dtype=torch.bool)
    live = inputs["indices"] if case.pads == () else inputs["indices"][inputs["indices"] != inputs["pad_slot"]]
    mask[live.long()] = True
    return mask


# --- relations ---


def _gathers_back(case: StoreCacheCase, session: Session) -> None:
    live = [row for row in range(case.rows) if row not in case.pads]
    given = session.inputs()
    slots = given["indices"][live]
    for name in ("k", "v"):
        session.expect_same(name, session.first.outputs[f"{name}_cache"][slots], given[name][live], "gathering the slots")


def _halves_commute(case: StoreCacheCase, session: Session) -> None:
    """Two calls with one half of the rows each, the second half first."""
    given = session.inputs()
    half = case.rows // 2
    for rows in (slice(half, None), slice(0, half)):
        part = {name: given[name][rows] for name in ("k", "v", "indices")}
        result = session.run(replace(case, layout={}), given | part, judged=False)
        given |= {name: result.outputs[name] for name in ("k_cache", "v_cache")}
    for name in ("k_cache", "v_cache"):
        session.expect_same(name, given[name], session.first.outputs[name], "two halves in the other order")


def _permuted_rows(case: StoreCacheCase, session: Session) -> None:
    given = session.inputs()
    order = permutation(case.seed, "order", case.rows)
    result = session.run(inputs=given | {name: given[name][order] for name in ("k", "v", "indices")}, judged=False)
    for name in ("k_cache", "v_cache"):
        session.expect_same(name, result.outputs[name], session.first.outputs[name], "rows in another order")


def _as_bytes(case: StoreCacheCase, session: Session) -> None:
    given = session.inputs()
    as_bytes = {name: given[name].view(torch.uint8) for name in ("k", "v", "k_cache", "v_cache")}
    result = session.run(replace(case, layout={}), given | as_bytes, judged=False)
    for name in ("k_cache", "v_cache"):
        session.expect_same(name, result.outputs[name], session.first.outputs[name].view(torch.uint8), "as bytes")


def _dense(case: StoreCacheCase, session: Session) -> None:
    given = session.inputs()
    plain = replace(case, layout={}, int32=() if case.int32 else ("indices",))
    result = session.run(plain, given, judged=False)
    for name in ("k_cache", "v_cache"):
        session.expect_same(name, result.outputs[name], session.first.outputs[name], "dense tensors, the other index dtype")


RELATIONS = {
    "gather": Relation(_gathers_back, "gathering the written slots returns the bits of k and v"),
    "commute": Relation(_halves_commute, "disjoint stores commute"),
    "permute": Relation(_permuted_rows, "the order of the rows does not matter"),
    "bytes": Relation(_as_bytes, "a byte view of any dtype stores the same bytes", lambda case: case.dtype != "uint8"),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
}


# --- wrong calls ---


def _has_rows(case: StoreCacheCase) -> bool:
    return case.rows - len(case.pads) > 0


def _with_index(value: int) -> Bad:
    def spoil(case: StoreCacheCase, given: Inputs) -> Inputs | None:
        if not _has_rows(case):
            return None
        wrong = given["indices"].clone()
        row = next(row for row in range(case.rows) if row not in case.pads)
        wrong[row] = value if value < 0 else _slots(case) + value
        return given | {"indices": wrong}

    return Bad(spoil, IndexError, "indices")


def _duplicate(case: StoreCacheCase, given: Inputs) -> Inputs | None:
    live = [row for row in range(case.rows) if row not in case.pads]
    if len(live) < 2:
        return None
    wrong = given["indices"].clone()
    wrong[live[-1]] = wrong[live[0]]
    return given | {"indices": wrong}


def _grown(name: str, dim: int, *against: str) -> Bad:
    """One more entry of `name` in one dimension; the message may name what it disagrees with instead."""

    def spoil(case: StoreCacheCase, given: Inputs) -> Inputs:
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return Bad(spoil, ValueError, (name, *against))


def _other_dtype(name: str) -> Bad:
    def spoil(case: StoreCacheCase, given: Inputs) -> Inputs:
        other = torch.float16 if case.dtype == "float32" else torch.float32
        return given | {name: torch.zeros(given[name].shape, dtype=other)}

    return Bad(spoil, TypeError, tuple(LAYOUTS)[:4])


def _transposed(name: str) -> Bad:
    def spoil(case: StoreCacheCase, given: Inputs) -> Inputs | None:
        if given[name].shape[-1] < 2 or not given[name].numel():
            return None
        wide = given[name].repeat_interleave(2, dim=-1)
        return given | {name: wide[..., ::2]}

    return Bad(spoil, ValueError, name)


def _overlap(of: str, name: str) -> Bad:
    def spoil(case: StoreCacheCase, given: Inputs) -> Inputs | None:
        first, second = given[of], given[name]
        if first.shape[1:] != second.shape[1:] or not second.numel() or len(first) < len(second):
            return None
        rows = len(second)
        return given | {name: Alias(of, lambda tensor: tensor[:rows])}

    return Bad(spoil, ValueError, (of, name))


def _self_overlap(case: StoreCacheCase, given: Inputs) -> Inputs | None:
    if _slots(case) < 2 or not given["k_cache"].numel():
        return None
    return given | {"k_cache": given["k_cache"][:1].expand(given["k_cache"].shape)}


BAD = {
    "index_negative": _with_index(-1),
    "index_too_large": _with_index(0),
    "index_huge": _with_index(2**31),
    "index_duplicate": Bad(_duplicate, ValueError, "indices"),
    "index_float": Bad(lambda case, given: given | {"indices": given["indices"].float()}, TypeError, "indices"),
    "index_length": _grown("indices", 0, "k"),
    "index_rank": Bad(lambda case, given: given | {"indices": given["indices"][None]}, ValueError, "indices"),
    "v_rows": _grown("v", 0, "k"),
    "v_heads": _grown("v", 1, "k"),
    "k_cache_heads": _grown("k_cache", 1, "k"),
    "v_cache_heads": _grown("v_cache", 1, "v"),
    "k_cache_width": _grown("k_cache", 2, "k"),
    "v_cache_width": _grown("v_cache", 2, "v"),
    "v_cache_slots": _grown("v_cache", 0, "k_cache"),
    "k_rank": Bad(lambda case, given: given | {"k": given["k"][0] if case.rows else given["k"][None]}, ValueError, "k"),
    "k_none": Bad(lambda case, given: given | {"k": None}, TypeError, "k"),
    "k_strides": _transposed("k"),
    "v_cache_strides": _transposed("v_cache"),
    "v_dtype": _other_dtype("v"),
    "k_cache_dtype": _other_dtype("k_cache"),
    "cache_overlap": _overlap("k_cache", "v_cache"),
    "source_overlap": _overlap("k_cache", "k"),
    "self_overlap": Bad(_self_overlap, ValueError, "k_cache"),
}


# --- bench ---


def _bench_inputs(rows: int) -> Inputs:
    k, v = torch.randn(2, rows, 8, 128, dtype=torch.bfloat16)
    k_cache, v_cache = torch.zeros(2, 2 * rows, 8, 128, dtype=torch.bfloat16)
    return {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "indices": torch.randperm(2 * rows)[:rows]}


def _torch_store(given: Inputs) -> Callable[[], None]:
    k, v, k_cache, v_cache, indices = given.values()

    def run() -> None:
        k_cache.index_copy_(0, indices, k)
        v_cache.index_copy_(0, indices, v)

    return run


def _memcpy(given: Inputs) -> Callable[[], None]:
    k, v, k_cache, v_cache, _ = given.values()

    def run() -> None:
        k_cache[: len(k)].copy_(k)
        v_cache[: len(v)].copy_(v)

    return run


BENCH = [
    BenchRow(
        f"{rows} x 8 x 128",
        lambda rows=rows: _bench_inputs(rows),  # type: ignore[misc]
        bytes=2 * 2 * rows * 8 * 128 * 2,
        peers={"torch": _torch_store, "memcpy": _memcpy},
        floor=Floor(0.9, over="memcpy") if rows >= 1024 else None,
        counts=rows != 1024,
    )
    for rows in (1, 64, 1024, 4096)
] + [
    BenchRow(
        "1 x 8 x 128, the raw operator",
        lambda: _bench_inputs(1),
        bytes=2 * 2 * 8 * 128 * 2,
        prepare=lambda given: partial(operator("store_cache").raw, *given.values()),
        floor=Floor(microseconds=5),
    )
]


PAIR = Pair(
    name="store_cache",
    version=1,
    case=StoreCacheCase,
    cases=cases(),
    inputs=inputs,
    reference=store_cache,
    optimized=operator("store_cache"),
    mutates={"k_cache": written, "v_cache": written},
    exact_reference=True,
    dtypes=DTYPES,
    layouts=LAYOUTS,
    fused=FUSED,
    indices=["indices"],
    relations=RELATIONS,
    paths=kernel_paths("store_"),
    bad=BAD,
    fuzz=every_argument,
    edges={
        "no rows": lambda case: case.rows == 0,
        "one slot": lambda case: _slots(case) == 1,
        "all rows are pads": lambda case: 0 < case.rows == len(case.pads),
        "some rows are pads": lambda case: 0 < len(case.pads) < case.rows,
        "pad is a slot in range": lambda case: case.pad_in_range,
        "Dk = 0": lambda case: case.width_k == 0,
        "Dv = 0": lambda case: case.width_v == 0,
        "Dk != Dv": lambda case: case.width_k != case.width_v,
        "fused caches": lambda case: case.layout.get("k_cache") == "fused" and case.width_k > 0 < case.width_v,
        "int32 indices": lambda case: "indices" in case.int32,
        **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in DTYPES},  # type: ignore[misc]
    },
    bench=BENCH,
    memory="none",
)
