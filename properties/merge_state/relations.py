"""merge_state: what holds between calls."""

from dataclasses import replace

import torch

from kernelpair.call.values import any_bits, permutation, uniform
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.merge_state.bound import weights
from properties.merge_state.cases import NAMES, MergeCase
from properties.shared.attention_bound import UNIT_ROUNDOFF

KEYS = 9  # of both parts together, where they are made from keys
DEPTH = 8  # width of these keys


def _exchanged(case: MergeCase, session: Session) -> None:
    given = session.inputs()
    other = {"v_a": given["v_b"], "lse_a": given["lse_b"], "v_b": given["v_a"], "lse_b": given["lse_a"]}
    again = session.run_moved(replace(case, layout={}), other)
    for name in NAMES:
        session.expect_moved(name, again.outputs[name], session.first.outputs[name], "the parts exchanged")


def _with_nothing(case: MergeCase, session: Session) -> None:
    """A part merged with an empty one is itself, whatever that holds."""
    given = session.inputs()
    lse = given["lse_a"].masked_fill(given["lse_a"] == -torch.inf, 0.5)
    values = any_bits(case.seed, "alone", given["v_a"].shape, given["v_a"].dtype)
    nothing = {"v_b": torch.full_like(values, torch.nan), "lse_b": torch.full_like(lse, -torch.inf)}
    again = session.run(replace(case, layout={}), {"v_a": values, "lse_a": lse, **nothing}, judged=False)
    session.expect_same("out", again.outputs["out"], values, "merged with a part without keys")
    session.expect_same("lse", again.outputs["lse"], lse, "merged with a part without keys")


def _whole(case: MergeCase, session: Session) -> None:
    """Attention over some keys and over the others, merged, against attention over all of them in float64.

    The parts are rounded before they are merged: values to the call's dtype, u w |v| each, and each lse to float32, which moves
    a share by at most the two roundings times the smaller share.
    """
    given = session.inputs()
    T, H, Dv = given["v_a"].shape
    q = uniform(case.seed, "q", (T, H, DEPTH), torch.float64)
    k, v = uniform(case.seed, "k", (KEYS, H, DEPTH), torch.float64), uniform(case.seed, "v", (KEYS, H, Dv), torch.float64)
    scores, cut = torch.einsum("thd,nhd->thn", q, k), 1 + case.seed % (KEYS - 1)
    parts: Inputs = {}
    for name, some in (("a", slice(0, cut)), ("b", slice(cut, None))):
        attended = torch.einsum("thn,nhd->thd", scores[..., some].softmax(-1), v[some])
        parts |= {f"v_{name}": attended.to(given["v_a"].dtype), f"lse_{name}": scores[..., some].logsumexp(-1).float()}
    merged = session.run(replace(case, layout={}), parts)
    share_a, share_b = (share[..., None] for share in weights({name: value.double() for name, value in parts.items()}))
    sizes = share_a * parts["v_a"].double().abs() + share_b * parts["v_b"].double().abs()
    lse_error = 2.0**-24 * (parts["lse_a"].double().abs() + parts["lse_b"].double().abs())
    rounded = UNIT_ROUNDOFF[given["v_a"].dtype] * 1.01 * sizes + 2.0**-24
    rounded = rounded + 2 * (lse_error[..., None] * torch.minimum(share_a, share_b))
    whole = torch.einsum("thn,nhd->thd", scores.softmax(-1), v)
    error, allowed = (merged.outputs["out"].double() - whole).abs(), merged.bound["out"] + rounded
    session.expect(bool((error <= allowed).all()), "out", "two parts merged are not the attention over all keys")
    error, allowed = (merged.outputs["lse"].double() - scores.logsumexp(-1)).abs(), merged.bound["lse"] + lse_error + 2.0**-40
    session.expect(bool((error <= allowed).all()), "lse", "two parts merged have another sum than all keys")


def _halves(case: MergeCase, session: Session) -> None:
    cut = case.seed % (case.rows + 1)
    for part in (slice(0, cut), slice(cut, None)):
        some = {name: value[part] for name, value in session.inputs().items()}
        again = session.run_moved(replace(case, layout={}), some)
        for name in NAMES:
            session.expect_moved(name, again.outputs[name], session.first.outputs[name][part], "some of the rows")


def _permuted(case: MergeCase, session: Session) -> None:
    rows, heads = permutation(case.seed, "rows", case.rows), permutation(case.seed, "heads", case.heads)
    other = {name: value[rows][:, heads] for name, value in session.inputs().items()}
    again = session.run_moved(replace(case, layout={}), other)
    for name in NAMES:
        session.expect_moved(name, again.outputs[name], session.first.outputs[name][rows][:, heads], "rows and heads permuted")


RELATIONS = {
    "order": Relation(_exchanged, "the parts may be exchanged, bit for bit"),
    "nothing": Relation(_with_nothing, "a part merged with one without keys is itself, bit for bit"),
    "whole": Relation(_whole, "two parts merged are the attention over all of their keys"),
    "halves": Relation(_halves, "a batch equals its parts, bit for bit"),
    "permute": Relation(_permuted, "permuting rows and heads permutes the bits; strides do not matter"),
}
