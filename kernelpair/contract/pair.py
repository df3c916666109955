"""A pair: a reference, the kernel that must equal it, and all that is known about their contract."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kernelpair.contract.case import Case, to_line
from kernelpair.contract.mistakes import refuse_mistakes
from kernelpair.contract.verdict import Judged

if TYPE_CHECKING:
    from kernelpair.trial.session import Session

Inputs = dict[str, Any]
"""Logical arguments by name, in the order of the signature: contiguous tensors, an `Alias`, plain scalars, None."""
Outputs = dict[str, Any]
"""What a call leaves behind, by name: the mutated arguments, and the results (`Signature.results`)."""


@dataclass(frozen=True)
class Alias:
    """An argument that is a view of another one, such as the value part of a joint key/value cache."""

    of: str
    view: Callable[[Tensor], Tensor]


class RoundedOnce:
    """The bound of an output that must equal the truth, rounded once to its dtype."""


ROUNDED_ONCE = RoundedOnce()
Bound = Mapping[str, Tensor | RoundedOnce]


@dataclass(frozen=True)
class Relation:
    """A property beyond equality with the reference; `holds` runs further calls in its session and reports what differs.

    `holds(case, session)` is called after the case itself was run and judged (`session.first`).
    """

    holds: Callable[[Any, "Session"], None]
    says: str
    """One sentence for `kernelpair list`."""
    applies: Callable[[Any], bool] = lambda case: True
    """Cases for which it says anything; others are judged by value alone."""


def named_in(message: str, names: Sequence[str]) -> bool:
    """Whether an error's message names one of these arguments."""
    return any(re.search(rf"\b{re.escape(name)}\b", message) for name in names)


@dataclass(frozen=True)
class WrongCall:
    """One way to call the kernel wrongly: `make` edits valid inputs; both sides must raise `error` naming `argument`."""

    make: Callable[[Any, Inputs], Inputs | None]
    """(case, inputs) -> wrong inputs, or None where the case offers no room for the error."""
    error: type[Exception]
    argument: str | tuple[str, ...]
    """The argument that the message names; of a disagreement between two, either."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.argument,) if isinstance(self.argument, str) else tuple(self.argument)

    def named_in(self, message: str) -> bool:
        return named_in(message, self.names)


PEERS = "peers"


@dataclass(frozen=True)
class Floor:
    """The speed that a row is to reach on the amx tier with two threads: another's time over ours, or a time itself."""

    ratio: float = 0.0
    over: str = PEERS
    """`peers`: the fastest of those that `--against` names; else one of the row's own `peers` or `kin`."""
    microseconds: float = 0.0

    def __str__(self) -> str:
        if self.microseconds:
            return f"at most {self.microseconds:g} us"
        return f"{self.ratio:g}" if self.over == PEERS else f"{self.ratio:g} of {self.over}"


@dataclass(frozen=True)
class BenchRow:
    """One row of `kernelpair bench`: realistic arguments, the work they mean, and peers that do the same."""

    name: str
    arguments: Callable[[], Inputs]
    flops: float = 0.0
    """Floating-point operations of a call (0: the row is bound by bandwidth)."""
    blocked: float = 0.0
    """Those of the same work in a form that multiplies blocks, where it needs more; 0: no more. Counts are held against it."""
    bytes: float = 0.0
    """Bytes that a call must move at least."""
    peers: Mapping[str, Callable[[Inputs], Callable[[], object]]] = field(default_factory=dict)
    """Name -> a function that prepares the same work and returns what is timed; `torch` is the equivalent torch call."""
    kin: Mapping[str, Callable[[Inputs], Callable[[], object]]] = field(default_factory=dict)
    """The same of our other kernels that do this work, timed on the row's tier where a floor is measured by them."""
    prepare: Callable[[Inputs], Callable[[], object]] | None = None
    """Of this row, instead of `Bench.prepare`."""
    case: Case | None = None
    """The case whose arguments are like these: a provider's limits are asked about it."""
    floor: Floor | None = None
    counts: bool = False
    """It is one of the rows whose mean ratio is claimed."""
    alone: bool = False
    """Its weights are so large that competitors push each other's out of the cache: `--against` also times each by itself."""
    series: str = ""
    """Timed with `--series` only, as one point of this plot."""
    size: int = 0
    """Where the point lies."""


def everything(case: Any, inputs: Inputs) -> bool:
    """For `Signature.written`: every element of the argument is written."""
    return True


def every_argument(case: Any, inputs: Inputs) -> Collection[str]:
    """For `Pair.fuzz`: any argument may be made wrong."""
    return list(inputs)


def _always(case: Any) -> bool:
    return True


def _never(case: Any) -> bool:
    return False


@dataclass(frozen=True)
class NotFuzzed:
    """For `Pair.fuzz`: the pair's contract says no more of wrong calls than `Pair.wrong_calls` does."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Which cases the contract allows, and what a case is."""

    type: type[Case]
    version: int
    """Of the case's schema; a saved case of another version is refused."""
    strategy: Any
    """A Hypothesis strategy of cases (value trials; the engine draws the trial itself)."""
    inputs: Callable[[Any], Inputs]
    """Case -> logical arguments. Raises ValueError for a case that cannot be built."""
    constant: Collection[str] = ()
    """Fields that the strategy leaves at their defaults, inherited from another pair's case."""
    models: Callable[[bool], Any] | None = None
    """Is the candidate slow -> a strategy of cases with the sizes that users have, which shrink to small ones (`shrinking` of
    `kernelpair.search.strategies`): some of a run's cases are drawn from it. Of a slow candidate it keeps to what that can do."""
    sweeps: Any = None
    """A strategy of cases with every value of a 16-bit dtype among their inputs; every run begins with the simplest of them."""
    small: Callable[[Any], bool] = _always
    """Cases small enough for a candidate that is a thousand times slower (`Candidate.slow`)."""
    idle: Callable[[Any], bool] = _never
    """Cases in which a call has nothing to do and need not run any kernel."""
    simpler: Callable[[Any], Iterable[Any]] = lambda case: ()
    """Cases a little smaller than this one, the boldest first: tried on a failure after Hypothesis has had its time."""
    sizes: Mapping[str, tuple[int, Callable[[Any], int]]] = field(default_factory=dict)
    """What a case is measured by -> the most of it that a shrunk failure may have, and how much of it a case has. `kernelpair
    mutate` fails where a planted bug's case stays larger."""
    picture: Callable[[Any], str] | None = None
    """The batch of a case drawn in text, for `kernelpair replay -v`."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What the arguments and results of a call are."""

    written: Mapping[str, Callable[[Any, Inputs], Tensor | bool]] = field(default_factory=dict)
    """Argument -> mask of the elements that the contract writes (broadcast to its shape), or True for all."""
    scratch: Sequence[str] = ()
    """Arguments whose content is arbitrary before and after, and results that no two calls need to agree about."""
    results: Sequence[str] = ("out",)
    """Names of the tensors of a tuple result."""
    result_dtype: Callable[[Any, str], torch.dtype] | None = None
    """(case, result) -> its dtype; None: the case's dtype for float results."""
    result_layout: Callable[[Any, str, tuple[int, ...], tuple[int, ...]], bool] | None = None
    """(case, result, sizes, strides) -> is this legal; None: results are contiguous."""
    dtypes: Sequence[str] = ("bfloat16", "float16", "float32")
    """What `case.dtype` may be; empty where nothing depends on it."""
    indices: Sequence[str] = ()
    """Index arguments, each int32 or int64."""
    layouts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Argument -> the layouts beyond dense that the contract allows."""
    fused: Sequence[tuple[str, str]] = ()
    """Pairs of arguments that may be halves of one buffer."""


@dataclass(frozen=True)
class Within:
    """Outputs lie within a derived bound of the truth, the reference in float64."""

    bound: Callable[[Any, Inputs, Outputs], Bound]
    """(case, inputs in float64, truth) -> error bound of each element of each judged output; an output that the returned
    mapping leaves out compares bit for bit."""
    aggregate: Callable[[Any, Inputs, Outputs, Outputs], Sequence[tuple[str, str, float]]] | None = None
    """(case, inputs in float64, truth, outputs) -> (output, what is wrong with it, error over what is allowed): checks over many
    elements at once, where roundings average out, beside the bound of each element."""
    sharp: Callable[[Any], bool] = _never
    """Cases judged by a second check with power (exact modes, fp32), for a bound that is loose elsewhere."""
    settle: Callable[[Any, Inputs, Outputs, Outputs], Outputs] | None = None
    """Of a contract that leaves a call a choice: (case, inputs in float64, truth, outputs) -> the truth that judges the call.
    Where the call chose something that the contract allows, that is its own choice and what follows from it; elsewhere it stays
    the reference's, so that a wrong choice differs. A NaN of a float result says that the contract leaves the element open.
    The outputs have the shapes of the truth; `bound` gets what is returned."""
    roundings: Mapping[str, "Within"] = field(default_factory=dict)
    """A rounding that the contract forbids and a kernel of a provider may do, in the contract's words -> the truth derived anew
    with it. Judged by that, such a kernel has no excuse for anything else; the gap itself is reported, once."""


@dataclass(frozen=True)
class Exact:
    """Outputs equal the reference's in the arguments' own dtypes, bit for bit: for kernels that only move data."""


@dataclass(frozen=True)
class Stepwise:
    """A call is a whole run, judged step by step instead of against one call of the reference."""

    judge: Callable[[Any, Inputs, Outputs], Judged]
    """(case, inputs, outputs) -> failures, tightness, and a table of places. Memory around the arguments is judged as ever."""
    sharp: Callable[[Any], bool] = _never
    """As in `Within`."""
    remark: str = ""
    """`package.module:function` of (case) -> a line for the foot of its table, which says something that is not judged. It is
    called in a process of its own in which the candidate was made ready."""


Truth = Within | Exact | Stepwise


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a run is to have met; what it left out is reported."""

    edges: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """Named corners of the contract -> does this case lie in it."""
    paths: Callable[[str], Sequence[str]] = lambda candidate: ()
    """Candidate's name -> the ways through its code that some case is to take, as far as it tells (`Candidate.paths`)."""
    measures: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    """What sizes count (keys, rows, bytes) -> how much of it a case has."""
    branches: Callable[[], Mapping[str, int]] = dict
    """Measure -> the largest size that the code of any candidate branches on; some case is to have more."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is timed."""

    rows: Sequence[BenchRow] = ()
    case: Case | None = None
    """A case like the rows that can be judged, and which providers support: errors on the same data are compared by it."""
    prepare: Callable[[Inputs], Callable[[], object]] | None = None
    """Row arguments -> what is timed, where the optimized side prepares something once (packing a weight, say); None: the
    call of `optimized` itself."""
    memory: str = ""
    """What a call takes beyond its arguments and results, and what bounds it: one sentence for the page of speeds."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Joins reference, kernel and contract: everything that the engine knows of a kernel.

    Raises PairError where it names an argument, a dtype, a layout or a field that does not exist.
    """

    name: str
    reference: Callable[..., Any]
    optimized: Callable[..., Any]
    """Takes the same keyword arguments as the reference. Results: None, a tensor, or a dict by name."""
    cases: Cases
    signature: Signature = Signature()
    truth: Truth
    relations: Mapping[str, Relation] = field(default_factory=dict)
    wrong_calls: Mapping[str, WrongCall] = field(default_factory=dict)
    fuzz: Callable[[Any, Inputs], Collection[str]] | NotFuzzed = every_argument
    """(case, inputs) -> the arguments that the `fuzz` trial may make wrong in any way: all but those of the pair's own making,
    such as the steps of a program. Or why that trial says nothing here."""
    coverage: Coverage = Coverage()
    bench: Bench = Bench()
    tiers: Literal["each", "python"] = "each"
    """`each`: put on trial on every tier; `python`: one candidate, whatever tier its operators take."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Role -> path, filled in by the suite."""

    def __post_init__(self) -> None:
        refuse_mistakes(self)

    @property
    def exact(self) -> bool:
        """Whether the reference runs in the arguments' own dtypes."""
        return isinstance(self.truth, Exact)

    def sharp(self, case: Any) -> bool:
        """Whether a second check with power stands beside the bound of this case."""
        return not isinstance(self.truth, Exact) and self.truth.sharp(case)

    def line(self, case: Case) -> str:
        """The case on one line of JSON."""
        return to_line(self.name, self.cases.version, case)

    def fuzzed(self, case: Any, inputs: Inputs) -> Collection[str]:
        """The arguments that the `fuzz` trial may make wrong."""
        return () if isinstance(self.fuzz, NotFuzzed) else self.fuzz(case, inputs)
