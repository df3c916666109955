"""What holds between calls of gdn_attention_core."""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.gdn_attention_core.bound import carried, columns_of
from properties.gdn_attention_core.cases import INDICES, GdnCase
from properties.shared.pads import other_dtypes

OUTPUTS = ("core_attn_out", "conv_state", "ssm_state")
PER_TOKEN = ("mixed_qkv", "a", "b", "core_attn_out")


def part(case: GdnCase, given: Inputs, requests: list[int], decodes: int, tokens: list[int], offsets: list[int]) -> Inputs:
    """Arguments for some requests, the first `decodes` of them decodes, over the given token rows."""
    chosen = {name: given[name][tokens].clone() for name in PER_TOKEN}
    return given | chosen | {
        "num_decodes": decodes,
        "num_decode_tokens": decodes,
        "num_prefills": len(requests) - decodes,
        "num_prefill_tokens": len(tokens) - decodes,
        "num_actual_tokens": len(tokens),
        "state_indices": given["state_indices"][requests],
        "query_start_loc": torch.tensor(offsets),
        "has_initial_state": given["has_initial_state"][requests],
    }  # fmt: skip


def _compare(case: GdnCase, session: Session, out: Tensor, conv: Tensor, ssm: Tensor, says: str) -> None:
    """Outputs of all tokens and the live slots of both caches: conv states hold the same bits."""
    first, bounds = session.first, cast("dict[str, Tensor]", session.first.bound)
    slots = session.inputs()["state_indices"][case.live].long()
    n = case.tokens
    session.expect_close("core_attn_out", out[:n], first.outputs["core_attn_out"][:n], 2 * bounds["core_attn_out"][:n], says)
    session.expect_close("ssm_state", ssm[slots], first.outputs["ssm_state"][slots], 2 * bounds["ssm_state"][slots], says)
    session.expect_same("conv_state", conv[slots], first.outputs["conv_state"][slots], says)


def _two_calls(case: GdnCase, session: Session) -> None:
    """The decodes, then the prefills."""
    given = session.inputs()
    nd, n = case.decodes, case.tokens
    first = part(case, given, list(range(nd)), nd, list(range(nd)), list(range(nd + 1)))
    small = replace(case, prefills=(), cold=(), pads=tuple(r for r in case.pads if r < nd), extra=0, layout={})
    one = session.run(small, first, judged=False)
    moved = given | {name: one.outputs[name] for name in ("conv_state", "ssm_state")}
    offsets = (given["query_start_loc"][nd:] - nd).tolist()
    second = part(case, moved, list(range(nd, case.requests)), 0, list(range(nd, n)), offsets)
    rest = replace(case, decodes=0, pads=tuple(r - nd for r in case.pads if r >= nd), extra=0, layout={})
    two = session.run(rest, second, judged=False)
    out = torch.cat([one.outputs["core_attn_out"], two.outputs["core_attn_out"]])
    _compare(case, session, out, two.outputs["conv_state"], two.outputs["ssm_state"], "decodes, then prefills")


def widened(given: Inputs) -> Inputs:
    """Floats in float64."""
    floats = {name: value.double() for name, value in given.items() if isinstance(value, Tensor) and value.is_floating_point()}
    return given | floats


def _in_pieces(case: GdnCase, session: Session, decode_last: bool, cut: int, says: str) -> None:
    """One prefill as a prefill of `cut` tokens and the rest as another prefill, or as a decode. The rest starts from the state
    that the first has left: it has a bound of its own, and the error of its start comes to it. Our own kernel
    keeps the bound of the whole."""
    given, length, first = session.inputs(), case.prefills[0], session.first
    head = part(case, given, [0], 0, list(range(cut)), [0, cut])
    small = replace(case, prefills=(cut,), extra=0, layout={})
    one = session.run(small, head, note=says)
    moved = given | {name: one.outputs[name] for name in ("conv_state", "ssm_state")}
    tail = part(case, moved, [0], int(decode_last), list(range(cut, length)), [0, length - cut])
    tail["has_initial_state"] = torch.tensor([True])
    rest = replace(small, decodes=int(decode_last), prefills=() if decode_last else (length - cut,), cold=())
    two = session.run(rest, tail, note=says)
    slot, out = int(given["state_indices"][0]), "core_attn_out"
    ((carry, columns),) = carried(rest, widened(tail), [columns_of(case, one.bound_of("ssm_state")[slot])])
    head_rows, tail_rows = slice(cut), slice(cut, length)
    for got, rows, tolerance in (
        (one, head_rows, one.bound_of(out)), (two, tail_rows, two.bound_of(out) + carry)
    ):
        allowed = first.bound_of(out)[rows] + (tolerance if session.subject.foreign else 0.0)
        session.expect_close(out, got.outputs[out], first.outputs[out][rows], allowed, says)
    carried_on = columns[:, None, :] if case.state_layout == "kv" else columns[..., None]
    allowed = first.bound_of("ssm_state")[slot]
    if session.subject.foreign:
        allowed = allowed + two.bound_of("ssm_state")[slot] + carried_on
    session.expect_close("ssm_state", two.outputs["ssm_state"][slot], first.outputs["ssm_state"][slot], allowed, says)
    session.expect_same("conv_state", two.outputs["conv_state"][slot], first.outputs["conv_state"][slot], says)


def _two_prefills(case: GdnCase, session: Session) -> None:
    cut = 1 + case.seed % (case.prefills[0] - 1)
    _in_pieces(case, session, False, cut, f"prefills of {cut} and {case.prefills[0] - cut} tokens")


def _last_decoded(case: GdnCase, session: Session) -> None:
    _in_pieces(case, session, True, case.prefills[0] - 1, "the last token as a decode")


def _layouts(case: GdnCase, session: Session) -> None:
    """Both caches in the other layout."""
    given = session.inputs()
    turned = given | {
        "conv_state": given["conv_state"].transpose(1, 2).contiguous(),
        "ssm_state": given["ssm_state"].transpose(2, 3).contiguous(),
        "conv_layout": "DS" if case.conv_layout == "SD" else "SD",
        "state_layout": "kv" if case.state_layout == "vk" else "vk",
    }
    other = replace(case, conv_layout=turned["conv_layout"], state_layout=turned["state_layout"], layout={})
    found = session.run(other, turned, judged=False).outputs
    conv, ssm = found["conv_state"].transpose(1, 2).contiguous(), found["ssm_state"].transpose(2, 3).contiguous()
    _compare(case, session, found["core_attn_out"], conv, ssm, "SD and DS, kv and vk")


def _dense(case: GdnCase, session: Session) -> None:
    plain = replace(case, layout={}, int32=other_dtypes(case, INDICES, case.pad_slot))
    found = session.run(plain, session.inputs(), judged=False).outputs
    out, conv, ssm = (found[name] for name in OUTPUTS)
    _compare(case, session, out, conv, ssm, "dense tensors, the other index dtype")


def _one_long(case: GdnCase) -> bool:
    return not case.decodes and len(case.prefills) == 1 and case.prefills[0] > 1 and not case.pads and case.state == "float32"


RELATIONS = {
    "two_calls": Relation(
        _two_calls,
        "a mixed batch equals its decodes, then its prefills",
        lambda case: case.decodes > 0 and sum(case.prefills) > 0,
    ),
    "two_prefills": Relation(_two_prefills, "a prefill equals two of its parts", _one_long),
    "last_decoded": Relation(_last_decoded, "a prefill equals one of all tokens but the last, which is decoded", _one_long),
    "layouts": Relation(_layouts, "SD and DS, kv and vk agree"),
    "dense": Relation(_dense, "layout and index dtype do not matter"),
}
