"""gdn_gating: what is drawn, and the arguments of a case."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from kernelpair.call.layout import FAR_PARAMETERS, READ_ROWS, TURNED
from kernelpair.call.values import uniform
from kernelpair.contract.pair import Inputs
from properties.shared.every_value import DTYPES, SweepCase, every_value, halves
from properties.shared.softplus import NEVER, given_threshold, settled
from properties.shared.strategies import any_of, around, between, common, float_dtypes, near, together

ROWS = (1, 7, 0, 2, 1024)
HEADS = (1, 6, *around(16, 32), 48, 64, 272)  # around one and two vectors, models' head counts, and more than a byte holds
CENTRES = (0, -100, -88, -20, -17, 20, 88, 100)  # of a + dt_bias: where exp, log1p or the threshold change their ways
PLAIN_RATES = (0, -10, 10, 3, 20)  # around which A_log lies; the bound of many results says little where g leaves float32
LOG_RATES = (*PLAIN_RATES, *PLAIN_RATES, -60, 60, -70, 70, 79, -88, -99)  # exp of the last two is subnormal
LEAST_RATE, MOST_RATE = -99, 79
THRESHOLDS = (20.0, 0.5, NEVER, -5.0, -1e30)  # the last: softplus is x everywhere
BETAS = (1.0, 0.5, 2.0, 1.25, 8.0)
VECTORS = ("A_log", "dt_bias")
APART = (0.0, 0.0, 0.0, 200.0, -200.0)
MOST_ELEMENTS = 8192
MANY_ROWS = 66_000  # of one head, of one case in 32: more than 16 bits count
SWEEP: dict[str, Any] = {"rows": 2048, "heads": 32, "log_rate": -10}  # 65,536 elements; the largest a must not make g overflow
MATRIX = (*READ_ROWS, *TURNED, "strided", "transposed")
ARGUMENT_LAYOUTS = {"a": MATRIX, "b": MATRIX, "A_log": FAR_PARAMETERS, "dt_bias": FAR_PARAMETERS}


@dataclass(frozen=True, kw_only=True)
class GatingCase(SweepCase):
    """a and b of `rows` tokens and some heads."""

    rows: int = 1
    heads: int = 1
    centre: int = 0
    """a + dt_bias lies within 3 of it."""
    apart: float = 0.0
    """a is larger by it, and dt_bias smaller: their sum is small beside either of them."""
    log_rate: int = 0
    spread: float = 4.0
    """Largest |b|."""
    softplus_beta: float = 1.0
    softplus_threshold: float = 20.0
    wide: tuple[str, ...] = ()
    """The parameter vectors in float32 instead of the call's dtype."""


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, [])})


@st.composite
def strategy(draw: st.DrawFn) -> GatingCase:
    """Any sizes, regimes, dtypes and layouts that the contract allows."""
    fields = draw(FIELDS)
    heads, rows = draw(any_of(*HEADS), label="heads"), draw(any_of(*ROWS), label="rows")
    if draw(between(0, 31), label="many") == 31:
        return completed(draw, near(fields), MANY_ROWS, 1)
    return completed(draw, fields, rows if rows * heads <= MOST_ELEMENTS else 7, heads)


def completed(draw: st.DrawFn, fields: dict[str, Any], rows: int, heads: int) -> GatingCase:
    """The case of these sizes, in any regime."""
    return GatingCase(
        **fields,
        rows=rows,
        heads=heads,
        centre=draw(any_of(*CENTRES), label="centre"),
        apart=draw(any_of(*APART), label="apart"),
        log_rate=draw(any_of(*LOG_RATES) if draw(between(0, 7)) else between(LEAST_RATE, MOST_RATE), label="log_rate"),
        spread=draw(any_of(4.0, 200.0, 1e-3)),
        softplus_beta=draw(any_of(*BETAS)),
        softplus_threshold=draw(any_of(*THRESHOLDS)),
        wide=draw(any_of((), VECTORS, ("A_log",), ("dt_bias",))),
    )


@st.composite
def sweeps(draw: st.DrawFn) -> GatingCase:
    """Every finite value of a 16-bit dtype in a and in b."""
    fields = draw(FIELDS) | {"dtype": draw(any_of(*DTYPES), label="dtype")}
    fields["layout"] = {name: layout for name, layout in fields["layout"].items() if layout != "expanded"}
    return GatingCase(**fields, **SWEEP, every=True)


def simpler(case: GatingCase) -> Iterator[GatingCase]:
    """Of a sweep its halves, down to one value."""
    yield from halves(case, "rows", case.heads)
    if case.rows == 1:
        yield from halves(case, "heads", 1)


def inputs(case: GatingCase) -> Inputs:
    """a and dt_bias share the centre, and with a low threshold z is on it or keeps away; or a and b hold every finite value."""
    if case.every:
        return _every(case)
    dtype: torch.dtype = getattr(torch, case.dtype)
    vector = {name: torch.float32 if name in case.wide else dtype for name in VECTORS}
    half = case.centre / 2
    dt_bias = (uniform(case.seed, "dt_bias", (case.heads,)) + half - case.apart).to(vector["dt_bias"])
    a = (uniform(case.seed, "a", (case.rows, case.heads), scale=2.0) + half + case.apart).to(dtype)
    if case.layout.get("a") == "expanded":
        a = a[:1].expand(a.shape).contiguous()
    if case.softplus_threshold < 15:
        a = settled(a, dt_bias, case.softplus_beta, case.softplus_threshold, case.seed)
    return {
        "A_log": (uniform(case.seed, "A_log", (case.heads,)) + case.log_rate).to(vector["A_log"]),
        "a": a,
        "b": uniform(case.seed, "b", (case.rows, case.heads), dtype, case.spread),
        "dt_bias": dt_bias,
        "softplus_beta": case.softplus_beta,
        "softplus_threshold": given_threshold(case.softplus_threshold),
    }


def _every(case: GatingCase) -> Inputs:
    """a without a bias, so that x is each of the values itself."""
    values = every_value(case, (case.rows, case.heads), finite=True)
    A_log = (uniform(case.seed, "A_log", (case.heads,)) + case.log_rate).clamp(-10, 10)
    return {
        "A_log": A_log.to(values.dtype),
        "a": values,
        "b": values.clone(),
        "dt_bias": torch.zeros(case.heads, dtype=values.dtype),
        "softplus_beta": case.softplus_beta,
        "softplus_threshold": given_threshold(case.softplus_threshold),
    }


# --- relations ---

NAMES = ("g", "beta")


def _says(**wanted: Any) -> Callable[[Any], bool]:
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": _says(rows=0),
    "many rows": _says(rows=1024),
    "more rows than 16 bits count": _says(rows=MANY_ROWS),
    "a partial vector of heads": lambda case: case.heads % 16 > 0,
    "strided b": lambda case: case.layout.get("b") in ("strided", "transposed", *TURNED),
    "|b| saturates": lambda case: case.spread > 100,
    "float32 vectors beside 16-bit gates": lambda case: bool(case.wide) and case.dtype != "float32",
    "a and dt_bias that all but cancel": lambda case: case.apart != 0 and case.centre == 0 and case.rows > 0,
    **{f"x near {centre}": _says(centre=centre) for centre in CENTRES},
    **{f"threshold {t}": _says(softplus_threshold=t) for t in THRESHOLDS},
    **{f"softplus_beta {s}": _says(softplus_beta=s) for s in BETAS},
    **{f"A_log near {rate}": _says(log_rate=rate) for rate in LOG_RATES},
    **{f"dtype {d}": _says(dtype=d) for d in ("float32", "bfloat16", "float16")},
}
