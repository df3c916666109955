"""What is put on trial, by name: a suite's own candidates, and those of providers."""

from dataclasses import dataclass, replace

from kernelpair.contract.subject import Subject
from kernelpair.providers.provider import PREFIX, provider
from kernelpair.suite import REFERENCE, Place, Suite


@dataclass(frozen=True)
class Subjects:
    """Resolves names in any process; it can be pickled."""

    place: Place

    def __call__(self, pair: str, name: str) -> Subject:
        """A candidate of the suite, the reference, or `provider:<name or file>`, as it is put on trial under the pair's contract.

        Raises ValueError for a name that the pair does not have.
        """
        suite = self.place.load()
        found = suite.pairs()[pair]
        if name.startswith(PREFIX):
            return _counted(provider(name.removeprefix(PREFIX)).subject(found), suite)
        if name == REFERENCE:
            return Subject(found, suite.reference(found))
        candidates = {candidate.name: candidate for candidate in suite.candidates(found)}
        if name not in candidates:
            raise ValueError(f"{pair} has no candidate {name!r}; known are {', '.join(candidates)}")
        return Subject(found, candidates[name])


def _counted(subject: Subject, suite: Suite) -> Subject:
    """With the suite's counter, where the candidate claims a path."""
    if not subject.candidate.claims or not suite.executed:
        return subject
    return replace(subject, candidate=replace(subject.candidate, executed=suite.executed))
