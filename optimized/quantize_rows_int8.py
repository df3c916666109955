"""quantize_rows_int8 with None where there are no zero points."""

from torch import Tensor

from optimized.operators import operator


def quantize_rows_int8(x: Tensor, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows of x [M, K] in int8: q [M, K], scale float32 [M] and, unless symmetric, zero points azp int32 [M].

    Raises TypeError (dtype), ValueError (rank, strides).
    """
    q, scale, azp = operator("quantize_rows_int8")(x, symmetric)
    return q, scale, None if symmetric else azp
