"""store_cache: what holds between calls."""

from dataclasses import replace

import torch

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Relation
from kernelpair.trial.session import Session
from properties.shared.pads import other_dtypes
from properties.store_cache.cases import StoreCacheCase

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
    plain = replace(case, layout={}, int32=other_dtypes(case, ("indices",), given["pad_slot"]))
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
