"""What a trial ends with: no failure, or failures, each of one kind."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = {
    "value": "an element is further from the truth than its bound",
    "nonfinite": "NaN or infinity where the truth is finite",
    "unwritten": "an element that the contract writes still holds what it held before",
    "untouched": "a byte outside the written region of a mutated argument changed, or one just around a tensor of the call's own",
    "input_changed": "an argument that is only read changed",
    "layout": "a result or an argument has other sizes, strides, dtype or memory than the contract says",
    "nondeterministic": "the same call gave other bits",
    "relation": "two calls that the contract relates disagree",
    "crash": "the process died of a signal or left",
    "hang": "the call did not come back",
    "kills_parent": "the call ended the process that started the one it ran in",
    "fp_state": "the call, or loading the kernel, changed how floating-point numbers are computed afterwards",
    "settings": "the call changed a setting of its process, such as torch's threads, a random state or the working directory",
    "left_behind": "the call left a thread, a process, a file descriptor, a temporary file, or tiles that stay configured",
    "leak": "each of several equal calls keeps more memory",
    "overwritten": "a later call wrote to the result of an earlier one, or returned its memory again",
    "argument_form": "a call changed the dtype, requires_grad or storage of an argument",
    "result_form": "a result is no plain tensor: a subclass, requires_grad, a conj or neg bit, far too large a storage",
    "fake": "an operator's fake implementation, which torch.compile asks, says other results than a call returns",
    "default": "an argument that may be left out has another default than the reference's",
    "exception": "an exception instead of a result, or another one than the contract's",
    "missing_error": "a result where the contract demands an error",
    "wrong_tier": "another tier ran than the one on trial",
    "wrong_path": "the call took another path than the one that the candidate claims",
    "vacuous": "the bound is so loose over a whole run that it proves nothing",
}
DIGITS = (6, 9, 17)  # of a number: for a glance, and what tells two floats of 32 and of 64 bits apart


@dataclass(frozen=True)
class Difference:
    """One element that differs."""

    index: tuple[int, ...]
    expected: float | int | bool
    got: float | int | bool
    bound: float
    ratio: float

    def told(self) -> tuple[str, str]:
        """What was expected and what came, in as many digits as tell the one from the other: whole numbers in all of theirs."""
        whole = [int(number) for number in (self.expected, self.got) if number == number // 1]
        if isinstance(self.got, int) and len(whole) == 2:
            return str(whole[0]), str(whole[1])
        texts = [(f"{self.expected:.{digits}g}", f"{self.got:.{digits}g}") for digits in DIGITS]
        return next((text for text in texts if text[0] != text[1]), texts[0])


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong."""

    kind: str
    tensor: str
    detail: str
    differences: tuple[Difference, ...] = ()
    ratio: float | None = None
    """Error over what is allowed, of a check over many elements at once."""

    @property
    def worst(self) -> float:
        """The largest ratio of error and bound; infinite where nothing is measured, such as after a crash."""
        found = self.ratio if self.ratio is not None else self.differences[0].ratio if self.differences else math.inf
        return found if found == found else math.inf

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of failure {self.kind!r}; known are {', '.join(KINDS)}")

    @property
    def place(self) -> str:
        """The tensor, where it is one's, and what is wrong."""
        return f"{self.tensor}: {self.detail}" if self.tensor else self.detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}"


@dataclass
class Tightness:
    """How close one output came to its bound in one call."""

    largest: float
    """max |error| / bound"""
    looseness: float
    """median bound / root mean square of the output"""


@dataclass(frozen=True)
class PlaceRow:
    """One place of a case that runs through several, such as a layer of a model."""

    place: str
    says: str
    """What lies there."""
    ratios: Mapping[str, float]
    """Each kind of part that it has -> largest |error| / bound."""
    beyond: str = ""
    """The first part that is beyond its bound, and by how much; empty where all is well."""

    def merged(self, other: "PlaceRow") -> "PlaceRow":
        """The larger ratios of both; a kind of part that only one of them came to is that one's."""
        kinds = dict.fromkeys([*self.ratios, *other.ratios])
        ratios = {kind: max(row.ratios.get(kind, 0.0) for row in (self, other)) for kind in kinds}
        return PlaceRow(self.place, self.says, ratios, self.beyond or other.beyond)


@dataclass(frozen=True)
class PlaceTable:
    """The places of a case in the order in which it runs through them, each judged alone."""

    title: str
    rows: tuple[PlaceRow, ...]
    line: str = ""
    """The case; of several, one of them."""

    def merged(self, other: "PlaceTable") -> "PlaceTable":
        """The larger ratios of two cases that run through the same places, with the line of the first."""
        rows = tuple(ours.merged(theirs) for ours, theirs in zip(self.rows, other.rows, strict=True))
        return PlaceTable(self.title, rows, self.line)


class Judged(NamedTuple):
    """What `Stepwise.judge` says of a case."""

    failures: Sequence[Failure]
    tightness: dict[str, Tightness]
    table: PlaceTable | None = None


@dataclass
class Verdict:
    """The outcome of one case."""

    case: Any
    line: str
    failures: list[Failure] = field(default_factory=list)
    tightness: dict[str, Tightness] = field(default_factory=dict)
    table: PlaceTable | None = None
    """Place by place, where the pair's judge goes through several."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Output -> how many times the contract's own bound it is off, where a wider one judges for a rounding that is declared."""
    calls: int = 0
    wrong_calls: list[str] = field(default_factory=list)
    """Those that were made and refused as they must be."""
    paths: set[str] = field(default_factory=set)
    """The paths through the candidate's code that its calls took."""
    executed: Counter[str] = field(default_factory=Counter)
    """Instructions that its calls executed, as far as they can be seen."""
    compilations: set[int] = field(default_factory=set)
    """After each call, how many graphs torch.compile has compiled in its process."""
    unsupported: str = ""
    """The documented limit that kept a call from being made; the trial ended there."""
    noticed_by: str = "value"
    """The trial that saw the first failure; `value` if the judgement of the first call saw it."""

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def of_two_compilations(self) -> bool:
        """Whether calls disagree of which a later one was made by another graph than an earlier one."""
        kinds = {failure.kind for failure in self.failures}
        return bool(kinds) and kinds <= {"nondeterministic", "relation"} and len(self.compilations) > 1
