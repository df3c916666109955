"""fp8_linear: what holds between calls."""

from math import prod

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.fp8_linear.cases import Fp8LinearCase, dense_weight, packed_parts
from properties.shared.linear_layers import SCALED_RELATIONS, again, expect, has_rows
from reference.pack_fp8_weight import unpack_fp8_weight
from reference.packed_linear import PackedWeight, packed_linear

NAN_CODES = (0x7F, 0xFF)


def _codes(given: Inputs) -> Tensor:
    return unpack_fp8_weight(given["data"], given["N"], given["K"]).view(torch.uint8)


def _packed(given: Inputs, codes: Tensor, scales: Tensor | None = None, block_size: tuple[int, int] | None = None) -> Inputs:
    """The arguments with other codes; scales and blocks as they were, if none are named."""
    blocks = block_size or (given["block_n"], given["block_k"])
    return given | packed_parts(codes.view(torch.float8_e4m3fn), given["scales"] if scales is None else scales, blocks)


def _parts(case: Fp8LinearCase, session: Session) -> None:
    """The weight in two parts along N, each of whole blocks of outputs."""
    given = session.inputs()
    cut = max(case.N // 2 // given["block_n"], 1) * given["block_n"]
    codes, first = _codes(given), cut // given["block_n"]
    for columns, blocks in ((slice(0, cut), slice(0, first)), (slice(cut, None), slice(first, None))):
        bias = given["bias"][columns].clone() if given["bias"] is not None else None
        part = _packed(given, codes[columns], given["scales"][blocks])
        got, expected = again(case, session, part | {"bias": bias}), session.first.outputs["out"][..., columns]
        expect(session, got, expected, (..., columns), "concatenated weights concatenate outputs")


def _equal_scales(case: Fp8LinearCase, session: Session) -> None:
    """One scale for all blocks, and the same for the whole weight."""
    given = session.inputs()
    scale = given["scales"].flatten()[-1]
    blocks = again(case, session, given | {"scales": torch.full_like(given["scales"], scale)})
    whole = again(case, session, _packed(given, _codes(given), scale.reshape(1, 1).clone(), (case.N, case.K)))
    session.expect_same("out", blocks + 0.0, whole + 0.0, "equal scales of all blocks are one scale of the whole")


def _negated(case: Fp8LinearCase, session: Session) -> None:
    given = session.inputs()
    got = again(case, session, _packed(given, _codes(given) ^ 0x80))
    expect(session, -got, session.first.outputs["out"], (...,), "codes of the other sign negate the result")


def _unscaled(case: Fp8LinearCase, session: Session) -> None:
    """Scales of 1: a linear layer on the numbers themselves, which every dtype holds."""
    given = session.inputs()
    got = again(case, session, given | {"scales": torch.ones_like(given["scales"])})
    expected = packed_linear(given["x"], PackedWeight.pack(dense_weight(given, scaled=False).to(given["x"].dtype)), given["bias"])
    session.expect_same("out", got + 0.0, expected + 0.0, "with scales of 1 it is packed_linear on the numbers of the codes")


def _nan_stays(case: Fp8LinearCase, session: Session) -> None:
    """NaN in a row of x and a NaN code, which other rows multiply with 0, reach their row and their column, and nothing else; so
    do both where the scale is 0: the row then has a single NaN. A single row gets one of the two; half of the cases take one."""
    given = session.inputs()
    row, column, k = tuple(size // 2 for size in case.outer), case.N // 2, case.seed % case.K
    base, codes, scales = given["x"].clone(), _codes(given), given["scales"].clone()
    alone = bool(case.seed // 5 % 2)
    if alone:
        base = base[row][None].clone()
    base[..., k] = 0
    unscaled = case.seed % 3 > 0
    if unscaled:
        scales[column // given["block_n"], k // given["block_k"]] = 0
    first = again(case, session, given | {"x": base, "scales": scales})
    x = base.clone()
    clean = torch.ones(first.shape, dtype=torch.bool)
    single, in_x = alone or prod(first.shape[:-1]) == 1, case.seed // 10 % 2 == 0
    place = (0,) if alone else row
    if in_x or not single:
        x[(*place, k) if unscaled else place], clean[place] = torch.nan, False
    if not (single and in_x):
        codes[column, k] = NAN_CODES[case.seed // 2 % 2]
    got = again(case, session, _packed(given, codes, scales) | {"x": x})
    clean[..., column] = False
    session.expect(bool(got[~clean].isnan().all()), "out", "NaN reaches its row and its column")
    where = (*row, clean[0]) if alone else (clean,)
    expect(session, got[clean], first[clean], where, "NaN stays in its row and its column")


RELATIONS = {
    **SCALED_RELATIONS,
    "parts": Relation(_parts, "concatenating weights at a block of outputs concatenates the results",
                      lambda case: case.block_size[0] < case.N),
    "equal_scales": Relation(_equal_scales, "equal scales of all blocks are one scale", lambda case: case.values == "integers"),
    "negated": Relation(_negated, "codes of the other sign negate the result", lambda case: not case.bias),
    "unscaled": Relation(_unscaled, "with scales of 1 it is packed_linear", lambda case: case.values != "uniform"),
    "nan": Relation(_nan_stays, "a NaN code reaches its column, also where x is 0, and nothing else", has_rows),
}  # fmt: skip
