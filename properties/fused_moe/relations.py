"""fused_moe: what holds between calls."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import REPEATED
from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.fused_moe.cases import MoeCase
from properties.shared.linear_layers import KEPT

STACKS = ("w13", "w2", "w13_sums", "w13_scale", "w2_sums", "w2_scale")
ROWS = ("x", "topk_weights", "topk_ids", "routed")


def _blocks(given: Inputs) -> Inputs:
    return {name: value for name, value in given.items() if "_block_" in name}


def _plain(case: MoeCase, **changes: Any) -> MoeCase:
    return replace(case, layout={}, **changes)


def _again(case: MoeCase, session: Session, changes: Inputs, says: str, place: Any = ..., **fields: Any) -> None:
    """The changed call gives what the first one gave in these rows; both lie within a bound of the truth."""
    result = session.run(_plain(case, **fields), session.inputs() | changes, judged=False)
    tolerance = 2 * session.first.bound_of("out")[place]
    session.expect_close("out", result.outputs["out"], session.first.outputs["out"][place], tolerance, says)


def _of_rows(given: Inputs, rows: Tensor) -> Inputs:
    return {name: given[name][rows] for name in ROWS if given.get(name) is not None}


def _dense(case: MoeCase, session: Session) -> None:
    _again(case, session, {}, "dense tensors")


def _tokens(case: MoeCase, session: Session) -> None:
    order = permutation(case.seed, "order", case.tokens)
    _again(case, session, _of_rows(session.inputs(), order), "tokens permuted", order)


def _alone(case: MoeCase, session: Session) -> None:
    last = torch.tensor([case.tokens - 1])
    _again(case, session, _of_rows(session.inputs(), last), "the last token by itself", last, tokens=1)


def _relabelled(case: MoeCase, session: Session) -> None:
    """Expert e becomes order[e]."""
    given, order = session.inputs(), permutation(case.seed, "experts", case.experts)
    ids = given["topk_ids"].long()
    label = torch.where(ids < 0, ids, order[ids.clamp_min(0)]).to(given["topk_ids"].dtype)
    stacks = {name: given[name][order.argsort()] for name in (*STACKS, "b13", "b2") if given.get(name) is not None}
    _again(case, session, stacks | {"topk_ids": label}, "experts relabelled")


def _columns(case: MoeCase, session: Session) -> None:
    given, order = session.inputs(), permutation(case.seed, "columns of ids", case.topk)
    changes = {name: given[name][:, order].clone() for name in ("topk_weights", "topk_ids")}
    _again(case, session, changes, "experts of a token in another order")


def _scaled(case: MoeCase, session: Session) -> None:
    """Bit for bit, where the result is neither out of range nor subnormal, nor the least normal number, which may be another.
    What experts say may be rounded to a subnormal number of float16 before it is added: there, within the bounds."""
    given, first = session.inputs(), session.first.outputs["out"]
    again = session.run(case, given | {"topk_weights": given["topk_weights"] * 2})
    size, limits = first.abs(), torch.finfo(first.dtype)
    normal = (size > limits.tiny) & (size < limits.max / 4)
    got, expected, says = again.outputs["out"][normal], (first * 2)[normal], "router weights times 2"
    if case.dtype == "float16" and case.topk > 1:
        tolerance = again.bound_of("out") + 2 * session.first.bound_of("out")
        session.expect_close("out", got, expected, tolerance[normal], says)
    else:
        session.expect_same("out", got, expected, says)


def _split(case: MoeCase, session: Session) -> None:
    """One call for each column, in float32."""
    given, first = session.inputs(), session.first
    total, tolerance = torch.zeros_like(first.outputs["out"], dtype=torch.float64), first.bound_of("out").clone()
    for j in range(case.topk):
        part = {name: given[name][:, j : j + 1].clone() for name in ("topk_weights", "topk_ids")}
        call = session.run(_plain(case, topk=1), given | part)
        total, tolerance = total + call.outputs["out"].double(), tolerance + call.bound_of("out")
    session.expect_close("out", first.outputs["out"], total, tolerance, "the sum of calls with one expert a token")


def _dense_layer(case: MoeCase, session: Session) -> None:
    """Copies of one expert, whose weights sum to 1, are that expert for all tokens."""
    given, experts = session.inputs(), case.experts
    hit = given["topk_ids"]
    expert = int(hit[hit >= 0][0])
    single = {name: given[name][expert : expert + 1].clone() for name in STACKS if name in given} | _blocks(given)
    ids = torch.arange(case.tokens * case.topk).reshape(case.tokens, case.topk) % experts
    copies = {name: single[name].repeat(experts, *[1] * (single[name].dim() - 1)) for name in STACKS if name in single}
    many = {"topk_ids": ids, "topk_weights": torch.full(ids.shape, 2.0) / 2 / case.topk, "b13": None, "b2": None}
    plain = {"b13": "", "b2": "", "route": "ascending", "on_input": False, "values": "uniform"}
    call = session.run(_plain(case, **plain), given | copies | many | {"apply_router_weight_on_input": False})
    shared = {"form": "shared", "dtype": case.dtype, "x": given["x"], **single, "D": case.D, "I": case.I,
              "routed": None, "routed_scaling_factor": 1.0}  # fmt: skip
    one = session.run(_plain(case, form="shared", experts=1, topk=1, **plain | {"route": "constant"}), shared)
    tolerance = call.bound_of("out") + one.bound_of("out") + 2.0**-22 * one.outputs["out"].double().abs()
    session.expect_close(
        "out", call.outputs["out"], one.outputs["out"].double(), tolerance, "copies of one expert are a dense layer"
    )


def _pads(case: MoeCase, session: Session) -> None:
    """An id of -1 says what a weight of 0 says of a finite expert."""
    given = session.inputs()
    live = given["topk_ids"] >= 0
    named = given["topk_ids"].masked_fill(~live, int(given["topk_ids"][live][0]))
    _again(
        case, session, {"topk_ids": named, "topk_weights": given["topk_weights"].masked_fill(~live, 0.0)},
        "pads as weights of 0", route="random",
    )  # fmt: skip


def _on_input(case: MoeCase, session: Session) -> None:
    """Weights of 1, on the input or not."""
    given = session.inputs()
    ones = {"topk_weights": torch.where(given["topk_ids"] < 0, torch.nan, 1.0)}
    calls = [
        session.run_moved(_plain(case, on_input=on), given | ones | {"apply_router_weight_on_input": on})
        for on in (False, True)
    ]
    off, on = (call.outputs["out"] for call in calls)
    session.expect_moved("out", on + 0.0, off + 0.0, "a weight of 1 on the input")


def _routed(case: MoeCase, session: Session) -> None:
    """NaN of what was routed reaches its own result, through a factor of 0 too; a result beyond the dtype is an infinity."""
    given, first = session.inputs(), session.first.outputs["out"]
    place, sign = case.seed % first.numel(), 1.0 if case.seed % 2 else -1.0
    reached = torch.arange(first.numel()).view(first.shape) == place
    routed = torch.zeros_like(given["x"]) if given["routed"] is None else given["routed"]
    for factor, value in ((0.0, torch.nan), (0.0, torch.inf), (2.0, torch.finfo(first.dtype).max * 0.75)):
        wrong = torch.where(reached, sign * value, routed)
        changes = {"routed": wrong, "routed_scaling_factor": factor}
        out = session.run(_plain(case, routed=True, factor=factor), given | changes, judged=False).outputs["out"]
        expected = sign * torch.inf if factor else torch.nan
        own = out[reached].isnan() if factor == 0 else out[reached] == expected
        session.expect(bool(own.all()), "out", f"{value} that was routed, times {factor}, did not give {expected}")
        session.expect(bool(out[~reached].isfinite().all()), "out", f"{value} that was routed reached another result")


def _nan_stays(case: MoeCase, session: Session) -> None:
    """NaN in a token's x reaches its row and no other, through experts of weight 0 too."""
    given = session.inputs()
    row, x = case.seed % case.tokens, given["x"].clone()
    x[row, case.seed % case.D] = torch.nan
    others = torch.arange(case.tokens) != row
    changed = {"x": x}
    if case.form == "moe" and case.seed // case.tokens % 2:
        changed["topk_weights"] = given["topk_weights"].clone()
        changed["topk_weights"][row] = 0
    out = session.run(inputs=given | changed, judged=False).outputs["out"]
    first = session.first.outputs["out"]
    reached = case.form == "shared" or bool((given["topk_ids"][row] >= 0).any())
    if reached:
        session.expect(bool(out[row].isnan().all()), "out", "NaN reaches its row")
    tolerance = 2 * session.first.bound_of("out")[others]
    session.expect_close("out", out[others], first[others], tolerance, "NaN stays in its row")


def _nothing_routed(case: MoeCase, session: Session) -> None:
    """What was routed, as zeros, is as good as none; the factor then says nothing."""
    changes = {"routed": torch.zeros_like(session.inputs()["x"]), "routed_scaling_factor": 3.0}
    _again(case, session, changes, "zeros were routed")
    _again(case, session, {"routed_scaling_factor": torch.inf}, "the factor of nothing is infinite")


def _moe(case: MoeCase) -> bool:
    return case.form == "moe" and case.pairs > 0


def _hit(case: MoeCase) -> bool:
    return _moe(case) and case.route not in ("pads", "padded")


def _padded(case: MoeCase) -> bool:
    """With pads, but no biases behind weights on the input: they would stay where the weight is 0."""
    if case.on_input and (case.b13 or case.b2):
        return False
    return _moe(case) and case.route == "pads" and case.tokens * case.topk > 64


RELATIONS = {
    "layout": Relation(_dense, "strides and offsets do not matter"),
    "tokens": Relation(_tokens, "permuting tokens permutes the results", lambda case: case.tokens > 1),
    "alone": Relation(_alone, "a token by itself equals the token in company", lambda case: case.tokens > 1),
    "experts": Relation(_relabelled, "relabelling experts changes nothing", lambda case: _moe(case) and case.experts > 1),
    "columns": Relation(_columns, "the order of a token's experts does not matter", lambda case: _moe(case) and case.topk > 1),
    "scaled": Relation(
        _scaled, "router weights times 2 double the result, but for sums in float16 bit for bit",
        lambda case: _moe(case) and not case.on_input,
    ),
    "split": Relation(
        _split,
        "k experts are the sum of k calls with one",
        lambda case: _moe(case) and case.topk > 1 and case.dtype == "float32" and case.values == "uniform",
    ),
    "dense": Relation(_dense_layer, "copies of one expert are a dense layer", lambda case: _hit(case) and case.pairs < 600),
    "pads": Relation(_pads, "an id of -1 is a weight of 0 of a finite expert", _padded),
    "on_input": Relation(
        _on_input, "a weight of 1 on the input changes nothing, bit for bit", lambda case: _moe(case) and case.topk == 1
    ),
    "nan": Relation(
        _nan_stays,
        "NaN in a row of x stays in its row",
        lambda case: case.tokens > 0 and case.layout.get("x") not in REPEATED,
    ),
    "routed": Relation(
        _routed, "what was routed reaches its own result alone", lambda case: case.form == "shared" and case.tokens > 0
    ),
    "tensors": KEPT,
    "nothing": Relation(
        _nothing_routed, "zeros that were routed equal none", lambda case: case.form == "shared" and not case.routed
    ),
}
