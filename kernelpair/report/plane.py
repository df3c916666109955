"""An output of a call as a plane of cells: how far each element is from the truth, in bounds, and what is wrong with it."""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernelpair.trial.judge import Compared

MOST_ROWS, MOST_COLUMNS = 64, 128  # cells of a picture: a larger tensor has several elements in a cell
LEAST_POWER, MOST_POWER = -12, 12  # of error over bound, as exponents of two: what lies beyond counts at the ends
FEW_COLUMNS = 32  # a plane narrower than this takes in another dimension if it would be a tall stripe
FINE, VALUE, NONFINITE, UNWRITTEN, UNJUDGED = 0, 1, 2, 3, -1  # what is wrong with an element
KINDS = {"value": VALUE, "nonfinite": NONFINITE, "unwritten": UNWRITTEN}  # as the judge calls them
SAYS = {VALUE: "wrong", NONFINITE: "not finite", UNWRITTEN: "never written"}
FEW = 6  # indices that a sentence names one by one

Ints = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plane:
    """One tensor, its leading dimensions as rows and its trailing ones as columns; of a cell with several elements the worst."""

    tensor: str
    dtype: str
    sizes: tuple[int, ...]
    split: int
    """Dimensions before this one are rows."""
    note: str
    """Which call it was, or what relates the two sides."""
    ratios: Floats
    """[rows, columns] largest |error| / bound of each cell: inf where elements must be equal and differ, NaN: none is judged."""
    kinds: Ints
    """[rows, columns] UNJUDGED, FINE, VALUE, NONFINITE, UNWRITTEN: the worst of the cell."""
    each: tuple[int, int]
    """Rows and columns of elements in a cell."""
    wrong: int
    judged: int
    exact: bool
    """Elements must be equal: there is no bound."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Exponent k -> elements whose error / bound is at most 2^k and above 2^(k-1)."""
    where: str = ""
    """In words, which elements are wrong."""
    firsts: tuple[int, ...] = ()
    """Indices of the first dimension with a wrong element."""

    @property
    def rows(self) -> int:
        return math.prod(self.sizes[: self.split])

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[self.split :])

    @property
    def group(self) -> int:
        """Rows that belong together: the last of the leading dimensions, such as the heads of a token."""
        return self.sizes[self.split - 1] if self.split > 1 else 1

    @property
    def says(self) -> str:
        """The plane in one sentence: the text alternative of its picture."""
        shape = f"{self.tensor} {self.dtype}{list(self.sizes)}"
        if not self.wrong:
            return f"{shape}: all {self.judged} judged elements are right."
        return f"{shape}: {self.wrong} of {self.judged} judged elements are wrong: {self.where}."


def plane_of(compared: Compared) -> Plane | None:
    """The picture's data of what was compared; None for an empty tensor or two of different shapes."""
    got = compared.got
    if got.shape != compared.truth.shape or not got.numel():
        return None
    ratios, kinds = _elements(compared)
    split = _split(tuple(got.shape))
    rows = math.prod(got.shape[:split])
    each = (-(-rows // MOST_ROWS), -(-(got.numel() // rows) // MOST_COLUMNS))
    flat_ratios, flat_kinds = ratios.reshape(rows, -1), kinds.reshape(rows, -1)
    return Plane(
        tensor=compared.name,
        dtype=str(got.dtype).removeprefix("torch."),
        sizes=tuple(got.shape),
        split=split,
        note=compared.note,
        ratios=_blocks(np.where(np.isnan(flat_ratios), -1.0, flat_ratios), each, -1.0, np.nan),
        kinds=_blocks(flat_kinds.astype(np.float64), each, UNJUDGED, UNJUDGED).astype(np.int8),
        each=each,
        wrong=int((kinds > FINE).sum()),
        judged=int((kinds != UNJUDGED).sum()),
        exact=not isinstance(compared.bound, Tensor),
        histogram=_histogram(ratios[kinds != UNJUDGED]),
        where=_where(flat_kinds),
        firsts=tuple(np.flatnonzero((kinds.reshape(got.shape[0] if got.dim() else 1, -1) > FINE).any(axis=1)).tolist()),
    )


def _split(sizes: tuple[int, ...]) -> int:
    """How many leading dimensions are rows: all but the last, and fewer where that would be a tall stripe."""
    split = max(len(sizes) - 1, 0)
    while split > 1:
        rows, columns = math.prod(sizes[:split]), math.prod(sizes[split:])
        if rows <= 4 * columns or columns >= FEW_COLUMNS:
            break
        split -= 1
    return split


def _elements(compared: Compared) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Of each element error / bound (NaN: not judged), and what the judge says of it."""
    good = compared.right()
    ratio = torch.zeros(good.shape, dtype=torch.float64)
    if isinstance(compared.bound, Tensor):
        ratio = torch.where(compared.wide == compared.truth, ratio, (compared.error / compared.bound).nan_to_num(math.inf))
    else:
        ratio[~good] = math.inf
    kinds = torch.full(good.shape, FINE, dtype=torch.int8)
    for name, where in compared.kinds(good).items():
        kinds[where] = KINDS[name]
    if compared.mask is not None:
        kinds[~compared.mask] = UNJUDGED
        ratio[~compared.mask] = math.nan
    return ratio.numpy(), kinds.numpy()


def _blocks(values: Floats, each: tuple[int, int], filler: float, empty: float) -> Floats:
    """The largest value of each block of cells."""
    rows, columns = values.shape
    high, wide = -(-rows // each[0]), -(-columns // each[1])
    padded = np.full((high * each[0], wide * each[1]), filler)
    padded[:rows, :columns] = values
    largest: Floats = padded.reshape(high, each[0], wide, each[1]).max(axis=(1, 3))
    largest[largest == filler] = empty
    return largest


def _histogram(ratios: Floats) -> dict[int, int]:
    with np.errstate(divide="ignore"):
        powers = np.ceil(np.log2(np.clip(ratios, 2.0**LEAST_POWER, 2.0**MOST_POWER))).astype(int)
    values, counts = np.unique(powers, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist()))


def _where(kinds: Ints) -> str:
    """Which rows and columns are wrong, and how."""
    wrong = kinds > FINE
    if not wrong.any():
        return ""
    how = [says for kind, says in SAYS.items() if (kinds == kind).any()]
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    all_rows, all_columns = np.flatnonzero((kinds != UNJUDGED).any(axis=1)), np.flatnonzero((kinds != UNJUDGED).any(axis=0))
    places = f"{_named('row', rows, all_rows)}, {_named('column', columns, all_columns)}"
    whole = bool(wrong[np.ix_(rows, columns)].all())
    return f"{' and '.join(how)} in {places}{'' if whole else ', not in all of these'}"


def _named(what: str, wrong: npt.NDArray[np.intp], known: npt.NDArray[np.intp]) -> str:
    """Indices in words: all, every n-th, a range, a few, or how many."""
    many = wrong.tolist()
    if len(many) == len(known):
        return f"the only {what}" if len(many) == 1 else f"all {len(many)} {what}s"
    if len(many) == 1:
        return f"{what} {many[0]} of {len(known)}"
    steps = set(np.diff(wrong).tolist())
    if steps == {1}:
        return f"{what}s {many[0]} to {many[-1]} of {len(known)}"
    if len(steps) == 1 and len(many) > 2:
        return f"every {steps.pop()}. {what} from {many[0]} to {many[-1]}"
    if len(many) <= FEW:
        return f"{what}s {', '.join(map(str, many))} of {len(known)}"
    return f"{len(many)} of {len(known)} {what}s from {many[0]} to {many[-1]}"


def drawn_in_text(plane: Plane, most_rows: int = 24, most_columns: int = 72) -> str:
    """The plane for a terminal: `#` wrong, `N` not finite, `_` never written, `+` above half of its bound, `.` right, blank: not
    judged. A larger one is cut around its first wrong cell."""
    rows, columns = plane.kinds.shape
    first = np.argwhere(plane.kinds > FINE)
    top, left = (first[0].tolist() if len(first) else (0, 0))
    top = max(0, min(top - most_rows // 2, rows - most_rows))
    left = max(0, min(left - most_columns // 2, columns - most_columns))
    lines = [f"  {plane.says}" + (f" ({plane.note})" if plane.note else "")]
    for row in range(top, min(top + most_rows, rows)):
        marks = "".join(_mark(plane, row, column) for column in range(left, min(left + most_columns, columns)))
        lines.append(f"  {row * plane.each[0]:>4} {marks}".rstrip())
    if (rows, columns) != (plane.rows, plane.columns):
        lines.append(f"       a mark is {plane.each[0]} x {plane.each[1]} elements")
    return "\n".join(lines)


def _mark(plane: Plane, row: int, column: int) -> str:
    kind = int(plane.kinds[row, column])
    if kind == FINE:
        return "+" if plane.ratios[row, column] > 0.5 else "."
    return {UNJUDGED: " ", VALUE: "#", NONFINITE: "N", UNWRITTEN: "_"}[kind]
