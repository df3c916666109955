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
    behind: int = 0
    """Elements that the storage of the other one holds behind its last, for a view that reaches beyond it."""


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
    """What it says, in one sentence for `kernelpair list`."""
    applies: Callable[[Any], bool] = lambda case: True
    """Cases for which it says anything; others are judged by value alone."""
    opens: bool = False
    """Whether every run begins with some of these cases: it notices what nothing else does, and is seldom drawn by chance."""


def named_in(message: str, names: Sequence[str]) -> bool:
    """Whether an error's message names one of these arguments."""
    return any(re.search(rf"\b{re.escape(name)}\b", message) for name in names)


@dataclass(frozen=True)
class WrongCall:
    """One way to call the kernel wrongly: `make` edits valid inputs; both sides must raise `error` naming `argument`."""

    make: Callable[[Any, Inputs], Inputs | None]
    """(case, inputs) -> wrong inputs, or None where this error is not possible in the case."""
    error: type[Exception]
    argument: str | tuple[str, ...]
    """The argument that the message names; where two arguments disagree, either of them."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.argument,) if isinstance(self.argument, str) else tuple(self.argument)

    def named_in(self, message: str) -> bool:
        return named_in(message, self.names)


PEERS = "peers"


@dataclass(frozen=True)
class Floor:
    """The speed that a row must reach on the amx tier with two threads: a ratio (another's time over ours), or a time."""

    ratio: float = 0.0
    over: str = PEERS
    """Whose time: `peers`, the fastest of those that `--against` names, or one of the row's own `peers` or `kin`."""
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
    """Operations of the same work in a form that multiplies blocks, where that form needs more (else 0): counts are compared
    with it."""
    bytes: float = 0.0
    """Bytes that a call must move at least."""
    peers: Mapping[str, Callable[[Inputs], Callable[[], object]]] = field(default_factory=dict)
    """Name -> a function that prepares the same work and returns what is timed; `torch` is the equivalent torch call."""
    kin: Mapping[str, Callable[[Inputs], Callable[[], object]]] = field(default_factory=dict)
    """As `peers`, for our other kernels that do this work: timed on the row's tier where a floor is measured by them."""
    prepare: Callable[[Inputs], Callable[[], object]] | None = None
    """As `Bench.prepare`, for this row alone."""
    case: Case | None = None
    """The case whose arguments are like these: a provider's limits are asked about it."""
    floor: Floor | None = None
    counts: bool = False
    """Whether it is one of the rows whose mean ratio is claimed."""
    alone: bool = False
    """Its weights are so large that competitors push each other's out of the cache: `--against` also times each by itself."""
    series: str = ""
    """The plot that the row is one point of; such a row is timed with `--series` only."""
    size: int = 0
    """Where the point lies in that plot."""


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


def _as_fitted(drawn: Any, fitted: Any) -> Any:
    return fitted


@dataclass(frozen=True)
class NotFuzzed:
    """For `Pair.fuzz`: the pair's contract says no more of wrong calls than `Pair.wrong_calls` does."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Which cases the contract allows, and what a case is."""

    type: type[Case]
    version: int
    """The version of the case's schema; a saved case of another version is refused."""
    strategy: Any
    """A Hypothesis strategy of cases (value trials; the engine draws the trial itself)."""
    inputs: Callable[[Any], Inputs]
    """Case -> logical arguments. Raises ValueError for a case that cannot be built."""
    constant: Collection[str] = ()
    """Fields that are inherited from another pair's case and that the strategy leaves at their defaults."""
    models: Callable[[bool], Any] | None = None
    """(is the candidate slow) -> a strategy of cases with the sizes that users have, which shrink to small ones (`shrinking` of
    `kernelpair.search.strategies`). Some of a run's cases are drawn from it. For a slow candidate the cases must be small
    enough."""
    sweeps: Any = None
    """A strategy of cases with every value of a 16-bit dtype among their inputs; every run begins with the simplest of them."""
    small: Callable[[Any], bool] = _always
    """Cases small enough for a candidate that is a thousand times slower (`Candidate.slow`)."""
    refit: Callable[[Any, Any], Any] = _as_fitted
    """(case as it was drawn, as `fit` of a provider's limits made it) -> the case that is tried: of very many small things that
    have become large, fewer."""
    idle: Callable[[Any], bool] = _never
    """Cases in which a call has nothing to do and need not run any kernel."""
    simpler: Callable[[Any], Iterable[Any]] = lambda case: ()
    """Case -> cases a little smaller, those that leave out most first. They are tried on a failure after Hypothesis has
    shrunk it."""
    sizes: Mapping[str, tuple[int, Callable[[Any], int]]] = field(default_factory=dict)
    """What a case is measured by -> (the most that a shrunk failure may have, case -> how much it has). `kernelpair mutate`
    fails if the case of a planted bug stays larger."""
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
    """(case, result) -> the result's dtype; None: the case's dtype for float results."""
    result_layout: Callable[[Any, str, tuple[int, ...], tuple[int, ...]], bool] | None = None
    """(case, result, sizes, strides) -> is this legal; None: results are contiguous."""
    dtypes: Sequence[str] = ("bfloat16", "float16", "float32")
    """What `case.dtype` may be; empty where nothing depends on it."""
    indices: Sequence[str] = ()
    """Index arguments, each int32 or int64."""
    layouts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Argument -> the layouts beyond dense that the contract allows."""
    fused: Sequence[tuple[str, str]] = ()
    """Pairs of arguments that may be the halves of one buffer."""


@dataclass(frozen=True)
class Within:
    """Outputs lie within a derived bound of the truth, the reference in float64."""

    bound: Callable[[Any, Inputs, Outputs], Bound]
    """(case, inputs in float64, truth) -> error bound of each element of each judged output; an output that the returned
    mapping leaves out compares bit for bit."""
    ours: Callable[[Any, Inputs, Outputs], Bound] | None = None
    """The same, smaller in some cases, for what a suite's own kernels do better than the contract asks of everybody, such as a
    mean that is divided last. Nobody else's kernel is held to it. None: `bound` is for all."""
    aggregate: Callable[[Any, Inputs, Outputs, Outputs], Sequence[tuple[str, str, float]]] | None = None
    """(case, inputs in float64, truth, outputs) -> (output, what is wrong with it, error over what is allowed): checks over
    many elements at once, where roundings average out, beside the bound of each element."""
    sharp: Callable[[Any], bool] = _never
    """Cases judged by a second check with power (exact modes, fp32), for a bound that is loose elsewhere."""
    settle: Callable[[Any, Inputs, Outputs, Outputs], Outputs] | None = None
    """For a contract that leaves a call a choice: (case, inputs in float64, truth, outputs) -> the truth that judges the call.
    If the call's choice is allowed, this truth has that choice and what follows from it. If it is not, the truth stays the
    reference's, so that the wrong choice differs. A NaN in a float result says that the contract leaves the element open.
    The outputs have the shapes of the truth; `bound` gets what is returned."""
    settle_ours: Callable[[Any, Inputs, Outputs, Outputs], Outputs] | None = None
    """The same for a suite's own kernels, where the contract leaves them less. None: `settle` is for all."""
    roundings: Mapping[str, "Within"] = field(default_factory=dict)
    """A rounding that the contract forbids and that a provider's kernel may declare, in the contract's words -> the truth
    derived with it. The kernel is then judged by this truth; that it misses the contract's own bound is reported once."""


@dataclass(frozen=True)
class Exact:
    """Outputs equal the reference's in the arguments' own dtypes, bit for bit: for kernels that only move data."""

    any_nan: bool = False
    """Whether any NaN will do where the reference has one: for kernels that convert numbers."""


@dataclass(frozen=True)
class Stepwise:
    """A call is a whole run, judged step by step instead of against one call of the reference."""

    judge: Callable[[Any, Inputs, Outputs], Judged]
    """(case, inputs, outputs) -> failures, tightness, and a table of places. Memory around the arguments is judged as for
    other pairs."""
    sharp: Callable[[Any], bool] = _never
    """As in `Within`."""
    remark: str = ""
    """`package.module:function`, (case) -> a line for the foot of the case's table, about something that is not judged. It is
    called in a process of its own in which the candidate was made ready."""


Truth = Within | Exact | Stepwise


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the cases of a run should reach; what they did not reach is reported."""

    edges: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """Name of a corner of the contract -> (case) -> does the case lie in it."""
    paths: Callable[[str], Sequence[str]] = lambda candidate: ()
    """Candidate's name -> the paths through its code that some case should take, if the candidate tells them
    (`Candidate.paths`)."""
    measures: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    """What is counted (keys, rows, bytes) -> (case) -> how many it has."""
    branches: Callable[[], Mapping[str, int]] = dict
    """Measure -> the largest size that the code of any candidate branches on; some case should have more."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is timed."""

    rows: Sequence[BenchRow] = ()
    case: Case | None = None
    """A case like the rows that can be judged and that providers support; `bench --errors` compares errors on it."""
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
    """(case, inputs) -> the arguments that the `fuzz` trial may make wrong in any way: all but those that the pair itself
    makes, such as the steps of a program. Or `NotFuzzed`: why this trial says nothing here."""
    slips: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """A usual slip, in words that follow "as if" -> a function like the reference that makes it. Of a kernel that is wrong and
    agrees with it the failure says so."""
    coverage: Coverage = Coverage()
    bench: Bench = Bench()
    tiers: Literal["each", "python"] = "each"
    """`each`: the pair is put on trial on every tier. `python`: it has one candidate, whatever tier its operators use."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Role -> path, filled in by the suite."""

    def __post_init__(self) -> None:
        refuse_mistakes(self)

    @property
    def exact(self) -> bool:
        """Whether the reference runs in the arguments' own dtypes."""
        return isinstance(self.truth, Exact)

    @property
    def any_nan(self) -> bool:
        """Whether outputs that are compared as bits may have any NaN for one."""
        return isinstance(self.truth, Exact) and self.truth.any_nan

    def sharp(self, case: Any) -> bool:
        """Whether a second check with power judges this case beside the bound."""
        return not isinstance(self.truth, Exact) and self.truth.sharp(case)

    def line(self, case: Case) -> str:
        """The case on one line of JSON."""
        return to_line(self.name, self.cases.version, case)

    def has_trial(self, name: str) -> bool:
        """Whether this built-in trial says anything about the pair: `fuzz` and `neighbours` need a reference that checks its
        arguments, the second also arguments that are written."""
        if name == "neighbours" and not (self.signature.written or self.signature.scratch):
            return False
        return name not in ("fuzz", "neighbours") or not isinstance(self.fuzz, NotFuzzed)

    def fuzzed(self, case: Any, inputs: Inputs) -> Collection[str]:
        """The arguments that the `fuzz` trial may make wrong."""
        return () if isinstance(self.fuzz, NotFuzzed) else self.fuzz(case, inputs)
