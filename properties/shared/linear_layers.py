"""What the pairs of linear layers on packed weights share: how their sizes are drawn and measured, how results compare.

M is the number of rows of x [*outer, K], the weight is [N, K].
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hypothesis import strategies as st
from torch import Tensor

from kernelpair.trial.session import Session
from properties.shared.strategies import any_of, shrinking

MOST_PRODUCTS = 4_000_000  # M * N * K of a case: 10 ms for the float64 truth
DEEP = 2080  # K of a rare case, with few columns: sums are put away between slices of K
LONG = 1031  # rows of one: more than a kernel copies at a time
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
        shapes += [(2, M), (M, 3), (2, 1, M)] + ([()] if M == 1 else [])
    return draw(any_of(*(shape for shape in shapes if prod(shape) * N * K <= MOST_PRODUCTS)), label="outer")


def model_sizes(draw: st.DrawFn, table: Sequence[Sizes]) -> Sizes:
    """One row of the table, or less of it."""
    M, N, K = draw(any_of(*table), label="M, N, K")
    return draw(shrinking(M), label="M"), draw(shrinking(N), label="N"), draw(shrinking(K), label="K")


def measures(block: int) -> dict[str, Callable[[Any], int]]:
    """What branches of the kernels ask for, of a weight packed in blocks of so many k."""
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


def expect(session: Session, got: Tensor, expected: Tensor, part: Any, says: str) -> None:
    """Equal numbers where the values are exact, else within twice the bound of `part`: each side is within one of the truth."""
    limit = session.first.bound["out"]
    if isinstance(limit, Tensor):
        session.expect_close("out", got, expected, 2 * limit[part], says)
    else:
        session.expect_same("out", got + 0.0, expected + 0.0, says)  # -0 and 0 are one result
