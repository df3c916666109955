"""Mutants as candidates, found by name in whichever process needs them: the judging process builds, the worker loads."""

from dataclasses import dataclass, replace
from pathlib import Path

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.mutation.mutant import Mutant, MutantError, mutants
from kernelpair.providers.subjects import Subjects
from kernelpair.sources import BuildError
from kernelpair.suite import Place, Suite, obstacle


def host(suite: Suite, mutant: Mutant) -> tuple[Candidate, str]:
    """The candidate in which a mutant is planted here, and if it cannot run, why. Raises MutantError."""
    pair = suite.pairs()[mutant.pair]
    candidates = {candidate.name: candidate for candidate in suite.candidates(pair)}
    tiers = {tier.name: tier for tier in suite.tiers()}
    wanted = mutant.tier or suite.planted_in(pair)
    if wanted not in candidates and wanted not in tiers:
        raise MutantError(f"{mutant.name}: unknown tier {wanted!r}")
    found = candidates.get(wanted) or candidates[suite.planted_in(pair)]  # of a pair that is not put on trial by tier
    return found, obstacle(tiers[wanted]) if wanted in tiers else ""


def moved_to(mutant: Mutant, instead: tuple[str, str] | None) -> Mutant:
    """The mutant in the second tier where it names the first."""
    return replace(mutant, tier=instead[1], elsewhere=True) if instead is not None and mutant.tier == instead[0] else mutant


def planted(suite: Suite, mutant: Mutant, folder: Path) -> Candidate:
    """The candidate with the mutant's bug in it, built in `folder`. Raises MutantError."""
    pair = suite.pairs()[mutant.pair]
    candidate, reason = host(suite, mutant)
    if reason:
        raise MutantError(f"{mutant.name}: {reason}")
    try:
        return suite.sources.plant(suite.root, pair, candidate, mutant, folder.resolve())
    except BuildError as error:
        raise MutantError(f"{mutant.name} cannot be built: {error}") from None


@dataclass(frozen=True)
class MutantSubjects:
    """Mutants by name, each built in a folder of its own; everything else as `Subjects` finds it."""

    place: Place
    folder: str
    instead: tuple[str, str] | None = None
    """A tier that mutants name, and the tier that they are planted in instead."""

    def __call__(self, pair: str, name: str) -> Subject:
        suite = self.place.load()
        known = mutants(suite)
        if name not in known:
            return Subjects(self.place)(pair, name)
        mutant = moved_to(known[name], self.instead)
        return Subject(suite.pairs()[pair], planted(suite, mutant, self.folder_of(mutant)))

    def folder_of(self, mutant: Mutant) -> Path:
        """Where a mutant is built."""
        return Path(self.folder, mutant.pair, mutant.id)
