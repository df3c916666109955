"""What the pairs of linear layers on packed weights share: how their sizes are drawn and measured, how results compare.

M is the number of rows of x [*outer, K], the weight is [N, K].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import REPEATED
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.shared.attention_bound import HALF_FP16_SUBNORMAL, UNIT_ROUNDOFF, accumulation_error, flush_error
from properties.shared.packed_weights import LONG as VOCABULARY
from properties.shared.packed_weights import SAME_WEIGHT, kept
from properties.shared.strategies import any_of, between, near, shrinking

MOST_PRODUCTS = 4_000_000  # M * N * K of a case: 10 ms for the float64 truth
DEEP = 2080  # K of rare cases: sums are put away between slices of K
DEEPER = 8320  # of more steps of 32 than 8 bits count
DEEP_ROWS = ((65, DEEP), (65, DEEPER), (270, DEEP)), ((20, DEEP), (5, DEEPER), (16, DEEP))  # M, K of two cases in 32
MOST_EMULATED = 1_000_000  # M * N * K, each rounded up to tiles: 20 ms of tiles in software
LONG = 1090  # rows of one: more than a kernel copies at a time, by more than it multiplies at a time
MANY = VOCABULARY  # rows or columns that 16 bits do not count
ONE_MORE = (1025, 265)  # by one, and one more than share a reading of the weights
MANY_PANELS = (  # the shape of x without K, N, K
    ((65,), 97, DEEP), ((161,), 97, DEEP), ((13,), 1664, 416), ((1,), VOCABULARY, 8), ((20,), 800, 8), ((20,), 1568, 8),
)  # fmt: skip
Sizes = tuple[int, int, int]
"""M, N, K."""


def drawn_sizes(draw: st.DrawFn, rows: Sequence[int], outputs: Sequence[int], depths: Sequence[int]) -> Sizes:
    """M, N and K of these within the budget."""
    N, K = draw(any_of(*outputs), label="N"), draw(any_of(*depths), label="K")
    return draw(any_of(*(M for M in rows if M * N * K <= MOST_PRODUCTS)), label="M"), N, K


def drawn_outer(draw: st.DrawFn, sizes: Sizes, folded: bool = True) -> tuple[int, ...]:
    """The shape of x without K: M rows, or, with `folded`, some in more or in no dimensions."""
    M, N, K = sizes
    shapes: list[tuple[int, ...]] = [(M,)]
    if folded:
        shapes += [(2, M), (M, 3), (2, 1, M), (3, 1, 2, M), (1, 2, 1, 1, 1, M)] + ([()] if M == 1 else [])
    return draw(any_of(*(shape for shape in shapes if prod(shape) * N * K <= MOST_PRODUCTS)), label="outer")


def beyond(seed: int, power: int) -> float:
    """What exact rows and biases are multiplied by: 1, or of one case in four this power of 2, with which sums leave float16."""
    return 2.0**power if seed % 4 == 3 else 1.0


def laid_out(layout: Mapping[str, str], outer: tuple[int, ...]) -> dict[str, str]:
    """The layout without that of a single row that is expanded: it would be so along K."""
    return {name: kind for name, kind in layout.items() if outer or (name, kind) != ("x", "expanded")}


def fewer_apart(fields: dict[str, Any], outer: tuple[int, ...]) -> dict[str, Any]:
    """The fields; rows that are very many lie near each other, for far apart each would take a page of memory."""
    return near(fields) if prod(outer) >= MANY else fields


def drawn_layer(
    draw: st.DrawFn, rows: Sequence[int], outputs: Sequence[int], depths: Sequence[int]
) -> tuple[tuple[int, ...], int, int]:
    """The shape of x without K, N and K: of these within the budget, or rarely deep or long."""
    M, N, K = drawn_sizes(draw, rows, outputs, depths)
    rare = draw(between(0, 31), label="rare")
    if rare >= 30:  # sums that are put away between slices of K
        M, K = draw(any_of(*DEEP_ROWS[rare - 30]), label="M, K")
        return (M,), min(N, 7), K
    if rare == 29:  # with a tail of K, of whole steps, or deep too
        M = draw(any_of(LONG, *ONE_MORE), label="M")
        N, K = draw(any_of((min(N, 7), min(K, 31)), (min(N, 7), 32), (1, DEEP)), label="N, K")
    if rare == 28:  # of several panels a thread, of more than sums wait, or of a vocabulary: no fewer would do
        return draw(any_of(*MANY_PANELS), label="sizes")
    if rare == 27:
        return (MANY,), min(N, 7), min(K, 7)
    return drawn_outer(draw, (M, N, K)), N, K


def small(case: Any, block: int = 32, deep: int = DEEP) -> bool:
    """Whether tiles in software, `block` of k deep, multiply it in time: few products, or one long dimension alone."""
    rows = prod(case.outer)
    return (
        max(rows, 16) * max(case.N, 32) * max(case.K, block) <= MOST_EMULATED
        or (deep == case.K and case.N <= 7 and rows <= 130)
        or (case.K <= 32 and case.N <= 7 and rows in (LONG, *ONE_MORE))
    )


def model_sizes(draw: st.DrawFn, table: Sequence[Sizes]) -> Sizes:
    """One row of the table, or less of it."""
    M, N, K = draw(any_of(*table), label="M, N, K")
    return draw(shrinking(M), label="M"), draw(shrinking(N), label="N"), draw(shrinking(K), label="K")


def model_layer(draw: st.DrawFn, table: Sequence[Sizes]) -> tuple[tuple[int, ...], int, int]:
    """The shape of x without K, N and K: those of one row of the table, or less; x is a matrix, or a batch of one."""
    M, N, K = model_sizes(draw, table)
    return draw(any_of((M,), (1, M)), label="outer"), N, K


EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: 0 in case.outer,
    "x of one dimension": lambda case: case.outer == (),
    "x of four dimensions": lambda case: len(case.outer) == 3,
    "x expanded": lambda case: case.layout.get("x") == "expanded" and case.outer[:1] > (1,),
    "x transposed": lambda case: case.layout.get("x") == "transposed" and case.K > 1 and prod(case.outer) > 1,
    "partial panel": lambda case: case.N % 32 > 0,
    "odd K": lambda case: case.K % 2 == 1,
    "long K": lambda case: case.K > 2048,
    "more than 1024 rows": lambda case: prod(case.outer) > 1024,
    "more rows than 16 bits count": lambda case: prod(case.outer) > 2**16,
}
"""Of any layer on bf16 tiles or vectors."""


def measures(block: int) -> dict[str, Callable[[Any], int]]:
    """What the kernels' branches depend on, for a weight that is packed in blocks of so many k."""
    return {
        "rows": lambda case: prod(case.outer),
        "columns": lambda case: case.N,
        "panels": lambda case: case.N // 32,
        "width": lambda case: case.K,
        "blocks": lambda case: case.K // block,
        "steps": lambda case: case.K // block,
        "elements": lambda case: case.N * case.K,
        "ahead": lambda case: case.N * case.K,
    }


def products_error(
    x: Tensor, weight: Tensor, bias: Tensor | None, truth: Tensor, dtype: torch.dtype, random_signs: bool = True
) -> Tensor:
    """What K products of x and a dequantized weight with a scale each may err by, summed in float32 in any order and rounded
    once, where of 16-bit x a weight may be rounded to x's dtype before its product, in float16 also to a subnormal number.
    `random_signs`: those of one of both were drawn independently of everything else. All in float64."""
    x, weight, u = x.abs(), weight.abs(), UNIT_ROUNDOFF[dtype]
    size = x @ weight.T
    terms = x.shape[-1] + x.sum(-1, keepdim=True) + weight.sum(-1)
    total = u * truth.abs() + flush_error(terms, dtype)
    if dtype != torch.float32:
        rounded = torch.minimum(size, 8 * (x.square() @ weight.square().T).sqrt()) if random_signs else size
        total = total + u * rounded
    if dtype == torch.float16:
        sums = x.sum(-1, keepdim=True)
        total = total + HALF_FP16_SUBNORMAL * (torch.minimum(sums, 8 * x.norm(dim=-1, keepdim=True)) if random_signs else sums)
    if bias is not None:
        size = size + bias.abs()
    return total + accumulation_error(x.shape[-1] + 4) * size


def again(case: Any, session: Session, inputs: Inputs) -> Tensor:
    """What these dense inputs give."""
    out: Tensor = session.run(replace(case, layout={}), inputs, judged=False).outputs["out"]
    return out


def has_rows(case: Any) -> bool:
    """Rows that can be told apart."""
    return 0 not in case.outer and case.layout.get("x") not in REPEATED


def _alone(case: Any, session: Session) -> None:
    """The last row by itself."""
    given, last = session.inputs(), tuple(size - 1 for size in case.outer)
    got = again(case, session, given | {"x": given["x"][last].clone()})
    expect(session, got, session.first.outputs["out"][last], last, "a row by itself equals the row in company")


def _zero_bias(case: Any, session: Session) -> None:
    got = again(case, session, session.inputs() | {"bias": torch.zeros(case.N)})
    expect(session, got, session.first.outputs["out"], (...,), "a bias of zeros equals none")


def _dense(case: Any, session: Session) -> None:
    expect(session, again(case, session, session.inputs()), session.first.outputs["out"], (...,), "dense tensors")


def _scaled(case: Any, session: Session) -> None:
    """A power of 2 in all scales moves exponents alone."""
    given = session.inputs()
    got = session.run(case, given | {"scales": given["scales"] * 8}, judged=False).outputs["out"]  # the same layout
    session.expect_same("out", got, session.first.outputs["out"] * 8, "scales times 8 give 8 times the result, bit for bit")


def _kept(case: Any, session: Session) -> None:
    given = session.inputs()
    first, got = (again(case, session, given | more) for more in ({}, {"kept": True}))
    session.expect_same("out", got, first, SAME_WEIGHT)


KEPT = kept(_kept)
SCALED_RELATIONS = {
    "alone": Relation(_alone, "a row does not depend on the other rows", has_rows),
    "zero_bias": Relation(_zero_bias, "no bias equals a bias of zeros", lambda case: not case.bias),
    "layout": Relation(_dense, "strides and offsets do not matter"),
    "tensors": KEPT,
    "scaled": Relation(_scaled, "scales times 8 give 8 times the result, bit for bit",
                       lambda case: not case.bias and case.dtype != "float16"),
}  # fmt: skip
"""Of a layer whose weight has scales of its own among the arguments."""


def expect(session: Session, got: Tensor, expected: Tensor, part: Any, says: str, theirs: Tensor | None = None) -> None:
    """Equal numbers where the values are exact, else as far apart as both may be from the truth: the first call by its bound of
    `part`, the other by `theirs` or by the same."""
    limit = session.first.bound["out"]
    if isinstance(limit, Tensor):
        session.expect_close("out", got, expected, limit[part] + (limit[part] if theirs is None else theirs), says)
    else:
        session.expect_same("out", got + 0.0, expected + 0.0, says)  # -0 and 0 are one result
