"""What else holds for extend_attention, beyond equality with its reference."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.shared.attention_values import extreme
from properties.shared.renaming import new_names, renamed
from reference.decode_attention import decode_attention

REQUEST_ARGUMENTS = ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc", "encoder_lens")
BIG = 1000.0  # a value that shows wherever its key has any weight


def _plain(case: Any) -> Any:
    """The case without layouts: for calls whose tensors are built by a relation."""
    return replace(case, layout={})


def _requests(given: Inputs, chosen: Tensor) -> Inputs:
    """The call for some of the requests, in this order."""
    return {n: v[chosen] if n in REQUEST_ARGUMENTS and isinstance(v, Tensor) else v for n, v in given.items()}


def _rows(given: Inputs) -> Tensor:
    """Rows of the requests of this call."""
    spans = zip(given["extend_start_loc"].tolist(), given["extend_seq_lens"].tolist())
    return torch.tensor([row for start, extend in spans for row in range(start, start + extend)], dtype=torch.int64)


def _close(session: Session, got: Tensor, rows: Tensor, says: str) -> None:
    """Both are within one bound of the truth, so within two of each other."""
    tolerance = session.first.bound["out"]
    assert isinstance(tolerance, Tensor)
    session.expect_close("out", got[rows], session.first.outputs["out"][rows], 2 * tolerance[rows], says)


def _chunked(case: Any, session: Session) -> None:
    """The first half of each request's new tokens, then the rest with that half in the cache."""
    given = session.inputs()
    lens, extends, starts = (given[name].long() for name in ("seq_lens", "extend_seq_lens", "extend_start_loc"))
    half = (extends + 1) // 2
    first = session.run(_plain(case), given | {"seq_lens": lens - extends + half, "extend_seq_lens": half}, judged=False)
    caches = [given["k_cache"], given["v_cache"]]
    if case.foreign_cache:
        caches = [given["k"][:0], given["v"][:0]]
    slots = len(caches[0])
    table = given["req_to_token"].clone()
    off = torch.zeros_like(lens) if given["encoder_lens"] is None else given["encoder_lens"].long()
    for b in range(len(lens)):
        column = int(off[b] + lens[b] - extends[b])
        cached = torch.arange(slots + int(starts[b]), slots + int(starts[b] + half[b]))
        table[given["req_pool_indices"].long()[b], column : column + int(half[b])] = cached.to(table.dtype)
    again = given | {
        "k_cache": torch.cat([caches[0], given["k"]]), "v_cache": torch.cat([caches[1], given["v"]]),
        "req_to_token": table, "extend_seq_lens": extends - half, "extend_start_loc": starts + half,
        "out": first.outputs["out"],
    }
    second = session.run(replace(_plain(case), foreign_cache=False), again, judged=False)
    _close(session, second.outputs["out"], _rows(given), "two extends, the first part cached")


def _decode(case: Any, session: Session) -> None:
    """The last token of each request against the reference of decode_attention in float64."""
    given = session.inputs()
    lens, extends, starts = (given[name].long() for name in ("seq_lens", "extend_seq_lens", "extend_start_loc"))
    live = (extends > 0).nonzero()[:, 0]
    last = (starts + extends - 1)[live]
    caches = {name: given[name].double() for name in ("k_cache", "v_cache")}
    if case.foreign_cache:
        caches = {"k_cache": given["k"][:0].double(), "v_cache": given["v"][:0].double()}
    slots, table = len(caches["k_cache"]), given["req_to_token"].long().clone()
    rows = torch.full((len(lens), table.shape[1]), 0, dtype=torch.int64)
    for b in range(len(lens)):
        off = int(given["encoder_lens"][b]) if given["encoder_lens"] is not None and not case.cross else 0
        rows[b] = table[given["req_pool_indices"].long()[b]]
        if not case.cross:
            end = off + int(lens[b])
            rows[b, end - int(extends[b]) : end] = torch.arange(slots + int(starts[b]), slots + int(starts[b] + extends[b]))
    if not case.cross:
        caches = {name: torch.cat([caches[name], given[name[0]].double()]) for name in caches}
    H, Dv = given["q"].shape[1], caches["v_cache"].shape[2]
    out = torch.zeros(len(live), H, Dv, dtype=torch.float64)
    decode_attention(
        given["q"][last].double(), caches["k_cache"], caches["v_cache"], out, None, None, None,
        torch.zeros(len(live), H, 1, Dv + 1), rows, live, lens[live],
        None if given["encoder_lens"] is None else given["encoder_lens"][live],
        None if given["sinks"] is None else given["sinks"].double(), given["sm_scale"], given["logit_cap"],
        given["sliding_window"], given["is_cross_attn"],
    )
    tolerance = session.first.bound["out"]
    assert isinstance(tolerance, Tensor)
    session.expect_close("out", session.first.outputs["out"][last], out, tolerance[last], "decode_attention of the last token")


def _influence(case: Any, session: Session) -> None:
    """Another key x: rows in front of it, and rows from x + W on, keep their bits; row x and row x + W - 1 do not, unless its raw
    score is -inf."""
    given = session.inputs()
    plain = session.run(_plain(case), given, judged=False).outputs["out"]
    moved = given | {"k": given["k"].clone(), "v": given["v"].clone()}
    same = torch.ones(len(given["q"]), dtype=torch.bool)
    edges = []
    for start, extend in zip(given["extend_start_loc"].tolist(), given["extend_seq_lens"].tolist()):
        if extend:
            x = int(permutation(case.seed, "influence", extend)[0])
            end = min(x + case.window, extend) if case.window > 0 else extend
            moved["v"][start + x] = BIG
            same[start + x : start + end] = False
            if bool(torch.isfinite(given["k"][start + x]).all()):
                edges += [start + x, start + end - 1]
    other = session.run(_plain(case), moved, judged=False).outputs["out"]
    session.expect_same("out", other[same], plain[same], "a key that these rows may not see is another one")
    small = case.spread <= 1 and case.size <= 1 and extreme(case) != "large"  # of large ones one near 0 drowns
    if case.dtype == "float32" and case.values == "random" and small:
        changed = (other[edges] != plain[edges]).flatten(1).any(dim=1)
        session.expect(bool(changed.all()), "out", "a key has an influence on the first and on the last row that sees it")


def _one_by_one(case: Any, session: Session) -> None:
    """Each request alone, the tokens of the others NaN."""
    given = session.inputs()
    for b in range(len(case.extends)):
        alone = _requests(given, torch.tensor([b]))
        rows = _rows(alone)
        for name in ("q", "k", "v"):
            if isinstance(given[name], Tensor):
                alone[name] = torch.full_like(given[name], torch.nan)
                alone[name][rows] = given[name][rows]
        _close(session, session.run(_plain(case), alone, judged=False).outputs["out"], rows, f"request {b} alone")


def _padded(case: Any, session: Session) -> None:
    """Requests without new tokens, as a batch is filled up that was captured for more: no live row changes."""
    given = session.inputs()
    filled = {name: 0 for name in REQUEST_ARGUMENTS} | {"seq_lens": min(1, given["req_to_token"].shape[1])}
    padded = given | {
        name: torch.cat([torch.tensor([value]), given[name].long(), torch.tensor([value])])
        for name, value in filled.items() if given[name] is not None
    }
    before = session.run(_plain(case), given, judged=False).outputs["out"]
    after = session.run_moved(_plain(case), padded).outputs["out"]
    session.expect_moved("out", after[_rows(given)], before[_rows(given)], "padded requests at both ends")


def _reordered(case: Any, session: Session) -> None:
    given = session.inputs()
    other = session.run(_plain(case), _requests(given, permutation(case.seed, "reorder", len(case.extends))), judged=False)
    _close(session, other.outputs["out"], _rows(given), "requests in another order")


def _relabelled(case: Any, session: Session) -> None:
    """Slots renamed: the caches permuted, the table with them."""
    given = session.inputs()
    order, names = new_names(case.seed, len(given["k_cache"]))
    moved = {name: given[name][order] for name in ("k_cache", "v_cache")}
    moved["req_to_token"] = renamed(given["req_to_token"], names)
    other = session.run(_plain(case), given | moved, judged=False)
    _close(session, other.outputs["out"], _rows(given), "slots renamed")


def _dense(case: Any, session: Session) -> None:
    names = () if case.int32 else ("req_to_token", "seq_lens", "extend_start_loc")
    given = session.inputs()
    other = session.run(replace(case, layout={}, int32=names), given, judged=False)
    _close(session, other.outputs["out"], _rows(given), "dense tensors, other index dtypes")


def _repeated_heads(case: Any, session: Session) -> None:
    given = session.inputs()
    names = [n for n in ("k_cache", "v_cache", "k", "v") if isinstance(given[n], Tensor)]
    wide = {name: given[name].repeat_interleave(case.heads // case.kv_heads, dim=1) for name in names}
    other = session.run(_plain(case), given | wide, judged=False)
    _close(session, other.outputs["out"], _rows(given), "a kv head for each query head")


def _cross_ignores(case: Any, session: Session) -> None:
    given = session.inputs()
    extends = given["extend_seq_lens"]
    changed = {"sliding_window": 3, "seq_lens": extends + 1, "k": None, "v": None}
    other = session.run_moved(case, given | changed)  # lengths may say how the work is cut
    says = "cross attention with another window, other seq_lens, no k and v"
    session.expect_moved("out", other.outputs["out"][_rows(given)], session.first.outputs["out"][_rows(given)], says)


def _constant(case: Any, session: Session) -> None:
    """4 added to every value (whole numbers, so that nothing is rounded) is added to the result of rows that see a key."""
    given = session.inputs()
    rows = _rows(given)
    if case.cross:
        lens = [n for n, e in zip(case.encoder, case.extends) for _ in range(e)]
        rows = rows[torch.tensor(lens, dtype=torch.int64) > 0]
    shifted = given | {n: given[n] + 4 for n in ("v", "v_cache") if isinstance(given[n], Tensor)}
    other = session.run(_plain(case), shifted, note="4 added to every value")
    first, second = session.first, other
    tolerance = first.bound_of("out") + second.bound_of("out")
    session.expect_close("out", second.outputs["out"][rows].double() - 4, first.outputs["out"][rows], tolerance[rows],
                         "a constant added to every value")


def _self(case: Any) -> bool:
    return bool(case.extends) and not case.cross


RELATIONS = {
    "chunked": Relation(
        _chunked, "one extend equals two with the first part cached", lambda case: _self(case) and not case.same_row,
    ),
    "decode": Relation(_decode, "the last token equals decode_attention", lambda case: any(case.extends)),
    "influence": Relation(_influence, "only rows that see a key depend on it", lambda case: _self(case) and case.heads > 0),
    "alone": Relation(_one_by_one, "a batch equals separate calls", lambda case: 1 < len(case.extends) <= 4),
    "pads": Relation(_padded, "padded requests change nothing", lambda case: bool(case.extends)),
    "order": Relation(_reordered, "permuting requests changes nothing", lambda case: len(case.extends) > 1),
    "rename": Relation(_relabelled, "renaming slots changes nothing", lambda case: any(case.prefixes) and not case.foreign_cache),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
    "heads": Relation(
        _repeated_heads, "GQA equals MHA over repeated heads",
        lambda case: bool(case.extends) and case.kv_heads < case.heads and not case.foreign_cache,
    ),
    "cross": Relation(_cross_ignores, "cross attention ignores window, seq_lens, k and v", lambda case: case.cross),
    "constant": Relation(
        _constant, "a constant added to every value is added to the result",
        lambda case: bool(case.extends) and case.values != "random" and not case.foreign_cache,
    ),
}
