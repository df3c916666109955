"""What a run of trials has seen: cases, failures, what was covered, and how near results came to their bounds."""

import math
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import Failure, PlaceTable, Verdict
from kernelpair.search import coverage as cells

LEAST = -15  # exponent of the smallest ratio of error and bound that is told apart
VACUOUS = 0.1  # median bound over output size from which a bound alone proves too little


def _power(ratio: float) -> int:
    """The least power of two that is no smaller, as its exponent."""
    return LEAST if ratio <= 2.0**LEAST else math.ceil(math.log2(ratio))


@dataclass(frozen=True)
class First:
    """The first failure of a run, before it was shrunk."""

    kind: str
    noticed_by: str
    """The trial that saw it."""
    cases: int
    """Tried up to it, itself included."""
    seconds: float


@dataclass
class Shrinking:
    """How a failure became small."""

    found: str
    """The case as it was drawn."""
    tried: int = 0
    """Failing cases on the way to the smallest."""


@dataclass
class Tally:
    """What a run has seen so far."""

    cases: int = 0
    calls: int = 0
    seconds: float = 0.0
    failures: dict[str, Verdict] = field(default_factory=dict)
    """Kind, or in a search for several defects the group's label -> the smallest failing case."""
    shrinking: dict[str, Shrinking] = field(default_factory=dict)
    """Of failures that were drawn, by the same names."""
    shared: dict[str, str] = field(default_factory=dict)
    """What cases that fail like it share, by the same names."""
    first: First | None = None
    unfinished: tuple[str, Verdict] | None = None
    """A failure that is being shrunk, and its name: what is known of it if the run is interrupted meanwhile."""
    unsupported: Counter[str] = field(default_factory=Counter)
    """Documented limit -> cases drawn outside of it."""
    gaps: dict[str, tuple[int, float, str]] = field(default_factory=dict)
    """Output -> cases beyond the contract's own bound because of a rounding that is declared, the worst ratio, and its case."""
    groups: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Label of a group, known or new -> failing cases that are its, and the worst ratio of error and bound among them."""
    known: dict[str, Verdict] = field(default_factory=dict)
    """Failures that the ledger knows, by its groups."""
    mended: list[str] = field(default_factory=list)
    """Groups of the ledger whose case passes now."""
    trials: Counter[str] = field(default_factory=Counter)
    edges: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    crossed: Counter[str] = field(default_factory=Counter)
    """`dtype argument layout` -> cases that had both."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Field of the case -> the largest size drawn; of a field with several, their sum."""
    measures: dict[str, int] = field(default_factory=dict)
    """Measure (`Coverage.measures`) -> the largest of all cases."""
    paths: Counter[str] = field(default_factory=Counter)
    """Path through the candidate's code -> cases that took it."""
    executed: Counter[str] = field(default_factory=Counter)
    """Instructions that all calls executed, as far as they can be seen."""
    largest: dict[str, float] = field(default_factory=dict)
    """Output -> largest |error| / bound."""
    ratios: dict[str, Counter[int]] = field(default_factory=dict)
    """Output and dtype -> how many calls came within 2^-k of the bound, by -k (`LEAST` stands for that or less)."""
    looseness: dict[str, list[float]] = field(default_factory=dict)
    tables: dict[str, PlaceTable] = field(default_factory=dict)
    """By title, of each place the largest ratios over all cases that passed."""
    sharp: int = 0
    vacuous: list[Failure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures and not self.vacuous

    def settle(self) -> None:
        """Count a failure that was being shrunk as it is."""
        if self.unfinished is not None:
            name, verdict = self.unfinished
            self.failures.setdefault(name, verdict)
            self.unfinished = None

    def add(self, pair: Pair, verdict: Verdict) -> None:
        """Count a verdict."""
        case = verdict.case
        if verdict.unsupported and not verdict.calls:
            self.unsupported[verdict.unsupported] += 1
            return
        self.cases += 1
        self.calls += verdict.calls
        self.trials[case.trial] += 1
        self.edges.update(name for name, holds in pair.coverage.edges.items() if holds(case))
        self.cells.update(cells.hit(pair, case))
        self.crossed.update(cells.crossed(pair, case))
        for name, size in cells.sizes(case):
            self.sizes[name] = max(self.sizes.get(name, 0), size)
        for name, measured in pair.coverage.measures.items():
            self.measures[name] = max(self.measures.get(name, 0), measured(case))
        self.paths.update(verdict.paths)
        self.executed.update(verdict.executed)
        self.sharp += verdict.calls > 0 and pair.sharp(case)
        for name, ratio in verdict.gaps.items():
            cases, worst, line = self.gaps.get(name, (0, 0.0, ""))
            self.gaps[name] = (cases + 1, max(ratio, worst), verdict.line if ratio > worst else line)
        for name, tightness in verdict.tightness.items():
            self.largest[name] = max(self.largest.get(name, 0.0), tightness.largest)
            self.ratios.setdefault(f"{name} {case.dtype}", Counter())[_power(tightness.largest)] += 1
            self.looseness.setdefault(name, []).append(tightness.looseness)
        if verdict.table is not None and verdict.passed:
            known = self.tables.get(verdict.table.title, verdict.table)
            self.tables[known.title] = known.merged(verdict.table)

    def judge_bounds(self, pair: Pair) -> None:
        """Fail the pair for an output whose bound is loose over the run while no sharper check stood beside it. Of an output that
        is wrong only some cases passed, such as those without numbers, and nothing is known."""
        wrong = {failure.tensor for verdict in self.failures.values() for failure in verdict.failures}
        for name, samples in self.looseness.items():
            if name in wrong:
                continue
            typical = median(math.inf if math.isnan(sample) else sample for sample in samples)  # NaN sorts nowhere
            if len(samples) >= 20 and typical > VACUOUS and not self.sharp:
                detail = f"median bound / output size is {typical:.2g} over {len(samples)} cases, and no sharper check ran"
                self.vacuous.append(Failure("vacuous", name, detail))
