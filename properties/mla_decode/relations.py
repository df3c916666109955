"""mla_decode: what holds between calls."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation, rounded_once
from kernelpair.contract.pair import Relation, Within
from kernelpair.trial.session import Session
from optimized.mla_decode import mla_decode_workspace_size
from properties.mla_decode.bound import keys_of
from properties.mla_decode.cases import INDICES, MlaDecodeCase
from properties.shared.renaming import new_names, renamed
from reference.decode_attention import decode_attention
from reference.paged_attention import paged_attention

# --- relations ---


def _close(session: Session, got: Tensor, expected: Tensor, says: str) -> None:
    """Both are within one bound of the truth, so within two of each other; equal where the case is exact."""
    tolerance = session.first.bound.get("out")
    if isinstance(tolerance, Tensor):
        session.expect_close("out", got, expected, 2 * tolerance, says)
    else:
        session.expect_same("out", got, expected, says)


def _equals(session: Session, expected: Tensor, says: str) -> None:
    """The first call against its truth by another way, in float64."""
    got, tolerance = session.first.outputs["out"], session.first.bound.get("out")
    if isinstance(tolerance, Tensor):
        session.expect_close("out", got, expected, tolerance, says)
    else:
        session.expect_same("out", got, rounded_once(expected, got.dtype), says)


def _again(case: MlaDecodeCase, session: Session, says: str, **changed: object) -> None:
    other = session.run(replace(case, layout={}), session.inputs() | changed, judged=False)
    _close(session, other.outputs["out"], session.first.outputs["out"], says)


def _splits(case: MlaDecodeCase, session: Session) -> None:
    splits = {-1: 3, 1: 7, 2: 5, 7: 1}.get(case.splits, 2)  # others come of the budget of scratch
    nbytes = mla_decode_workspace_size(max(case.lens, default=0), len(case.lens), case.heads, case.page, case.latent, splits)
    workspace = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
    _again(case, session, f"{splits} splits", num_kv_splits=splits, workspace=workspace)


def _table_tail(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    table = given["page_table"].long()
    longer = torch.cat([table, torch.full((len(table), 2), 10**6)], dim=1)
    other = session.run_moved(replace(case, layout={}), given | {"page_table": longer})
    session.expect_moved("out", other.outputs["out"], session.first.outputs["out"], "more columns, of garbage")


def _repaged(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    page = {16: 64, 32: 16, 64: 128, 128: 32}[case.page]
    counts = [-(-n // page) for n in case.lens]
    table = torch.full((len(counts), max(counts, default=0)), -1)
    cache_ = given["kv_cache"].new_full((sum(counts) + 1, page, given["kv_cache"].shape[2]), torch.nan)
    for b, latents in enumerate(keys_of(case, given["kv_cache"], given["page_table"])):
        first = sum(counts[:b])
        table[b, : counts[b]] = torch.arange(first, first + counts[b])
        cache_[first : first + counts[b]].flatten(0, 1)[: len(latents)] = latents
    _again(case, session, f"pages of {page}", kv_cache=cache_, page_table=table)


def _slots(case: MlaDecodeCase, session: Session) -> None:
    """decode_attention's shared-buffer form, as its reference says."""
    given = session.inputs()
    batch, longest = len(case.lens), max(case.lens, default=0)
    flat = given["kv_cache"].double().flatten(0, 1)[:, None]
    j = torch.arange(longest)
    columns = given["page_table"].long()[:, j // case.page] * case.page + j % case.page
    out = torch.empty(batch, case.heads, case.latent, dtype=torch.float64)
    scratch = torch.empty(batch, case.heads, 1, case.latent + 1)
    q = torch.cat([given["q_nope"], given["q_pe"]], dim=-1).double()
    decode_attention(q, flat, flat[..., : case.latent], out, None, None, None, scratch, columns, torch.arange(batch),
                     given["seq_lens"], None, None, given["sm_scale"])
    _equals(session, out, "decode_attention in a shared buffer")


def _paged(case: MlaDecodeCase, session: Session) -> None:
    """paged_attention with qv, as its reference says."""
    given = session.inputs()
    pool = given["kv_cache"].double()[:, :, None]
    out = paged_attention(
        given["q_pe"].double(), pool[..., case.latent :], pool[..., : case.latent], given["page_table"], given["seq_lens"],
        torch.arange(len(case.lens) + 1), qv=given["q_nope"].double(), softmax_scale=given["sm_scale"],
    )
    _equals(session, out, "paged_attention with qv")


def _reordered(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    order = permutation(case.seed, "order", len(case.lens))
    moved = {name: given[name][order] for name in ("q_nope", "q_pe", "seq_lens", "page_table")}
    other = session.run(replace(case, layout={}), given | moved, judged=False)
    expected = torch.empty_like(session.first.outputs["out"])
    expected[order] = other.outputs["out"]
    _close(session, expected, session.first.outputs["out"], "requests in another order")


def _alone(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    rows = []
    for b in range(len(case.lens)):
        own = {name: given[name][b : b + 1] for name in ("q_nope", "q_pe", "seq_lens", "page_table")}
        nbytes = mla_decode_workspace_size(case.lens[b], 1, case.heads, case.page, case.latent, case.splits)
        own["workspace"] = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
        rows.append(session.run(replace(case, layout={}), given | own, judged=False).outputs["out"])
    _close(session, torch.cat(rows), session.first.outputs["out"], "each request alone")


def _renamed(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    order, names = new_names(case.seed, len(given["kv_cache"]))
    table = renamed(given["page_table"], names)
    _again(case, session, "pages renamed", kv_cache=given["kv_cache"][order], page_table=table)


def _other_layout(case: MlaDecodeCase, session: Session) -> None:
    layout = {} if "q_nope" in case.layout else {"q_nope": "swapped"}
    other_case = replace(case, layout=layout, int32=() if case.int32 else INDICES)
    other = session.run(other_case, session.inputs(), judged=False, fakes=True)
    _close(session, other.outputs["out"], session.first.outputs["out"], "other strides, other index dtypes")


def _other_form(case: MlaDecodeCase, session: Session) -> None:
    """Accurate or not: both lie within their bounds of one truth."""
    other = replace(case, layout={}, accurate=not case.accurate)
    given, first, says = session.inputs(), session.first, f"accurate={other.accurate}"
    got = session.run(other, given | {"accurate": other.accurate}, judged=False).outputs["out"]
    exact = {name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
             for name, value in given.items()}
    way = session.subject.judged_by
    assert isinstance(way, Within)
    theirs = way.bound(other, exact, first.truth).get("out")
    if isinstance(theirs, Tensor):
        session.expect_close("out", got, first.outputs["out"], first.bound_of("out") + theirs, says)
    else:
        _close(session, got, first.outputs["out"], says)


def _has_keys(case: MlaDecodeCase) -> bool:
    return any(case.lens)


RELATIONS = {
    # A merge of splits rounds once more, so the exact mean of equal scores is one split's alone.
    "splits": Relation(_splits, "the number of splits does not matter", lambda case: case.values != "equal"),
    "accurate": Relation(_other_form, "the accurate form and the fast one have one truth", _has_keys),
    "tail": Relation(_table_tail, "table columns past the last page do not matter"),
    "repage": Relation(_repaged, "the page size does not matter"),
    "slots": Relation(_slots, "equals decode_attention in a shared buffer", _has_keys),
    # There a key has at least one column.
    "paged": Relation(_paged, "equals paged_attention with qv", lambda case: _has_keys(case) and case.rope > 0),
    "alone": Relation(_alone, "a batch equals separate calls", lambda case: 1 < len(case.lens) <= 4),
    "order": Relation(_reordered, "permuting requests permutes results", lambda case: len(case.lens) > 1),
    "rename": Relation(_renamed, "renaming pages changes nothing"),
    "layout": Relation(_other_layout, "layout and index dtype do not matter"),
}
