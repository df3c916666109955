"""What is put on trial, by name: a suite's own candidates, and those of providers."""

from dataclasses import dataclass, replace

from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.providers.provider import PREFIX, provider, spec_and_cpu
from kernelpair.suite import REFERENCE, Place, Suite


@dataclass(frozen=True)
class Subjects:
    """Resolves names in any process; it can be pickled."""

    place: Place

    def __call__(self, pair: str, name: str) -> Subject:
        """A candidate of the suite, the reference, or `provider:<name or file>`, as it is put on trial under the pair's contract;
        a provider's name may end with ` on <CPU>`.

        Raises ValueError for a name that the pair does not have.
        """
        suite = self.place.load()
        found = suite.pairs()[pair]
        if name.startswith(PREFIX):
            return _provided(name, found, suite)
        if name == REFERENCE:
            return Subject(found, suite.reference(found))
        candidates = {candidate.name: candidate for candidate in suite.candidates(found)}
        if name not in candidates:
            raise ValueError(f"{pair} has no candidate {name!r}; known are {', '.join(candidates)}")
        return Subject(found, candidates[name])


def _provided(name: str, pair: Pair, suite: Suite) -> Subject:
    """A provider's kernel, on another CPU where its name says so. With the suite's counter, where there is a path to be seen."""
    spec, cpu = spec_and_cpu(name)
    subject = provider(spec).subject(pair)
    if cpu:
        other = {known.name: known for known in suite.cpus}
        if cpu not in other:
            raise ValueError(f"no CPU is called {cpu!r}; known are {', '.join(other) or 'none'}")
        subject = other[cpu].subject(subject)
    counted = suite.executed if cpu or subject.candidate.claims else ""
    return replace(subject, candidate=replace(subject.candidate, name=name, executed=counted))
