"""A small pair over plain C kernels, good and bad ones, for testing the harness itself."""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST
from kernelpair.call.values import permutation, poison, uniform
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Bound, Cases, Coverage, Inputs, NotFuzzed, Outputs, Pair, Signature, Within, WrongCall
from kernelpair.contract.subject import Subject

SOURCE = Path(__file__).with_name("bad_kernels.cpp")
ROUNDOFF = 2.0**-24


@cache
def library() -> ctypes.CDLL:
    """The compiled bad kernels; built once for each state of their source, whoever comes first."""
    folder = Path(__file__).resolve().parents[2] / "build" / "selftest"
    built = folder / f"bad-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{os.getpid()}.so"
        compiler = os.environ.get("CXX", "g++")
        flags = ["-O1", "-fno-builtin", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(fresh)], check=True)
        fresh.rename(built)
    return ctypes.CDLL(str(built))


class ToyCall(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "slots", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "slots_in_all", "x_stride", "out_stride", "threads")),
        ("scale", ctypes.c_float),
    )


def reference(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """Write `out[slots[n]] = scale * x[n]`. IndexError for a slot outside of out."""
    _check(slots, out)
    out[slots] = scale * x


def _check(slots: Tensor, out: Tensor) -> None:
    bad = slots[(slots < 0) | (slots >= len(out))]
    if len(bad):
        raise IndexError(f"slots holds {int(bad[0])}, outside [0, {len(out)})")


def _kernel(name: str, check: bool = True) -> Callable[..., None]:
    def run(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
        if check:
            _check(slots, out)
        elif len(slots) and slots.max() >= len(out):
            return
        pointers = (x.data_ptr(), slots.data_ptr(), out.data_ptr())
        sizes = (*x.shape, len(out), x.stride(0), out.stride(0), torch.get_num_threads())
        getattr(library(), name)(ctypes.byref(ToyCall(*pointers, *sizes, scale)))

    return run


good = _kernel("good")
writes_left = _kernel("writes_left")
writes_right = _kernel("writes_right")
reads_past = _kernel("reads_past")
unwritten = _kernel("unwritten")
clobbers_neighbour = _kernel("clobbers_neighbour")
changes_input = _kernel("changes_input")
nan_output = _kernel("nan_output")
small_error = _kernel("small_error")
wrong_tail = _kernel("wrong_tail")
race = _kernel("race")
shared_scratch = _kernel("shared_scratch")
thread_dependent = _kernel("thread_dependent")
segfault = _kernel("segfault")
kills_itself = _kernel("kills_itself")
recurses = _kernel("recurses")
illegal_instruction = _kernel("illegal_instruction")
division_by_zero = _kernel("division_by_zero")
aborts = _kernel("aborts")
corrupts_heap = _kernel("corrupts_heap")
loops_forever = _kernel("loops_forever")
result_instead_of_error = _kernel("good", check=False)
wrong_tier = good


def exception_instead_of_result(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _check(slots, out)
    raise RuntimeError("not implemented for this width")


def moves_argument(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    good(x, slots, out, scale)
    out.as_strided_((1,), (1,))


def other_error(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    if len(slots) and (slots.min() < 0 or slots.max() >= len(out)):
        raise RuntimeError("bad argument")
    good(x, slots, out, scale)


def other_default(x: Tensor, slots: Tensor, out: Tensor, scale: float = 2.0) -> None:
    good(x, slots, out, scale)


def too_strict(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    if scale < 0:
        raise ValueError(f"scale must not be negative, got {scale}")
    good(x, slots, out, scale)


_kept: dict[tuple[int, ...], Tensor] = {}
"""What `keeps_by_address` has read, by where it lay."""


def keeps_by_address(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """As a kernel that packs its weight in the first call with it."""
    good(_kept.setdefault((x.data_ptr(), *x.shape, *x.stride()), x.clone()), slots, out, scale)


_mode: list[int] = []
"""What `left_behind` leaves in this process, if anything."""


def left_behind(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    good(x, slots, out, scale)
    _mode[:] = [len(x)]


def left() -> str:
    return f"the mode is {_mode.pop()}" if any(_mode) else ""


TAKEN = {"fast products": 0}
"""What the kernels of this process did on the path that they claim."""


def takes_path(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    good(x, slots, out, scale)
    TAKEN["fast products"] += 1


def wrong_path(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """Right, and on the path that it claims but for odd widths, where it says nothing."""
    (good if x.shape[1] % 2 else takes_path)(x, slots, out, scale)


def executed() -> dict[str, int]:
    counted = dict(TAKEN)
    TAKEN["fast products"] = 0
    return counted


def ran_right(before: bool) -> str | None:
    return "toy"


def ran_wrong(before: bool) -> str | None:
    return "scalar"


@dataclass(frozen=True, kw_only=True)
class ToyCase(Case):
    """Rows [rows, width] into rows + spare slots."""

    rows: int = 1
    width: int = 1
    spare: int = 0


LAYOUTS = {"x": DENSE_LAST[:2], "out": DENSE_LAST[:2]}


@st.composite
def strategy(draw: st.DrawFn) -> ToyCase:
    layout = draw(st.dictionaries(st.sampled_from(("x", "out")), st.sampled_from(LAYOUTS["x"])))
    return ToyCase(
        seed=draw(st.integers(0, 2**31)),
        layout=layout,
        guard=draw(st.sampled_from(("end", "start"))),
        poison=draw(st.sampled_from(("nan", "outlier"))),
        rows=draw(st.integers(0, 20)),
        width=draw(st.integers(1, 20)),
        spare=draw(st.integers(0, 3)),
    )


def inputs(case: ToyCase) -> Inputs:
    slots = case.rows + case.spare
    return {
        "x": uniform(case.seed, "x", (case.rows, case.width)),
        "slots": permutation(case.seed, "slots", slots)[: case.rows],
        "out": poison(case.poison, (slots, case.width), torch.float32),
        "scale": 0.75,
    }


def written(case: ToyCase, given: Inputs) -> Tensor:
    mask = torch.zeros(case.rows + case.spare, 1, dtype=torch.bool)
    mask[given["slots"]] = True
    return mask


def bound(case: ToyCase, given: Inputs, truth: Outputs) -> Bound:
    """One product, rounded once."""
    return {"out": ROUNDOFF * truth["out"].abs()}


def _far_slot(case: ToyCase, given: Inputs) -> Inputs | None:
    return given | {"slots": given["slots"] + len(given["out"])} if case.rows else None


PAIR = Pair(
    name="toy",
    reference=reference,
    optimized=good,
    cases=Cases(
        type=ToyCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
    ),
    signature=Signature(
        written={"out": written},
        layouts=LAYOUTS,
    ),
    truth=Within(bound),
    wrong_calls={"slot_too_large": WrongCall(_far_slot, IndexError, "slots")},
    fuzz=NotFuzzed("its reference checks slots alone"),
    coverage=Coverage(
        edges={"no rows": lambda case: case.rows == 0},
    ),
)

FAULTS = {
    "writes_left": {"untouched", "crash"},
    "writes_right": {"untouched", "crash"},
    "reads_past": {"crash"},
    "unwritten": {"unwritten"},
    "clobbers_neighbour": {"untouched"},
    "changes_input": {"input_changed"},
    "nan_output": {"nonfinite"},
    "small_error": {"value"},
    "wrong_tail": {"value"},
    "race": {"value", "nondeterministic"},
    "shared_scratch": {"nondeterministic"},
    "thread_dependent": {"value"},
    "segfault": {"crash"},
    "kills_itself": {"crash"},
    "recurses": {"crash"},
    "illegal_instruction": {"crash"},
    "division_by_zero": {"crash"},
    "aborts": {"crash"},
    "corrupts_heap": {"crash"},
    "loops_forever": {"hang"},
    "wrong_tier": {"wrong_tier"},
    "wrong_path": {"wrong_path"},
    "left_behind": {"left_behind"},
    "exception_instead_of_result": {"exception"},
    "result_instead_of_error": {"missing_error"},
    "other_error": {"exception"},
    "moves_argument": {"layout"},
    "keeps_by_address": {"value", "nondeterministic"},
}
"""WrongCall kernel -> the kinds of failure that it may be reported as."""


def toy_subject(name: str) -> Subject:
    """A kernel of this module on trial."""
    return Subject(PAIR, toy_candidate(name))


def toy_candidate(name: str) -> Candidate:
    """A kernel of this module as a candidate named `toy`."""
    ran = "ran_wrong" if name == "wrong_tier" else "ran_right"
    claims = "fast" if name in ("takes_path", "wrong_path") else ""
    return Candidate(
        "toy", f"{__file__}:{name}", ran=f"{__file__}:{ran}", executed=f"{__file__}:executed" if claims else "", claims=claims,
        left=f"{__file__}:left",
    )
