"""Kernels that are wrong for one value, at one call, at one alignment or by chance, and how many of them a run catches.

    python -m tests.selftest.odd --runs 20 --cases 200

prints the share of runs with other seeds (and other wrong values) in which each kernel fails.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import randbelow

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST
from kernelpair.call.runner import Isolated
from kernelpair.call.values import generator, uniform
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Cases, Exact, Inputs, NotFuzzed, Pair, Signature
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from properties.shared.every_value import SWEEP_FIELDS, SweepCase, every_value, halves, patterns

LAYOUTS = {"x": DENSE_LAST[:2]}
THE_CALL, ONCE_IN, WRONG_AT = 1000, 1000, 8


@dataclass(frozen=True, kw_only=True)
class OddCase(SweepCase):
    """Numbers [rows, width] of bfloat16."""

    dtype: str = "bfloat16"
    rows: int = 1
    width: int = 1


@st.composite
def strategy(draw: st.DrawFn) -> OddCase:
    layout = draw(st.dictionaries(st.just("x"), st.sampled_from(LAYOUTS["x"])))
    guard = draw(st.sampled_from(("end", "start")))
    rows, width = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    return OddCase(seed=draw(st.integers(0, 2**31)), layout=layout, guard=guard, rows=rows, width=width)


def inputs(case: OddCase) -> Inputs:
    shape = case.rows, case.width
    if case.every:
        return {"x": every_value(case, shape, finite=True)}
    return {"x": uniform(case.seed, "x", shape, torch.bfloat16)}


def simpler(case: OddCase) -> Iterator[OddCase]:
    """Of a sweep its halves."""
    yield from halves(case, "rows", case.width)


def reference(x: Tensor) -> Tensor:
    """`-x`, a new tensor."""
    return -x.contiguous()


SWEPT = Pair(
    name="negated",
    reference=reference,
    optimized=reference,
    cases=Cases(
        type=OddCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        constant=SWEEP_FIELDS,
        sweeps=st.just(OddCase(rows=256, width=256, every=True)),
        simpler=simpler,
    ),
    signature=Signature(results=("y",), dtypes=("bfloat16",), layouts=LAYOUTS),
    truth=Exact(),
    fuzz=NotFuzzed("its reference checks nothing"),
)
DRAWN = replace(SWEPT, cases=replace(SWEPT.cases, sweeps=None))
"""The same with values by chance alone."""

good = reference
_calls = 0


def _wrong_value(which: int, x: Tensor) -> Tensor:
    """Wrong for one of the finite values, another for each number."""
    values = patterns(torch.bfloat16, finite=True)
    value = values[int(generator(which, "wrong value").integers(0, len(values)))]
    y = reference(x)
    y[x.view(torch.int16) == value.view(torch.int16)] = 3.0
    return y


def _spoiled(x: Tensor, wrong: bool) -> Tensor:
    y = reference(x)
    if wrong:
        y[0, 0] = 3.0
    return y


def wrong_call(x: Tensor) -> Tensor:
    """Wrong at the thousandth call of a process, before and after it right."""
    global _calls
    _calls += 1
    return _spoiled(x, _calls == THE_CALL)


def wrong_alignment(x: Tensor) -> Tensor:
    """Wrong where x begins at a multiple of 8 bytes, but not of 16."""
    return _spoiled(x, x.data_ptr() % (2 * WRONG_AT) == WRONG_AT)


def wrong_by_chance(x: Tensor) -> Tensor:
    """Wrong once in a thousand calls."""
    return _spoiled(x, randbelow(ONCE_IN) == 0)


def __getattr__(name: str) -> Callable[..., Tensor]:
    """`wrong_value_7` and its like: the kernel that is wrong for the seventh value."""
    stem, _, which = name.rpartition("_")
    if stem != "wrong_value" or not which.isdigit():
        raise AttributeError(f"no kernel {name}")
    return partial(_wrong_value, int(which))


KERNELS: dict[str, tuple[Pair, str]] = {
    "one value of 65,536, all of them swept": (SWEPT, "wrong_value_{seed}"),
    "one value of 65,536, drawn by chance": (DRAWN, "wrong_value_{seed}"),
    "the 1,000th call": (DRAWN, "wrong_call"),
    "an alignment of 8": (DRAWN, "wrong_alignment"),
    "one call in 1,000": (DRAWN, "wrong_by_chance"),
}
"""Wrong for, or at -> the pair, and the kernel of a run with some seed."""


def subject(pair: Pair, kernel: str) -> Subject:
    """A kernel of this module on trial."""
    return Subject(pair, Candidate("toy", f"{__file__}:{kernel}"))


def caught_after(tried: Subject, cases: int, seed: int) -> int | None:
    """The number of the case that caught it; None if so many did not."""
    with Isolated(tried.candidate, preload=("properties.suite",)) as runner:
        first = Search(tried, runner, shrink_seconds=0.0).run(cases, None, seed, None).first
    return None if first is None else first.cases


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.selftest.odd", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="of each kernel, each with a seed of its own (default 20)")
    parser.add_argument("--cases", type=int, default=200, help="of each run (default 200)")
    parser.add_argument("--only", default="", help="kernels whose description holds this text")
    options = parser.parse_args(arguments)
    print(f"| wrong for, or at | caught in {options.cases} cases | median of the first case |\n|---|--:|--:|")
    for says, (pair, kernel) in KERNELS.items():
        if options.only in says:
            runs = [caught_after(subject(pair, kernel.format(seed=s)), options.cases, s) for s in range(1, options.runs + 1)]
            found = sorted(first for first in runs if first is not None)
            print(f"| {says} | {len(found)} of {len(runs)} | {found[len(found) // 2] if found else '-'} |", flush=True)


if __name__ == "__main__":
    main()
