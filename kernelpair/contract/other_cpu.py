"""Another CPU than this machine's, which a worker can show to a library: the library then takes its paths for that CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it loads torch
    from kernelpair.contract.subject import Subject


@dataclass(frozen=True)
class OtherCpu:
    """How a suite has a provider's kernels run as on another CPU."""

    name: str
    obstacle: Callable[[], str]
    """Why workers cannot show this CPU here, and what can be done instead; empty where they can."""
    tell: str
    """Place of a function that tells a worker: called with True before the candidate's library is loaded, with False after
    it."""
    run_as: str = ""
    """How it runs in a word, such as "trapped"; empty where the CPU is this one."""
    limits: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """What a worker cannot do as that CPU would -> does this case need it."""
    fit: Callable[[Any], Any] = lambda case: case
    """A case outside of these limits -> one like it within them."""

    def subject(self, subject: "Subject") -> "Subject":
        """The subject as it is put on trial on this CPU."""

        def fit(case: Any) -> Any:
            fitted = subject.fit(case)
            return subject.fit(self.fit(fitted)) if any(outside(fitted) for outside in self.limits.values()) else fitted

        candidate = replace(subject.candidate, tell=self.tell, run_as=self.run_as, slow=bool(self.run_as))
        return replace(subject, candidate=candidate, limits={**subject.limits, **self.limits}, fit=fit)
