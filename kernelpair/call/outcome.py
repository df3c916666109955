"""A call as it is asked for, and what came of it: what the judge and the process that makes the calls send each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelpair.call import fault
from kernelpair.call.fault import Fault
from kernelpair.call.results import Returned
from kernelpair.call.series import Repeated, Repeats
from kernelpair.call.surroundings import BY_OTHERS, SideEffect

NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "std::bad_alloc")  # in messages of torch and of C++


@dataclass(frozen=True)
class CallRequest:
    """One call: arguments by name, pages to guard, and where in the arena results may go."""

    arguments: Mapping[str, Any]
    guards: list[int]
    results_at: int
    results: tuple[str, ...]
    threads: int
    also: Sequence[Mapping[str, Any]] = ()
    """Arguments of further calls, made at the same time from Python threads of their own."""
    keep: bool = False
    """Keep the results alive, to see whether a later call writes to them."""
    deep: bool = False
    """Look at everything that the call may have changed, also at what takes long to read."""
    weigh: bool = False
    """Report how much memory the process holds after the call."""
    collect: bool = False
    """Free what only cycles of Python objects still hold before the heap is measured, which takes long."""
    again: Repeats | None = None
    """Make the call again and again, and compare each with the first."""
    fakes: bool = False
    """Compare the results of the operators that it calls with what their fake implementations say."""
    fresh: bool = False
    """The first call of a case: what a result of an earlier case has become is not its fault."""


@dataclass
class Outcome:
    """What came back from a call.

    `status` is ok, exception, crash, hang, kills_parent, harness (the worker itself failed) or spoiled (an earlier call has
    left its process in a state in which none is made); `error` and `message` describe the others.
    """

    status: str
    error: str = ""
    message: str = ""
    bases: tuple[str, ...] = ()
    at: str = ""
    """Of an exception: the names of its classes, and where in the candidate's own Python it was raised."""
    results: dict[str, Any] = field(default_factory=dict)
    """Name -> Returned, or a plain value."""
    moved: tuple[str, ...] = ()
    """Arguments whose sizes, strides or data pointer the call changed."""
    reformed: tuple[tuple[str, str], ...] = ()
    """Arguments whose dtype, requires_grad or storage it changed, and how."""
    ran: str | None = None
    paths: tuple[str, ...] = ()
    """The paths through the candidate's code that the call took, if the candidate tells them."""
    executed: Mapping[str, int] | None = None
    """The instructions that the candidate's counter saw; None where instructions cannot be seen."""
    left: str = ""
    """What the call left behind in the process or its CPU."""
    damage: str = ""
    """What was written around memory that the call had from torch and gave back."""
    others: list["Outcome"] = field(default_factory=list)
    """The outcomes of the calls in `CallRequest.also`."""
    fault: Fault | None = None
    """What is known of a crash, if its signal could be looked at."""
    side_effects: tuple[SideEffect, ...] = ()
    growth: tuple[SideEffect, ...] = ()
    """Changes that are side effects unless they come only once."""
    spoiled: bool = False
    """The call has left something in its process that a later call would be blamed for."""
    overwritten: tuple[str, ...] = ()
    """Results of the call with `keep` whose bits changed since."""
    shared: tuple[str, ...] = ()
    """Results that lie in the memory of another call's: of one at the same time, the one before, or the call with `keep`."""
    held: tuple[int, int] = (0, 0)
    """Bytes that the process holds after a call with `weigh`: allocated, mapped."""
    series: Repeated | None = None
    """The result of a call that was made again and again."""
    compilations: int = 0
    """Graphs that torch.compile has compiled in the process so far."""
    fakes: Mapping[str, str] = field(default_factory=dict)
    """Operator -> what its fake implementation says wrongly."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Argument -> the candidate's default, of a call with `fakes`."""

    @property
    def around(self) -> bool:
        """Whether bytes around a result, or around other memory that the call allocated, were written."""
        results = [result for outcome in (self, *self.others) for result in outcome.results.values()]
        return bool(self.damage) or any(isinstance(result, Returned) and result.around for result in results)

    @property
    def from_outside(self) -> bool:
        """Whether what happened to its process may not be the call's doing: an end by a signal that was sent, as by a system
        without memory or by its operator, or with the process that had started it; another priority."""
        if self.fault is not None:
            return fault.was_sent(self.fault)
        if any(effect.name in BY_OTHERS for effect in self.side_effects):
            return True
        if self.status == "exception":
            return self.error == "MemoryError" or any(says in self.message for says in NO_MEMORY)
        return self.status == "kills_parent" or (self.status == "crash" and self.error in fault.SENT)
