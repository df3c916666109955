"""rms_norm: what is drawn, and the arguments of a case."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_PARAMETERS, POOL, READ_ROWS
from kernelpair.call.layout import FUSED as HALVES
from kernelpair.call.place import repeated
from kernelpair.call.values import generator, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import any_of, around, between, common, float_dtypes, shrinking, together

OUTER = ((1,), (2,), (3,), (5,), (33,), (0,), (), (3, 2), (5, 33), (2, 3, 2), (3, 2, 5))
WIDTHS = (1, 2, 7, *around(8, 16, 32, 64), 13, 22, 28, 96, 128, 264, 1024, 2880, 5121, 16384, 0)  # of a group
GROUPS = (0, 0, 0, 1, 2, 3, 8, 40)
BESIDE, NARROW = ("padded", "sliced", "apart"), (1, 1, 2, 1, 5)
MOST_ELEMENTS = 1 << 15
TALL = (2200, 32)  # rows, of one column,
WIDE = 65_544  # or columns of a group of one case in 32 each: more than 16 bits count
MODELS = (  # outer sizes, width of a group, groups
    ((16,), 4096, 0), ((7,), 7168, 0), ((33,), 2048, 0), ((130, 8), 128, 0), ((64, 32), 64, 0), ((5,), 512, 16), ((3,), 16384, 0),
    ((3,), 64, 130),
    (TALL, 1, 0), ((2,), WIDE, 0),
)  # fmt: skip
TINY = 2.0**-126  # a smaller eps may be rounded
EPS = (1e-6, 1e-5, 1e-12, 1.0, 1e-20, 1e-40, 1e30)
LEAST = 2e-19  # squares next to the least normal number, which still rule where eps is smaller
FAINT = 2.0**-110  # squares below the least number: eps alone rules
# 1e4: what a few channels of large models reach; 1e-10: next to small eps
HUGE = 1e15  # squares that are far from the end of float32, but not from that of a sum that was scaled up
SIZES = (1.0, 1e-3, 30.0, 0.1, 1e4, 1e-10, LEAST, FAINT, HUGE)
FAINT_EPS = 1e-12  # the least beside faint numbers
PEAK = 32.0  # a larger one would hide the other columns' squares
STEEPEST, HEAVY = 1e4, 500.0  # gates and weights, but of float16, which does not hold the results
WRITABLE = (*POOL, HALVES)
"""Of x in place."""
LAYOUTS = {"x": READ_ROWS, "residual": POOL, "gate": READ_ROWS, "weight": FAR_PARAMETERS}
FUSED = (("x", "residual"), ("residual", "x"))
SIXTEEN = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class NormCase(Case):
    """Rows of `width` columns, or of `groups` groups of that width."""

    outer: tuple[int, ...] = (1,)
    width: int = 1
    groups: int = 0
    """0: group_size is not given."""
    form: Literal["plain", "residual", "gate"] = "plain"
    weight: Literal["call", "float32", "none"] = "call"
    gemma: bool = False
    near: bool = False
    """The weights' factors lie near 0: with gemma the weights lie around -1."""
    heavy: bool = False
    """The weights are large ones, where results hold them; they are not near 0."""
    eps: float = 1e-6
    size: float = 1.0
    """Of x and residual. Of the least one no element, nor a sum of two, is nearer to 0, but for rows of zeros."""
    steep: float = 4.0
    """Largest |gate|."""
    zeros: bool = False
    """Every third row is 0."""
    peak: bool = False
    """In x and residual one column of each group is larger than the others, so that no sum may be without it."""
    exact: int = -1
    """m from 0 on: each s is +-a, a power of two, and in 16 bits eps such that the root is 2^m a: only the result is rounded. In
    float32 the sum of squares is exact."""
    in_place: bool = False
    """The result is stored in x."""

    @property
    def result(self) -> str:
        """The output that holds it."""
        return "x" if self.in_place else "out"

    @property
    def columns(self) -> int:
        return self.width * max(self.groups, 1)


FIELDS = together(
    {
        "dtype": float_dtypes,
        **common(LAYOUTS, [], FUSED),
        "form": any_of("plain", "residual", "gate"),
        "weight": any_of("call", "float32", "call", "none"),
        "gemma": any_of(False, True),
        "near": any_of(False, True, False),
        "heavy": any_of(False, False, False, True),
        "eps": any_of(*EPS),
        "size": any_of(*SIZES),
        "steep": any_of(4.0, 100.0, 0.1, STEEPEST),
        "zeros": any_of(False, False, True),
        "peak": any_of(False, True),
        "exact": any_of(-1, -1, -1, 0, 1, 3),
        "in_place": any_of(False, False, True),
    }
)


@st.composite
def strategy(draw: st.DrawFn) -> NormCase:
    """Any sizes, forms, dtypes and layouts that the contract allows."""
    fields, width, groups = draw(FIELDS), draw(any_of(*WIDTHS), label="width"), draw(any_of(*GROUPS), label="groups")
    outer = draw(any_of(*OUTER), label="outer")
    if fields["seed"] % 8 == 3:
        fields["layout"] = {**fields["layout"], "x": "swapped"}
    rare = draw(between(0, 31), label="rare")
    if rare in (28, 29):  # rows so narrow that what is read or written beside them shows, apart in memory
        apart = dict.fromkeys(("x", "residual", "gate"), BESIDE[fields["seed"] % len(BESIDE)])
        fields["layout"] = {**fields["layout"], **apart}
        several = outer if prod(outer) > 1 else (33,)
        return completed(fields, several, NARROW[fields["seed"] // 3 % len(NARROW)], 0)
    if rare >= 30:
        return completed(fields, (1,), WIDE, groups % 3) if rare == 31 else completed(fields, TALL, 1, 0)
    if width * groups > MOST_ELEMENTS or not width:
        groups = 0
    columns = width * max(groups, 1)
    return completed(fields, outer if prod(outer) * columns <= MOST_ELEMENTS else (2,), width, groups)


def completed(fields: dict[str, Any], outer: tuple[int, ...], width: int, groups: int) -> NormCase:
    """The case of these sizes: of what was drawn, all that goes together."""
    fields = dict(fields)
    if fields["in_place"] and fields["layout"].get("x") not in WRITABLE:
        fields["layout"] = {name: kind for name, kind in fields["layout"].items() if name != "x"}
    if fields["layout"].get("x") == "swapped" and len(outer) < 2:  # one row, or rows of one dimension, cannot be
        outer = (min(max(prod(outer), 2), 33), 2)
    if not outer:  # the only dimension is the last, which is dense
        fields["layout"] = {name: kind for name, kind in fields["layout"].items() if kind != EXPANDED}
    if fields["weight"] == "none":
        fields |= {"gemma": False, "near": False}
    if fields["form"] == "gate":
        fields["exact"] = -1
    if fields["size"] == LEAST:
        fields["eps"] = min(EPS)
    if fields["size"] == FAINT:
        fields["eps"] = max(fields["eps"], FAINT_EPS)
    if fields["dtype"] == "float16":
        fields |= {"steep": min(fields["steep"], 100.0), "heavy": False, "size": min(fields["size"], 1e4)}
    if fields["near"] or fields["weight"] == "none":
        fields["heavy"] = False
    return NormCase(**fields, outer=outer, width=width, groups=groups)


@cache
def models(slow: bool) -> st.SearchStrategy[NormCase]:
    """Hidden sizes and heads of models: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> NormCase:
    fields, (outer, width, groups) = draw(FIELDS), draw(any_of(*MODELS), label="sizes")
    return completed(fields, tuple(draw(shrinking(n)) for n in outer), draw(shrinking(width)), groups and draw(shrinking(groups)))


def _weight(case: NormCase, dtype: torch.dtype) -> Tensor | None:
    """In the exact mode the factor is a multiple of 1/16, so that its product with a power of two is exact in 16 bits."""
    if case.weight == "none":
        return None
    shape = (case.columns,)
    if case.exact >= 0:
        factor = torch.from_numpy(generator(case.seed, "weight").integers(-63, 63, size=shape)) / 16
    else:
        factor = uniform(case.seed, "weight", shape, scale=0.125 if case.near else HEAVY if case.heavy else 2.0)
    wanted = torch.float32 if case.weight == "float32" else dtype
    return (factor - 1 if case.gemma else factor).to(torch.float32).to(wanted)


def _signs(case: NormCase, name: str, shape: tuple[int, ...], size: float) -> Tensor:
    return (2.0 * torch.from_numpy(generator(case.seed, name).integers(0, 2, size=shape)) - 1) * size


def _rows(case: NormCase, name: str, shape: tuple[int, ...]) -> Tensor:
    values = uniform(case.seed, name, shape, scale=case.size)
    if case.size == LEAST:
        values = (values.abs() + case.size) * _signs(case, "signs", shape, 1.0).float()
    elif case.peak and values.numel():
        peak = (0, case.width - 1, case.seed // 3 % case.width)[case.seed % 3]
        values.view(-1, case.width).div_(torch.where(torch.arange(case.width) == peak, 1.0, PEAK))
    if case.zeros and values.numel():
        values.view(-1, case.columns)[::3] = 0
    return values


def inputs(case: NormCase) -> Inputs:
    """The same numbers whatever the layouts."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape, unit = (*case.outer, case.columns), 2.0 ** (case.seed % 9 - 4)
    residual, gate, eps = None, None, case.eps
    if case.exact >= 0:
        eps = unit * unit * (4.0**case.exact - 1) or 1e-30
        if dtype == torch.float32:  # a root of any mantissa, for an estimate of it may be exact for powers of two
            eps = unit * unit * (1 + case.seed % 61) / 16
        x = _signs(case, "x", shape, unit)
        x = repeated(x, case.layout.get("x"))
        if case.form == "residual":
            residual = (_signs(case, "residual", shape, unit) - x).to(dtype)
        x = x.to(dtype).contiguous()
    else:
        x = _rows(case, "x", shape).to(dtype)
        if case.form == "residual":
            residual = _rows(case, "residual", shape).to(dtype)
            if case.size == LEAST:  # of one sign: the square of a small difference would be subnormal
                residual = residual.abs().copysign(repeated(x, case.layout.get("x")))
    if case.form == "gate":
        gate = uniform(case.seed, "gate", shape, dtype, case.steep)
    return {
        **({"in_place": True} if case.in_place else {}),
        "x": x,
        "weight": _weight(case, dtype),
        "eps": eps,
        "residual": residual,
        "gate": gate,
        "group_size": case.width if case.groups else None,
        "gemma": case.gemma,
    }


class Face:
    """Both forms of one side: a call with in_place stores its result in x, and returns none. It has the defaults of the form that
    returns it."""

    def __init__(self, returning: Callable[..., Tensor], in_place: Callable[..., None]) -> None:
        self._forms = returning, in_place
        told = inspect.signature(returning)
        stored = inspect.Parameter("in_place", inspect.Parameter.KEYWORD_ONLY, default=False)
        self.__signature__ = told.replace(parameters=[*told.parameters.values(), stored])

    def __call__(self, *given: Any, in_place: bool = False, **named: Any) -> Tensor | None:
        return self._forms[in_place](*given, **named)


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: prod(case.outer) * case.columns}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: prod(case.outer) == 0,
    "no columns": lambda case: case.columns == 0,
    "more rows than 16 bits count": lambda case: prod(case.outer) > 2**16,
    "one column": lambda case: case.columns == 1,
    "a partial vector": lambda case: case.width % 16 > 0,
    "one row, of one dimension": lambda case: case.outer == () and case.width > 16,
    "heads that are slices of a wider row": lambda case: len(case.outer) > 1 and case.layout.get("x") == "sliced",
    "residual strided as x is not": lambda case: (
        case.form == "residual"
        and case.layout.get("residual") in ("padded", "sliced")
        and case.layout.get("x") != case.layout["residual"]
    ),
    "residual between the rows of x": lambda case: (
        case.form == "residual" and case.layout.get("x") == "fused" and len(case.outer) > 0 and case.outer[0] > 1
    ),
    **{
        f"{form}, one column, rows apart": lambda case, form=form: (  # type: ignore[misc]
            case.form == form and case.columns == 1 and prod(case.outer) > 1
            and all(case.layout.get(name) in BESIDE for name in ("x", *({form} & {"residual", "gate"})))
        )
        for form in ("plain", "residual", "gate")
    },
    **{
        f"{form} in place": lambda case, form=form: case.in_place and case.form == form  # type: ignore[misc]
        for form in ("plain", "residual", "gate")
    },
    "groups": lambda case: case.groups > 1 and case.width > 1,
    "gated groups": lambda case: case.groups > 1 and case.form == "gate",
    "gemma with a residual": lambda case: case.gemma and case.form == "residual",
    "gemma around -1": lambda case: case.gemma and case.near,
    "a float32 weight beside 16 bits": lambda case: case.weight == "float32" and case.dtype in SIXTEEN,
    "no weight": lambda case: case.weight == "none",
    "a strided weight": lambda case: case.weight != "none" and case.layout.get("weight") == "strided",
    "gates saturate": lambda case: case.form == "gate" and case.steep == 100,
    "heavy weights": lambda case: case.heavy and case.exact < 0 and case.columns > 1,
    "steep gates": lambda case: case.form == "gate" and case.steep == STEEPEST,
    "faint residuals": lambda case: case.form == "residual" and case.size == FAINT and case.exact < 0 and case.dtype == "float32",
    "zero rows": lambda case: case.zeros and case.exact < 0 and prod(case.outer) > 0,
    "one column rules": lambda case: (
        case.peak and case.exact < 0 and case.size > LEAST and prod(case.outer) > 0 and case.width > 16
    ),
    "squares next to 2^-126": lambda case: case.size == LEAST and case.exact < 0 and case.dtype != "float16",
    "eps above all squares": lambda case: case.eps == 1.0 and case.size == 1e-3 and case.exact < 0,
    **{f"exact, root 2^{m}": lambda case, m=m: case.exact == m and case.dtype in SIXTEEN for m in (0, 1, 3)},  # type: ignore[misc]
    "exact sums of wide groups in float32": lambda case: case.exact >= 0 and case.dtype == "float32" and case.width > 4096,
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
