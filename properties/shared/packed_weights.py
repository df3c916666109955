"""What the pairs that pack a linear layer's weight [N, K] share: how sizes are drawn and measured, what holds of panels of 32
outputs, and what both sides refuse."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import ODD_STRIDE, READ_ROWS
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs, Relation, WrongCall
from kernelpair.trial.session import Session
from properties.shared.strategies import any_of, around, between, near, shrinking
from properties.shared.wrong_calls import changed, replaced

WEIGHT_LAYOUTS = (*READ_ROWS, "strided", "transposed", "far_columns")
OUTPUTS = (1, 7, *around(16, 32, 64), 96, 416)  # N of a weight of codes or bytes
LONG = 70_000  # N or K that 16 bits do not count
WIDE = 2**32  # added to the size of a block: more than 32 bits hold, and what they leave would cut
PANELS_BEYOND = 2**32  # a number of panels or blocks that is 0 more in 32 bits
OTHER_DTYPES = {
    torch.uint8: torch.int8, torch.int8: torch.uint8,
    torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64,
}  # of the same bits
TURNED_BITS = "bits turned"  # packed bytes that nobody packed: legal, for dummy weights are any bytes
SAME_WEIGHT = "a weight that is made of its plain tensors again is the same weight"
Part = Callable[[Inputs, int], Inputs]
"""The arguments that pack a weight's outputs from this one on alone."""


@dataclass(frozen=True, kw_only=True)
class WeightCase(Case):
    """A weight [N, K]."""

    N: int = 1
    K: int = 1


def of_sizes(
    of: Callable[..., Any], fields: st.SearchStrategy[Any], outputs: Sequence[int], depths: Sequence[int], deepest: int = LONG
) -> st.SearchStrategy[Any]:
    """Cases of any of these N and K; in one of 32 N is long, in two K is as long as it may be, and the other one short."""

    def case_of(drawn: tuple[dict[str, Any], int, int, int]) -> Any:
        fields, N, K, rare = drawn
        if rare >= 29:
            fields, N, K = near(fields), *((LONG, min(K, 8)) if rare == 31 else (min(N, 8), min(LONG, deepest)))
        return of(**fields, N=N, K=K)

    return st.tuples(fields, any_of(*outputs), any_of(*depths), between(0, 31)).map(case_of)


def of_models(
    of: Callable[..., Any], fields: st.SearchStrategy[Any], table: Sequence[tuple[int, int]]
) -> Callable[[bool], st.SearchStrategy[Any]]:
    """For `Cases.models`: cases of a row N, K of the table, or less of it. Bytes move, so a slow candidate gets the same."""
    rows = any_of(*table).flatmap(lambda row: st.tuples(shrinking(row[0]), shrinking(row[1])))
    strategy = st.tuples(fields, rows).map(lambda drawn: of(**drawn[0], N=drawn[1][0], K=drawn[1][1]))
    return lambda slow: strategy


MEASURES: dict[str, Callable[[Any], int]] = {
    "columns": lambda case: case.N,
    "width": lambda case: case.K,
    "elements": lambda case: case.N * case.K,
}


def edges(weight: str = "weight", block: int = 32) -> dict[str, Callable[[Any], bool]]:
    """Sizes beside panels and blocks of so many k, and a weight that lies the other way round."""
    return {
        "N = 1": lambda case: case.N == 1,
        "partial panel": lambda case: case.N % 32 > 0,
        "half a panel": lambda case: 0 < case.N % 32 <= 16,
        "whole panels": lambda case: case.N % 32 == 0,
        "odd K": lambda case: case.K % 2 > 0,
        "K that cuts a block": lambda case: case.K % block > 0,
        "transposed": lambda case: case.layout.get(weight) == "transposed" and case.K > 1,
    }


def given_back(packed: Tensor, weight: Tensor, wrongly: str = "") -> tuple[Tensor, int, int]:
    """What unpacking is called with: what packing gave of a weight, and its size, or in a wrong call something else."""
    N, K = weight.shape
    if wrongly == "wider":
        return packed, N + 32, K
    if wrongly == "longer":
        return packed, N, K + 64
    if wrongly == "narrower":
        return packed, N - 32, K
    if wrongly == "shorter":
        return packed, N, K - 64
    if wrongly == "wider beyond 32 bits":
        return packed, N + 32 * PANELS_BEYOND, K
    if wrongly == "longer beyond 32 bits":
        return packed, N, K + 64 * PANELS_BEYOND
    if wrongly == "no outputs":
        return packed[:0], 0, K
    if wrongly == "no columns":
        return packed[:, :0], N, 0
    if wrongly == "rank":
        return packed[0], N, K
    if wrongly == "too long":  # for sums of bytes
        return packed.new_zeros(1, 1025, *packed.shape[2:]), 1, 65_537
    if wrongly == "apart":
        return packed.repeat_interleave(2, -1)[..., ::2], N, K
    if wrongly == "gaps":  # between panels or, of one, between its halves
        dim = 0 if len(packed) > 1 else 2
        return packed.repeat_interleave(2, dim).unflatten(dim, (-1, 2)).select(dim + 1, 0), N, K
    if wrongly == "dtype":
        return packed.view(OTHER_DTYPES[packed.dtype]), N, K
    if wrongly == TURNED_BITS:
        return turned(packed), N, K
    return packed, N, K


def turned(packed: Tensor) -> Tensor:
    """Every bit the other way round: no longer what packing makes, padding is not 0."""
    bits = packed.view(OTHER_DTYPES[packed.dtype]) if packed.is_floating_point() else packed
    return bits.bitwise_not().view(packed.dtype)


def back_from(packed: Any, weight: Tensor, wrongly: str = "") -> Any:
    """What the library's packed weight unpacks to, of bytes that are `moved`, or in a wrong call of something else."""
    data, N, K = given_back(moved(packed.data), weight, wrongly)
    return replace(packed, data=data, **{"N": N, "K": K} if wrongly else {}).unpack()


def moved(packed: Tensor) -> Tensor:
    """The same bytes; of an odd number of panels 3 elements behind the beginning of a cache line, for unpacking reads them from
    anywhere, and with any stride where there is but one panel or block, which makes them no less contiguous."""
    if len(packed) % 2 == 0:
        return packed
    other = packed.new_empty(packed.numel() + 3)[3:].view(packed.shape).copy_(packed)
    strides = [ODD_STRIDE if size == 1 else step for size, step in zip(other.shape, other.stride())]
    return other.as_strided(other.shape, strides)


def relations(
    unpacked: Mapping[str, str], results: Sequence[str], part: Part, panels: Mapping[str, int],
    turn: Callable[[str, Tensor], Tensor] = lambda name, tensor: turned(tensor),
) -> dict[str, Relation]:
    """What holds of `results`: unpacking (result -> argument) returns what was packed, in
    whatever dtype it has, strides do not matter, and a weight that
    begins at a panel packs to what stands in `panels` (result -> outputs of an entry) from there on. Packed bits that are turned
    are unpacked as `turn` says of the results."""

    def inverse(case: Any, session: Session) -> None:
        given, first = session.inputs(), session.first.outputs
        for result, argument in unpacked.items():
            expected, dtype = given[argument], first[result].dtype
            if expected is not None:
                bits = expected.view(dtype) if expected.dtype.itemsize == dtype.itemsize else expected.to(dtype)
                session.expect_same(result, first[result], bits, "unpacking inverts packing")

    def dense(case: Any, session: Session) -> None:
        result = session.run(replace(case, layout={}), session.inputs(), judged=False)
        for name in results:
            session.expect_same(name, result.outputs[name], session.first.outputs[name], "dense tensors")

    def parts(case: Any, session: Session) -> None:
        first = case.N // 64 * 32
        result = session.run(replace(case, layout={}), part(session.inputs(), first), judged=False)
        for name, outputs in panels.items():
            expected = session.first.outputs[name][first // outputs :]
            session.expect_same(name, result.outputs[name], expected, "the later panels alone")

    def any_bits(case: Any, session: Session) -> None:
        if session.subject.foreign:
            return
        result = session.run(replace(case, layout={}), session.inputs() | {"unpacked_as": TURNED_BITS}, judged=False)
        for name in unpacked:
            session.expect_same(name, result.outputs[name], turn(name, session.first.outputs[name]), "unpacked from turned bits")

    return {
        "any_bits": Relation(any_bits, "bytes that no weight was packed to are unpacked too, whatever stands in their padding"),
        "inverse": Relation(inverse, "unpacking returns what was packed, bit for bit"),
        "layout": Relation(dense, "strides do not matter"),
        "parts": Relation(parts, "panels do not depend on each other"),
    }


def made_again(packed: Any) -> Any:
    """A packed weight as the tensors that a state_dict keeps, and made of them again."""
    return type(packed).from_tensors(**{name: tensor.clone() for name, tensor in packed.tensors().items()})


def kept(compare: Callable[[Any, Session], None], applies: Callable[[Any], bool] = lambda case: True) -> Relation:
    """A weight made of its plain tensors again, which `compare` asks for by the argument `kept`: our own sides alone make one."""

    def holds(case: Any, session: Session) -> None:
        if not session.subject.foreign:
            compare(case, session)

    return Relation(holds, SAME_WEIGHT, applies)


def unpacked(wrongly: str, error: type[Exception], *names: str) -> WrongCall:
    """Packed bytes that are not what unpacking is told, as given_back says."""
    return WrongCall(lambda case, given: given | {"unpacked_as": wrongly}, error, names)


def wrong_calls(weight: str = "weight", data: str = "data", groups: Sequence[str] = ()) -> dict[str, WrongCall]:
    """A weight that is none, and packed bytes that are not what unpacking is told; `groups`: what else has a size that goes by
    the weight's."""
    return {
        "rank": changed(weight, lambda tensor: tensor[0], ValueError),
        "no_outputs": changed(weight, lambda tensor: tensor[:0], ValueError, *groups),
        "no_columns": changed(weight, lambda tensor: tensor[:, :0], ValueError, *groups),
        "none": replaced(weight, None, TypeError),
        "unpacked_wider": unpacked("wider", ValueError, data, "N", *groups),
        "unpacked_longer": unpacked("longer", ValueError, data, "K", *groups),
        "unpacked_narrower": unpacked("narrower", ValueError, data, "N", *groups),
        "unpacked_shorter": unpacked("shorter", ValueError, data, "K", *groups),
        "unpacked_wider_beyond_32_bits": unpacked("wider beyond 32 bits", ValueError, data, "N", *groups),
        "unpacked_longer_beyond_32_bits": unpacked("longer beyond 32 bits", ValueError, data, "K", *groups),
        "unpacked_no_outputs": unpacked("no outputs", ValueError, data, "N", *groups),
        "unpacked_no_columns": unpacked("no columns", ValueError, data, "K", *groups),
        "unpacked_rank": unpacked("rank", ValueError, data),
        "unpacked_apart": unpacked("apart", ValueError, data),
        "unpacked_gaps": unpacked("gaps", ValueError, data),
        "unpacked_dtype": unpacked("dtype", TypeError, data),
    }
