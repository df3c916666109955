"""What else holds for paged_attention, beyond equality with its reference."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.modes import MANY
from kernelpair.trial.session import JudgedCall, Session
from properties.paged_attention.cases import EMULATED_WORK, of_four_dimensions, rows_of_each, score_width, seen_keys
from properties.shared.attention_values import extreme, loses
from properties.shared.many_cores import cuts
from properties.shared.renaming import new_names, renamed
from properties.shared.wrong_calls import any_of
from reference.extend_attention import extend_attention
from reference.paged_attention import paged_attention

OTHER_PAGE = {1: 16, 2: 3, 3: 1, 16: 64, 64: 2, 128: 16}
OTHER_SPLITS = {0: 3, 1: 2, 2: 1, 3: 8, 7: 0, 100: 1}
MOST_PAGES = 3000  # of one request: no more keys than that are asked for
REQUEST_ARGUMENTS = ("page_table", "cache_seqlens", "k_descale", "v_descale")
BIG = 1000.0  # a value that shows wherever its key has any weight


def _plain(case: Any) -> Any:
    """The case without layouts: for calls whose tensors are built by a relation."""
    return replace(case, layout={})


def _rows(given: Inputs) -> slice:
    """The rows that belong to a request."""
    return slice(int(given["cu_seqlens_q"][0]), int(given["cu_seqlens_q"][-1]))


def _close(session: Session, got: Tensor, rows: Any, says: str, of: JudgedCall | None = None) -> None:
    """Both, this and the rows `of` a call or of the first, are within one bound of the truth, so within two of each other."""
    known = of or session.first
    tolerance = known.bound["out"]
    assert isinstance(tolerance, Tensor)
    session.expect_close("out", got, known.outputs["out"][rows], 2 * tolerance[rows], says)


def _slots(given: Inputs) -> Tensor:
    """[B, longest] flat slot of each key; whatever the table holds where nobody looks."""
    page = given["k_cache"].shape[1]
    longest = max(given["cache_seqlens"].tolist(), default=0)
    j = torch.arange(longest)
    return given["page_table"].long()[:, j // page] * page + j % page


def _paged_anew(case: Any, session: Session) -> None:
    """The same keys in pages of another size."""
    given = session.inputs()
    page, lens = OTHER_PAGE.get(case.page, case.page // 2 or 2), case.lens
    columns = [math.ceil(n / page) for n in lens]
    flat = {name: given[name].flatten(0, 1) for name in ("k_cache", "v_cache")}
    table = torch.zeros(len(lens), max(columns, default=0) + 1, dtype=torch.int64)
    source = torch.zeros(sum(columns) * page, dtype=torch.int64)
    slots = _slots(given)
    for b, n in enumerate(lens):
        first = sum(columns[:b])
        table[b, : columns[b]] = torch.arange(first, first + columns[b])
        source[first * page : first * page + n] = slots[b, :n].clamp(0, len(flat["k_cache"]) - 1)
    again = {name: cache[source].unflatten(0, (sum(columns), page)) for name, cache in flat.items()}
    other = session.run(_plain(case), given | again | {"page_table": table}, judged=False)
    _close(session, other.outputs["out"], slice(None), f"pages of {page}")


def _renamed(case: Any, session: Session) -> None:
    given = session.inputs()
    order, names = new_names(case.seed, len(given["k_cache"]))
    moved = {name: given[name][order] for name in ("k_cache", "v_cache")}
    moved["page_table"] = renamed(given["page_table"], names)
    other = session.run(_plain(case), given | moved, judged=False)
    _close(session, other.outputs["out"], slice(None), "pages renamed")


def _splits(case: Any, session: Session) -> None:
    splits = OTHER_SPLITS[case.splits]
    other = session.run(_plain(case), session.inputs() | {"num_splits": splits}, judged=False)
    _close(session, other.outputs["out"], slice(None), f"{splits} splits")


def _full_pages(case: Any, b: int) -> range:
    """Columns of the table in which some row of request b sees every key."""
    seen = seen_keys(case, b)
    return range(-(-seen.start // case.page), seen.stop // case.page)


def _on_many_cores(case: Any, session: Session) -> None:
    """The last row of a request alone, each full page of it many times, a query head for each kv head, cut as for a server; over
    caches of no other pages."""
    b = max(range(len(case.rows)), key=lambda b: len(_full_pages(case, b)))
    given, full = _request(session.inputs(), b), _full_pages(case, b)
    row, pages = int(given["cu_seqlens_q"][b + 1]) - 1, given["page_table"][0, full.start : full.stop][:MOST_PAGES]
    given |= {"cu_seqlens_q": torch.tensor([0, 1]), "window_left": -1, "num_splits": 0}
    for heads, most, threads in cuts(case.seed):
        keys = min(most, EMULATED_WORK // (heads * score_width(case)))
        columns = keys // case.page + 1
        alone = {"page_table": torch.arange(columns)[None] * len(pages) // columns, "cache_seqlens": torch.tensor([keys])}
        of_keys = torch.arange(heads) % case.kv_heads  # the case's own, in turn
        of_queries = of_keys * (case.heads // case.kv_heads)
        alone |= {name: given[name][pages][:, :, of_keys] for name in ("k_cache", "v_cache")}
        alone |= {name: given[name][:, of_keys] for name in ("k_descale", "v_descale") if given[name] is not None}
        alone |= {name: given[name][row : row + 1, of_queries] for name in ("q", "qv") if given[name] is not None}
        alone |= {name: given[name][of_queries] for name in ("sinks", "alibi_slopes") if given[name] is not None}
        one = replace(case, layout={}, heads=heads, kv_heads=heads, splits=MANY)
        says = f"{heads} heads over {keys} keys, {threads} threads"
        cut = session.run(one, given | alone, threads, says)
        whole = session.run(one, given | alone | {"num_splits": 1}, judged=False)
        _close(session, whole.outputs["out"], slice(None), f"{says}, and in one split", of=cut)


def _extend(case: Any, session: Session) -> None:
    """The reference of extend_attention in float64 over the same slots: causal with W = left + 1, or as cross attention."""
    given = session.inputs()
    slots, lens = _slots(given), given["cache_seqlens"].long()
    offsets = given["cu_seqlens_q"].long()
    rows = offsets[1:] - offsets[:-1]
    caches = [given[name].flatten(0, 1).double() for name in ("k_cache", "v_cache")]
    fresh = [torch.zeros(len(given["q"]), *cache.shape[1:], dtype=torch.float64) for cache in caches]
    for b in range(len(lens)):
        if case.causal:
            new = slots[b, int(lens[b] - rows[b]) : int(lens[b])]
            for cache, tensor in zip(caches, fresh):
                tensor[int(offsets[b]) : int(offsets[b + 1])] = cache[new]
    out = torch.zeros_like(session.first.truth["out"])
    extend_attention(
        given["q"].double(), fresh[0], fresh[1], out, caches[0], caches[1], slots, torch.arange(len(lens)),
        lens if case.causal else rows, rows, offsets[:-1], None if case.causal else lens,
        None if given["sinks"] is None else given["sinks"].double(),
        given["softmax_scale"] or given["q"].shape[2] ** -0.5, case.cap, min(case.left, 2**40) + 1, not case.causal,
    )
    tolerance, live = session.first.bound["out"], _rows(given)
    assert isinstance(tolerance, Tensor)
    got = session.first.outputs["out"]
    session.expect_close("out", got[live], out[live], tolerance[live], "extend_attention over the same keys")


def _scaled_before(case: Any, session: Session) -> None:
    """Keys and values multiplied by their descales beforehand."""
    given = session.inputs()
    scaled = {"k_cache": given["k_cache"].float(), "v_cache": given["v_cache"].float()}
    page = case.page
    for name in ("k", "v"):
        if given[f"{name}_descale"] is not None:
            cache = scaled[f"{name}_cache"]
            for b, n in enumerate(case.lens):
                for column in range(math.ceil(n / page)):
                    at = int(given["page_table"][b, column])
                    if 0 <= at < len(cache):
                        cache[at] *= given[f"{name}_descale"][b][:, None]
    again = given | scaled | {"k_descale": None, "v_descale": None}
    other = session.run(_plain(case), again, judged=False)
    _close(session, other.outputs["out"], slice(None), "descales applied beforehand")


def _chunked(case: Any, session: Session) -> None:
    """The first rows with the keys that they see, then the others."""
    given = session.inputs()
    offsets, lens = given["cu_seqlens_q"].long(), given["cache_seqlens"].long()
    rows = offsets[1:] - offsets[:-1]
    first = rows // 2
    got = session.first.outputs["out"].clone()
    for part, count, behind in (("first", first, rows - first), ("second", rows - first, torch.zeros_like(rows))):
        start = offsets[:-1] + (0 if part == "first" else first)
        index = torch.cat([torch.arange(int(s), int(s + n)) for s, n in zip(start, count)] + [torch.empty(0).long()])
        cu = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
        call = {"q": given["q"][index], "qv": None if given["qv"] is None else given["qv"][index], "cu_seqlens_q": cu}
        call["cache_seqlens"] = (lens - behind).clamp_min(0)
        got[index] = session.run(_plain(case), given | call, judged=False).outputs["out"]
    _close(session, got, slice(None), "two calls, the second with the first one's keys")


def _one_column_more(case: Any, session: Session) -> None:
    """The reference in float64 with the slope as one more column of q and the key's number as one of k: the same scores, but for
    what is common to all of a row's."""
    given = session.inputs()
    exact: dict[str, Any] = {name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
             for name, value in given.items()}
    numbers = torch.zeros(*given["k_cache"].shape[:2], dtype=torch.float64).flatten()
    slots = _slots(given)
    for b, n in enumerate(case.lens):
        seen = seen_keys(case, b)
        if len(seen):  # else its pages may be any numbers
            numbers[slots[b, seen.start : n]] = torch.arange(seen.start, n, dtype=torch.float64)
    scale = given["softmax_scale"] or (case.width + (case.width_v if case.latent else 0)) ** -0.5
    column = (exact["alibi_slopes"] / scale)[None, :, None].expand(len(given["q"]), -1, 1)
    exact["q"] = torch.cat([exact["q"], column], dim=-1)
    numbers = numbers.view(*given["k_cache"].shape[:2], 1, 1).expand(-1, -1, case.kv_heads, 1)
    exact["k_cache"] = torch.cat([exact["k_cache"], numbers], dim=-1)
    want = paged_attention(**exact | {"alibi_slopes": None, "softmax_scale": scale})
    tolerance, live = session.first.bound["out"], _rows(given)
    assert isinstance(tolerance, Tensor)
    got = session.first.outputs["out"]
    session.expect_close("out", got[live], want[live], tolerance[live], "slopes as one more column of q and k")


def _influence(case: Any, session: Session) -> None:
    """Other content of the last key of each request: only rows that see it change."""
    given = session.inputs()
    plain = session.run(_plain(case), given, judged=False).outputs["out"]
    moved = given | {"v_cache": given["v_cache"].clone()}
    slots = _slots(given)
    right = 0 if case.causal else case.right
    same = torch.ones(len(given["q"]), dtype=torch.bool)
    for b, (sq, sk) in enumerate(zip(case.rows, case.lens)):
        if sq and sk:
            at = int(slots[b, sk - 1])
            moved["v_cache"][at // case.page, at % case.page] = BIG
            end = int(given["cu_seqlens_q"][b + 1])
            same[end - (min(sq, right + 1) if right >= 0 else sq) : end] = False
    other = session.run(_plain(case), moved, judged=False).outputs["out"]
    session.expect_same("out", other[same], plain[same], "the last key is another one, these rows may not see it")
    factors = torch.ones(len(case.rows), 1) if given["v_descale"] is None else given["v_descale"]
    seen = [b for b, (sq, sk) in enumerate(zip(case.rows, case.lens)) if sq and sk and factors[b].any()]
    lasts = [int(given["cu_seqlens_q"][b + 1]) - 1 for b in seen]
    if case.dtype == "float32" and case.spread <= 1 and case.values == "random" and case.size <= 1 and not loses(case):
        changed = (other[lasts] != plain[lasts]).flatten(1).any(dim=1)
        session.expect(bool(changed.all()), "out", "the last key has an influence on the last row")


def _request(given: Inputs, b: int) -> Inputs:
    """What belongs to one request, without its rows."""
    return given | {n: given[n][b : b + 1] for n in REQUEST_ARGUMENTS if given[n] is not None}


def _one_by_one(case: Any, session: Session) -> None:
    """Each request alone."""
    given = session.inputs()
    offsets = given["cu_seqlens_q"].tolist()
    for b in range(len(case.rows)):
        rows = slice(offsets[b], offsets[b + 1])
        alone = _request(given, b)
        alone |= {"q": given["q"][rows], "qv": None if given["qv"] is None else given["qv"][rows]}
        alone["cu_seqlens_q"] = torch.tensor([0, case.rows[b]])
        _close(session, session.run(_plain(case), alone, judged=False).outputs["out"], rows, f"request {b} alone")


def _padded(case: Any, session: Session) -> None:
    """Two requests more, as a batch is filled up that was captured for them: one without rows, one without keys, whose rows hold
    NaN and become 0."""
    given = session.inputs()
    end, rows = int(given["cu_seqlens_q"][-1]), 2
    batched = {name: given[name] for name in REQUEST_ARGUMENTS if given[name] is not None}
    padded = given | {name: torch.cat([v, v.new_zeros(2, *v.shape[1:])]) for name, v in batched.items()}
    padded["cache_seqlens"][-2] = min(1, given["page_table"].shape[1])
    padded["cu_seqlens_q"] = torch.cat([given["cu_seqlens_q"].long(), torch.tensor([end, end + rows])])
    for name in ("q", "qv"):
        if given[name] is not None:
            fresh = given[name].new_full((rows, *given[name].shape[1:]), torch.nan)
            padded[name] = torch.cat([given[name][:end], fresh, given[name][end:]])
    got = session.run(_plain(case), padded, judged=False).outputs["out"]
    says = "two padded requests more"
    _close(session, torch.cat([got[:end], got[end + rows :]]), slice(None), says)
    session.expect_same("out", got[end : end + rows], torch.zeros_like(got[end : end + rows]), f"{says}: their rows")


def _reordered(case: Any, session: Session) -> None:
    given = session.inputs()
    offsets, order = given["cu_seqlens_q"].tolist(), permutation(case.seed, "reorder", len(case.rows))
    index = torch.cat([torch.arange(offsets[b], offsets[b + 1]) for b in order.tolist()])
    other = given | {n: given[n][order] for n in REQUEST_ARGUMENTS if given[n] is not None}
    other |= {"q": given["q"][index], "qv": None if given["qv"] is None else given["qv"][index]}
    other["cu_seqlens_q"] = torch.tensor([0, *(case.rows[b] for b in order.tolist())]).cumsum(0)
    _close(session, session.run(_plain(case), other, judged=False).outputs["out"], index, "requests in another order")


def _other_layout(case: Any, session: Session) -> None:
    names = () if case.int32 else ("page_table", "cache_seqlens")
    layout = {} if "q" in case.layout else {"q": "swapped"}
    other = session.run(replace(case, layout=layout, int32=names), session.inputs(), judged=False, fakes=True)
    _close(session, other.outputs["out"], slice(None), "other strides, other index dtypes")


def _repeated_heads(case: Any, session: Session) -> None:
    given = session.inputs()
    repeats = case.heads // case.kv_heads
    wide = {name: given[name].repeat_interleave(repeats, dim=2) for name in ("k_cache", "v_cache")}
    wide |= {n: given[n].repeat_interleave(repeats, dim=1) for n in ("k_descale", "v_descale") if given[n] is not None}
    other = session.run(_plain(case), given | wide, judged=False)
    _close(session, other.outputs["out"], slice(None), "a kv head for each query head")


def _equal_rows(case: Any, session: Session) -> None:
    """q as [B, S, H, D] with the multiples of S or none, its requests next to each other or a row apart, and cache_seqlens as an
    int where all are equal, also of nobody. A request that is alone comes twice."""
    given, copies = session.inputs(), 2 if len(case.rows) == 1 else 1
    batch, rows, given = len(case.rows) * copies, _rows(given), of_four_dimensions(case, given)
    multiples = torch.arange(batch + 1) * rows_of_each(case)
    given |= {name: torch.cat([given[name]] * copies) for name in ("q", "qv", *REQUEST_ARGUMENTS) if given[name] is not None}
    given["cu_seqlens_q"] = multiples if case.seed % 2 else None
    if len(set(case.lens)) == 1:
        given["cache_seqlens"] = case.lens[0]
    for name in ("q", "qv") if case.seed // 2 % 2 else ():
        if given[name] is not None:
            given[name] = torch.cat([given[name], given[name][:, :1]], dim=1)[:, :-1]
    other = session.run(_plain(case), given, judged=False, keep_strides=True)
    for several in other.outputs["out"].flatten(0, 1).chunk(copies):
        _close(session, several, rows, "queries of four dimensions")
    nobody = {name: given[name][:0] for name in ("q", "qv", "page_table", "k_descale", "v_descale") if given[name] is not None}
    nobody |= {"cache_seqlens": torch.zeros(0, dtype=torch.int64), "cu_seqlens_q": multiples[:1]}
    session.run(_plain(case), given | nobody, note="queries of four dimensions of no request")
    session.run(_plain(case), given | nobody | {"cache_seqlens": 0}, judged=False)


def _nan_code(case: Any, session: Session) -> None:
    """The last key of a request, which its last row sees, or the value, is NaN in one element of one head: in the call as it is,
    and for this row alone."""
    given = session.inputs()
    b = any_of(case, [b for b, (rows, keys) in enumerate(zip(case.rows, case.lens)) if rows and keys])
    page, slot = divmod(case.lens[b] - 1, case.page)
    name, head = ("k_cache", "v_cache")[case.seed % 2], case.seed // 2 % case.kv_heads
    cache = given[name].clone()
    element = case.seed // 4 % cache.shape[3]
    place = int(given["page_table"][b, page]), slot, head, element
    cache.view(torch.uint8)[place] = 0x7F + 0x80 * (case.seed // 8 % 2)
    out = session.run(_plain(case), given | {name: cache}, judged=False).outputs["out"]
    row, group = int(given["cu_seqlens_q"][b + 1]) - 1, case.heads // case.kv_heads
    alone = _request(given, b) | {name: cache, "q": given["q"][row][None], "cu_seqlens_q": torch.tensor([0, 1])}
    for result in (out[row], session.run(_plain(case), alone, judged=False).outputs["out"][0]):
        reached = result[head * group : (head + 1) * group]
        reached = reached[:, element] if name == "v_cache" else reached
        session.expect(bool(reached.isnan().all()), "out", "a NaN code of a key that the row sees is NaN")
    others = torch.ones(len(out), dtype=torch.bool)
    others[int(given["cu_seqlens_q"][b]) : row + 1] = False
    session.expect(not bool(out[others].isnan().any()), "out", "a NaN code stays with its request")


def _slot_form(case: Any) -> bool:
    """Whether extend_attention has the same meaning."""
    right = 0 if case.causal else case.right
    plain = case.cache == "same" and not case.latent and case.descale == (False, False) and bool(case.rows)
    plain = plain and not case.alibi
    causal = case.causal and all(q <= k for q, k in zip(case.rows, case.lens))
    return plain and (causal or (not case.causal and case.left == right == -1))


RELATIONS = {
    "page": Relation(_paged_anew, "the page size does not matter", lambda case: bool(case.rows)),
    "rename": Relation(_renamed, "renaming pages changes nothing", lambda case: bool(case.rows)),
    # A merge of splits rounds once more, so the exact mean of equal scores is one split's alone.
    "splits": Relation(_splits, "the number of splits does not matter", lambda case: case.values != "equal"),
    "cores": Relation(
        _on_many_cores, "cut as for the cores of a server, the result stays within the bound",
        lambda case: case.values == "random" and not extreme(case) and not loses(case)
        and any(len(_full_pages(case, b)) > 1 for b in range(len(case.rows))),
        opens=True,
    ),
    "extend": Relation(_extend, "equals extend_attention over the same keys, causal or cross", _slot_form),
    "scaled": Relation(
        _scaled_before, "descales equal keys and values scaled beforehand",
        lambda case: case.dtype == "float32" and any(case.descale) and not case.layout,
    ),
    "column": Relation(
        _one_column_more, "slopes equal one more column of q and k",
        lambda case: case.alibi and case.sinks == "none" and not case.cap and case.cache == "same" and not any(case.descale),
    ),
    "chunked": Relation(_chunked, "causal rows in two calls", lambda case: case.causal and any(q > 1 for q in case.rows)),
    "influence": Relation(
        _influence, "only rows that see a key depend on it", lambda case: case.cache == "same" and not case.latent,
    ),
    "alone": Relation(_one_by_one, "a batch equals separate calls", lambda case: 1 < len(case.rows) <= 4),
    "pads": Relation(_padded, "padded requests change nothing"),
    "order": Relation(_reordered, "permuting requests permutes results", lambda case: len(case.rows) > 1),
    "layout": Relation(_other_layout, "layout and index dtype do not matter"),
    "heads": Relation(
        _repeated_heads, "GQA equals MHA over repeated heads", lambda case: bool(case.rows) and case.kv_heads < case.heads,
    ),
    "equal": Relation(_equal_rows, "q may have four dimensions, cache_seqlens be one int", lambda case: len(set(case.rows)) < 2),
    "nan": Relation(
        _nan_code, "a NaN code of a key or value reaches the rows that see it, and no other request",
        lambda case: case.cache != "same" and any(q and k for q, k in zip(case.rows, case.lens)),
    ),
}
