"""gdn_gating on trial: elementwise gates that must be accurate from the flat end to the saturated one, wherever they stand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, READ_ONLY, TURNED
from kernelpair.pair import Bad, BenchRow, Bound, Inputs, Outputs, Pair, Relation, every_argument
from kernelpair.session import Session
from kernelpair.values import permutation, uniform
from optimized import operator
from properties.attention_bound import EXP_ERROR, UNIT_ROUNDOFF, flush_error
from properties.strategies import any_of, around, common, float_dtypes, together
from reference.gdn_gating import gdn_gating

ROWS = (1, 7, 0, 2, 1024)
HEADS = (1, 6, *around(16, 32), 48, 64)  # around one and two vectors, and models' head counts
CENTRES = (0, -100, -88, -20, -17, 20, 88, 100)  # of a + dt_bias: where exp, log1p or the threshold change their ways
LOG_RATES = (0, -10, 10, 3)  # around which A_log lies
THRESHOLDS = (20.0, 0.5)
BETAS = (1.0, 0.5, 2.0)
JUMP = 2.0**-4  # distance that z keeps from a low threshold, where softplus jumps
VECTORS = ("A_log", "dt_bias")
MOST_ELEMENTS = 8192

MATRIX = (*READ_ONLY, *TURNED, "strided", "transposed")
ARGUMENT_LAYOUTS = {"a": MATRIX, "b": MATRIX, "A_log": ANY_STRIDES, "dt_bias": ANY_STRIDES}


@dataclass(frozen=True, kw_only=True)
class GatingCase(Case):
    """a and b of `rows` tokens and some heads."""

    rows: int = 1
    heads: int = 1
    centre: int = 0
    """a + dt_bias lies within 3 of it."""
    log_rate: int = 0
    spread: float = 4.0
    """Largest |b|."""
    softplus_beta: float = 1.0
    softplus_threshold: float = 20.0
    wide: tuple[str, ...] = ()
    """The parameter vectors in float32 instead of the call's dtype."""


FIELDS = together({"dtype": float_dtypes, **common(ARGUMENT_LAYOUTS, [])})


@st.composite
def cases(draw: st.DrawFn) -> GatingCase:
    """Any sizes, regimes, dtypes and layouts that the contract allows."""
    fields = draw(FIELDS)
    heads, rows = draw(any_of(*HEADS), label="heads"), draw(any_of(*ROWS), label="rows")
    return GatingCase(
        **fields,
        rows=rows if rows * heads <= MOST_ELEMENTS else 7,
        heads=heads,
        centre=draw(any_of(*CENTRES), label="centre"),
        log_rate=draw(any_of(*LOG_RATES), label="log_rate"),
        spread=draw(any_of(4.0, 200.0, 1e-3)),
        softplus_beta=draw(any_of(*BETAS)),
        softplus_threshold=draw(any_of(*THRESHOLDS)),
        wide=draw(any_of((), VECTORS, ("A_log",), ("dt_bias",))),
    )


def inputs(case: GatingCase) -> Inputs:
    """a and dt_bias share the centre; with a low threshold z keeps away from it."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    vector = {name: torch.float32 if name in case.wide else dtype for name in VECTORS}
    half = case.centre / 2
    dt_bias = (uniform(case.seed, "dt_bias", (case.heads,)) + half).to(vector["dt_bias"])
    a = (uniform(case.seed, "a", (case.rows, case.heads), scale=2.0) + half).to(dtype)
    if case.layout.get("a") == "expanded":
        a = a[:1].expand(a.shape).contiguous()
    z = case.softplus_beta * (a.double() + dt_bias.double())
    if case.softplus_threshold < 15:
        a = torch.where((z - case.softplus_threshold).abs() < JUMP, a.float() - 1, a.float()).to(dtype)
    return {
        "A_log": (uniform(case.seed, "A_log", (case.heads,)) + case.log_rate).clamp(-10, 10).to(vector["A_log"]),
        "a": a,
        "b": uniform(case.seed, "b", (case.rows, case.heads), dtype, case.spread),
        "dt_bias": dt_bias,
        "softplus_beta": case.softplus_beta,
        "softplus_threshold": case.softplus_threshold,
    }


def bound(case: GatingCase, given: Inputs, truth: Outputs) -> Bound:
    """|dg| <= (3 2^-18 + 2^-22 + 2^-23 s |z|) |g| + 2^-125 (1 + exp(A_log) / softplus_beta), |dbeta| <= (u + 2^-16) beta + t(0).

    exp, log1p and exp(A_log) err by 2^-18 each at most, and a relative error of exp(z) is no larger in log(1 + exp(z)); four
    more operations round by 2^-24. x = a + dt_bias and z = softplus_beta x are rounded too: z is off by 2^-23 |z|, and g by that
    times the slope s of log(softplus): sigmoid(z) / log(1 + exp(z)), or 1 / z above the threshold.
    Results below 2^-126 may be flushed, before or after they are scaled.
    """
    flushed = 2.0**-125 * (1 + given["A_log"].exp() / case.softplus_beta)
    z = case.softplus_beta * (given["a"] + given["dt_bias"])
    slope = torch.where(z > case.softplus_threshold, 1 / z.abs(), z.sigmoid() / z.exp().log1p())
    u = UNIT_ROUNDOFF[getattr(torch, case.dtype)]
    beta = truth["beta"]
    return {
        "g": (3 * EXP_ERROR + 2.0**-22 + 2.0**-23 * slope * z.abs()) * truth["g"].abs() + flushed,
        "beta": (u + 2.0**-16) * beta + flush_error(torch.zeros_like(beta), getattr(torch, case.dtype)),
    }


# --- relations ---

NAMES = ("g", "beta")


def _constant(case: GatingCase, session: Session) -> None:
    """One element's inputs everywhere: its bits everywhere, and those of the first call."""
    given = session.inputs()
    if not given["a"].numel():
        return
    row, head = case.seed % case.rows, case.seed % case.heads
    at = {name: given[name][row, head] for name in ("a", "b")} | {name: given[name][head] for name in VECTORS}
    flat = given | {name: torch.full_like(given[name], value.item()) for name, value in at.items()}
    again = session.run(replace(case, layout={}), flat, judged=False)
    for name in NAMES:
        expected = session.first.outputs[name][row, head].reshape(1, 1).repeat(case.rows, case.heads)
        session.expect_same(name, again.outputs[name], expected, "one input everywhere")


def _permuted(case: GatingCase, session: Session) -> None:
    given = session.inputs()
    rows, heads = permutation(case.seed, "rows", case.rows), permutation(case.seed, "heads", case.heads)
    other = given | {name: given[name][rows][:, heads] for name in ("a", "b")}
    other |= {name: given[name][heads] for name in VECTORS}
    again = session.run(replace(case, layout={}), other, judged=False)
    for name in NAMES:
        session.expect_same(name, again.outputs[name], session.first.outputs[name][rows][:, heads], "rows and heads permuted")


def _dense(case: GatingCase, session: Session) -> None:
    layout = {} if case.layout else {"a": "turned", "b": "strided", "A_log": "strided", "dt_bias": "strided"}
    again = session.run(replace(case, layout=layout), session.inputs(), judged=False)
    for name in NAMES:
        session.expect_same(name, again.outputs[name], session.first.outputs[name], "another layout")


def _halves(case: GatingCase, session: Session) -> None:
    given = session.inputs()
    cut = case.seed % (case.rows + 1)
    for part in (slice(0, cut), slice(cut, None)):
        other = given | {name: given[name][part] for name in ("a", "b")}
        again = session.run(replace(case, layout={}), other, judged=False)
        for name in NAMES:
            session.expect_same(name, again.outputs[name], session.first.outputs[name][part], "some of the rows")


def _monotone(case: GatingCase, session: Session) -> None:
    """g falls as a rises, and is never positive, up to twice its bound; a low threshold's jump is left out."""
    given = session.inputs()
    ordered = given["a"].double().sort(dim=0).values.to(given["a"].dtype)
    again = session.run(replace(case, layout={}, softplus_threshold=20.0), given | {"a": ordered, "softplus_threshold": 20.0})
    g, tolerance = again.outputs["g"].double(), again.bound["g"]
    assert isinstance(tolerance, Tensor)
    session.expect(bool((g <= 0).all()), "g", "g is positive")
    session.expect(bool((g[1:] - g[:-1] <= tolerance[1:] + tolerance[:-1]).all()), "g", "g rises with a")


def _landmarks(case: GatingCase, session: Session) -> None:
    """Values that are exact: sigmoid at 0 and far out; g = -x past the threshold where A_log = 0."""
    given = session.inputs()
    shape = given["a"].shape
    for b, beta in ((0.0, 0.5), (150.0, 1.0), (-150.0, 0.0)):
        past = given | {
            "a": torch.full(shape, 64.0).to(given["a"].dtype),
            "b": torch.full(shape, b).to(given["b"].dtype),
            "A_log": torch.zeros_like(given["A_log"]),
            "dt_bias": torch.ones_like(given["dt_bias"]),
        }
        again = session.run(replace(case, layout={}), past, judged=False)
        session.expect_same("beta", again.outputs["beta"] + 0, torch.full(shape, beta).to(given["b"].dtype), f"sigmoid({b:g})")
        session.expect_same("g", again.outputs["g"], torch.full(shape, -65.0), "past the threshold")


RELATIONS = {
    "constant": Relation(_constant, "equal inputs give equal bits at every row and head"),
    "permute": Relation(_permuted, "permuting rows and heads permutes the bits"),
    "layout": Relation(_dense, "strides do not matter, bit for bit"),
    "halves": Relation(_halves, "a batch equals its parts, bit for bit"),
    "monotone": Relation(_monotone, "g <= 0, and it falls as a rises"),
    "landmarks": Relation(_landmarks, "sigmoid(0) = 1/2, it saturates, and g = -x past the threshold"),
}


# --- wrong calls ---


def _grown(name: str, dim: int, *against: str) -> Bad:
    def spoil(case: GatingCase, given: Inputs) -> Inputs:
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return Bad(spoil, ValueError, (name, *against))


def _set(error: type[Exception], name: str, value: object) -> Bad:
    return Bad(lambda case, given: given | {name: value}, error, name)


def _cast(name: str, to: Callable[[torch.dtype], torch.dtype], *against: str) -> Bad:
    return Bad(lambda case, given: given | {name: given[name].to(to(given[name].dtype))}, TypeError, (name, *against))


def _other(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype == torch.float32 else torch.float32


BAD = {
    "b_rows": _grown("b", 0, "a"),
    "b_heads": _grown("b", 1, "a"),
    "A_log_heads": _grown("A_log", 0),
    "dt_bias_heads": _grown("dt_bias", 0),
    "a_rank": Bad(lambda case, given: given | {"a": given["a"][None]}, ValueError, "a"),
    "b_rank": Bad(lambda case, given: given | {"b": given["b"].reshape(-1)}, ValueError, "b"),
    "A_log_rank": Bad(lambda case, given: given | {"A_log": given["A_log"][None]}, ValueError, "A_log"),
    "b_dtype": _cast("b", _other, "a"),
    "a_integers": _cast("a", lambda dtype: torch.int64, "b"),
    "A_log_dtype": _cast("A_log", lambda dtype: torch.float64),
    "dt_bias_integers": _cast("dt_bias", lambda dtype: torch.int32),
    "a_none": _set(TypeError, "a", None),
    "beta_zero": _set(ValueError, "softplus_beta", 0.0),
    "beta_negative": _set(ValueError, "softplus_beta", -1.0),
    "beta_infinite": _set(ValueError, "softplus_beta", float("inf")),
    "beta_nan": _set(ValueError, "softplus_beta", float("nan")),
    "threshold_nan": _set(ValueError, "softplus_threshold", float("nan")),
}


# --- bench ---


def _bench_inputs(rows: int) -> Inputs:
    a, b = torch.randn(2, rows, 32, dtype=torch.bfloat16)
    return {"A_log": torch.randn(32), "a": a, "b": b, "dt_bias": torch.randn(32)}


def _torch_gating(given: Inputs) -> Callable[[], object]:
    A_log, a, b, dt_bias = (given[name] for name in ("A_log", "a", "b", "dt_bias"))
    return lambda: (-A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias), b.sigmoid())


def _says(**wanted: Any) -> Callable[[Any], bool]:
    return lambda case: all(getattr(case, name) == value for name, value in wanted.items())


PAIR = Pair(
    name="gdn_gating",
    version=1,
    case=GatingCase,
    cases=cases(),
    inputs=inputs,
    reference=gdn_gating,
    optimized=operator("gdn_gating"),
    bound=bound,
    results=NAMES,
    result_dtype=lambda case, name: torch.float32 if name == "g" else getattr(torch, case.dtype),
    layouts=ARGUMENT_LAYOUTS,
    relations=RELATIONS,
    bad=BAD,
    fuzz=every_argument,
    edges={
        "no rows": _says(rows=0),
        "many rows": _says(rows=1024),
        "a partial vector of heads": lambda case: case.heads % 16 > 0,
        "strided b": lambda case: case.layout.get("b") in ("strided", "transposed", *TURNED),
        "|b| saturates": lambda case: case.spread > 100,
        "float32 vectors beside 16-bit gates": lambda case: bool(case.wide) and case.dtype != "float32",
        **{f"x near {centre}": _says(centre=centre) for centre in CENTRES},
        **{f"threshold {t}": _says(softplus_threshold=t) for t in THRESHOLDS},
        **{f"softplus_beta {s}": _says(softplus_beta=s) for s in BETAS},
        **{f"dtype {d}": _says(dtype=d) for d in ("float32", "bfloat16", "float16")},
    },
    bench_case=GatingCase(seed=8, dtype="bfloat16", rows=64, heads=32, wide=("A_log",)),
    memory="none",
    bench=[
        BenchRow(f"{rows} x 32", lambda rows=rows: _bench_inputs(rows), bytes=rows * 32 * 10, peers={"torch": _torch_gating})  # type: ignore[misc]
        for rows in (1, 64, 1024)
    ],
)
