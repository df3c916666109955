"""What else holds for flash_attn_varlen, beyond equality with its reference."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.flash_attn_varlen.cases import is_causal, position
from properties.shared.attention_values import loses
from reference.paged_attention import paged_attention

BIG = 1000.0  # a value that shows wherever its key has any weight


def _plain(case: Any) -> Any:
    """The case without layouts: for calls whose tensors are built by a relation."""
    return replace(case, layout={})


def _spans(given: Inputs, of: str) -> list[slice]:
    """Each request's rows, or its keys."""
    offsets = given[f"cu_seqlens_{of}"].tolist()
    return [slice(start, end) for start, end in pairwise(offsets)]


def _offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _close(session: Session, got: Tensor, rows: Any, says: str) -> None:
    """Both are within one bound of the truth, so within two of each other."""
    tolerance = session.first.bound["out"]
    assert isinstance(tolerance, Tensor)
    session.expect_close("out", got, session.first.outputs["out"][rows], 2 * tolerance[rows], says)


def _requests(given: Inputs, chosen: list[int]) -> tuple[Inputs, Tensor]:
    """The call for some of the requests, in this order, and which rows of the first call it has."""
    rows, keys = ([_spans(given, of)[b] for b in chosen] for of in "qk")
    index, of_k = (torch.cat([torch.arange(s.start, s.stop) for s in spans]).long() for spans in (rows, keys))
    call = given | {"q": given["q"][index], "k": given["k"][of_k], "v": given["v"][of_k]}
    call["cu_seqlens_q"] = _offsets([s.stop - s.start for s in rows])
    call["cu_seqlens_k"] = _offsets([s.stop - s.start for s in keys])
    if given["causal_requests"] is not None:
        call["causal_requests"] = given["causal_requests"][chosen]
    return call, index


def _one_by_one(case: Any, session: Session) -> None:
    """Each request alone; what the flags say of it is then said of the whole call."""
    given = session.inputs()
    for b in range(len(case.rows)):
        call, index = _requests(given, [b])
        alone = call | {"causal": is_causal(case, b), "causal_requests": None}
        _close(session, session.run(_plain(case), alone, judged=False).outputs["out"], index, f"request {b} alone")


def _reordered(case: Any, session: Session) -> None:
    call, index = _requests(session.inputs(), permutation(case.seed, "reorder", len(case.rows)).tolist())
    _close(session, session.run(_plain(case), call, judged=False).outputs["out"], index, "requests in another order")


def _paged(case: Any, session: Session) -> None:
    """The reference of paged_attention in float64 over the same keys as pages of one slot, request by request."""
    given = session.inputs()
    tolerance = session.first.bound["out"]
    assert isinstance(tolerance, Tensor)
    for b, (rows, keys) in enumerate(zip(_spans(given, "q"), _spans(given, "k"))):
        found = paged_attention(
            given["q"][rows].double(), given["k"][keys].double()[:, None], given["v"][keys].double()[:, None],
            torch.arange(case.lens[b])[None], torch.tensor([case.lens[b]]), torch.tensor([0, case.rows[b]]),
            sinks=None if given["sinks"] is None else given["sinks"].double(), softmax_scale=given["softmax_scale"],
            causal=is_causal(case, b), window_left=case.left, window_right=case.right, softcap=case.cap,
        )
        session.expect_close("out", session.first.outputs["out"][rows], found, tolerance[rows], f"request {b}: paged_attention")


def _other_alignment(case: Any, session: Session) -> None:
    """Causal rows at the first keys do not see those past the last row: without them the last row stands at the last key."""
    given = session.inputs()
    spans = _spans(given, "k")
    cut = torch.cat([torch.arange(s.start, s.start + q) for s, q in zip(spans, case.rows)])
    fewer = {"k": given["k"][cut], "v": given["v"][cut], "cu_seqlens_k": _offsets(list(case.rows)), "alignment": "bottom_right"}
    other = session.run(_plain(case), given | fewer, judged=False)
    _close(session, other.outputs["out"], slice(None), "bottom_right over the keys up to the last row")


def _chunked(case: Any, session: Session) -> None:
    """Causal rows in two calls, the first with the keys that it sees."""
    given = session.inputs()
    got = session.first.outputs["out"].clone()
    cuts = [(s.start, s.start + q // 2, s.stop) for s, q in zip(_spans(given, "q"), case.rows)]
    for part in (0, 1):
        rows = [slice(cut[part], cut[part + 1]) for cut in cuts]
        behind = [end - own.stop for (_, _, end), own in zip(cuts, rows)]
        keys = [slice(s.start, max(s.start, s.stop - n)) for s, n in zip(_spans(given, "k"), behind)]
        index, of_k = (torch.cat([torch.arange(s.start, s.stop) for s in spans]).long() for spans in (rows, keys))
        call = {"q": given["q"][index], "k": given["k"][of_k], "v": given["v"][of_k]}
        call["cu_seqlens_q"] = _offsets([s.stop - s.start for s in rows])
        call["cu_seqlens_k"] = _offsets([s.stop - s.start for s in keys])
        got[index] = session.run(_plain(case), given | call, judged=False).outputs["out"]
    _close(session, got, slice(None), "two calls, the first with the keys that it sees")


def _influence(case: Any, session: Session) -> None:
    """Another value of each request's last key: only rows that see it change."""
    given = session.inputs()
    plain = session.run(_plain(case), given, judged=False).outputs["out"]
    moved = given | {"v": given["v"].clone()}
    same = torch.ones(len(given["q"]), dtype=torch.bool)
    for b, (rows, keys) in enumerate(zip(_spans(given, "q"), _spans(given, "k"))):
        if case.lens[b]:
            moved["v"][keys.stop - 1] = BIG
            p, most = torch.arange(case.rows[b]) + position(case, b), case.rows[b] + case.lens[b]
            left, right = min(case.left, most), 0 if is_causal(case, b) else min(case.right, most)
            last = case.lens[b] - 1
            same[rows] = ~(((last >= p - left) | (left < 0)) & ((last <= p + right) | (right < 0)))
    other = session.run(_plain(case), moved, judged=False).outputs["out"]
    session.expect_same("out", other[same], plain[same], "the last key is another one, these rows may not see it")
    if case.dtype == "float32" and case.spread <= 1 and case.values == "random" and case.size <= 1 and not loses(case):
        changed = (other[~same] != plain[~same]).flatten(1).any(dim=1)
        session.expect(bool(changed.all()), "out", "the last key has an influence on each row that sees it")


def _padded(case: Any, session: Session) -> None:
    """Requests without rows and without keys in front of and behind the others."""
    given = session.inputs()
    offsets = {name: given[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    padded = given | {name: torch.cat([value[:1], value, value[-1:]]) for name, value in offsets.items()}
    if given["causal_requests"] is not None:
        flag = torch.tensor([True])
        padded["causal_requests"] = torch.cat([flag, given["causal_requests"], flag])
    other = session.run(_plain(case), padded, judged=False)
    _close(session, other.outputs["out"], slice(None), "two padded requests more")


def _dense(case: Any, session: Session) -> None:
    names = () if case.int32 else ("cu_seqlens_q", "cu_seqlens_k")
    other = session.run(replace(case, layout={}, int32=names), session.inputs(), judged=False)
    _close(session, other.outputs["out"], slice(None), "dense tensors, other index dtypes")


def _repeated_heads(case: Any, session: Session) -> None:
    given = session.inputs()
    wide = {name: given[name].repeat_interleave(case.heads // case.kv_heads, dim=1) for name in ("k", "v")}
    other = session.run(_plain(case), given | wide, judged=False)
    _close(session, other.outputs["out"], slice(None), "a kv head for each query head")


RELATIONS = {
    "paged": Relation(
        _paged, "equals paged_attention over the same keys", lambda case: case.alignment == "bottom_right" and bool(case.rows)
    ),
    "alignment": Relation(
        _other_alignment, "causal, both alignments agree over the keys up to the last row",
        lambda case: case.alignment == "top_left" and case.causal == "all" and bool(case.rows)
        and all(q <= k for q, k in zip(case.rows, case.lens)),
    ),
    "chunked": Relation(
        _chunked, "causal rows in two calls",
        lambda case: case.alignment == "bottom_right" and case.causal == "all"
        and any(q > 1 for q in case.rows) and all(q <= k for q, k in zip(case.rows, case.lens)),
    ),
    "influence": Relation(_influence, "only rows that see a key depend on it", lambda case: case.heads > 0 and bool(case.rows)),
    "alone": Relation(
        _one_by_one, "a batch equals separate calls, each with its own flag", lambda case: 1 < len(case.rows) <= 4
    ),
    "order": Relation(_reordered, "permuting requests permutes results", lambda case: len(case.rows) > 1),
    "pads": Relation(_padded, "padded requests change nothing"),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
    "heads": Relation(
        _repeated_heads, "GQA equals MHA over repeated heads", lambda case: bool(case.rows) and case.kv_heads < case.heads,
    ),
}
