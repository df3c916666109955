"""Which bug each relation notices by itself: `python -m kernelpair.mutation.power [PAIR…] [--seconds S] [--markdown F]`.

In an ordinary trial the comparison with the reference nearly always fails first. Here nothing is compared with the reference:
a relation sees only what a mutant answers to its several calls. For each relation the first mutant that it notices is
printed, and after how many cases; a relation that notices none has no power, and the exit status is 1.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

from kernelpair.call.runner import HarnessError, Isolated
from kernelpair.contract.pair import Pair
from kernelpair.mutation.candidate import MutantSubjects, host
from kernelpair.mutation.mutant import Mutant, mutants
from kernelpair.report.files import write_whole
from kernelpair.search.search import Search
from kernelpair.suite import find
from kernelpair.trial.session import Session

SEED = 1
CASES = 300  # at most, of one relation and mutant


class _Unjudged(Session):
    """Only relations are recorded: no value, no byte and no layout is judged."""

    def record(self, failures: Any, note: str = "") -> None:
        pass

    def judge_values(self, *arguments: Any) -> None:
        pass


def noticed(pair: Pair, seconds: float, resolve: MutantSubjects) -> dict[str, tuple[Mutant, int]]:
    """Relation -> the first of the pair's mutants that it notices, and after how many cases."""
    found: dict[str, tuple[Mutant, int]] = {}
    suite = resolve.place.load()
    for mutant in mutants(suite).values():
        left = [name for name in pair.relations if name not in found]
        if mutant.pair != pair.name or mutant.equivalent or mutant.relation or not left or host(suite, mutant)[1]:
            continue
        subject = resolve(pair.name, mutant.name)
        with Isolated(subject.candidate, preload=suite.preload) as runner:
            for name in left:
                search = Search(subject, runner, trial=name, shrink_seconds=0.0, session_type=_Unjudged)
                try:
                    noticed_it = search.run(CASES, seconds, SEED, None).first is not None
                except HarnessError:  # what the mutant answered is no argument of the relation's next call
                    noticed_it = True
                if noticed_it:
                    found[name] = mutant, search.tally.cases
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernelpair.mutation.power", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    place = find()
    known = {name: pair for name, pair in place.load().pairs().items() if pair.relations}
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each relation and mutant (default 5)")
    parser.add_argument("--markdown", metavar="F", help="write the table to this file")
    options = parser.parse_args()
    unknown = [name for name in options.pairs if name not in known]
    if unknown:
        parser.error(f"unknown pair {unknown[0]!r}; known are {', '.join(known)}")
    torch.set_num_threads(1)
    resolve = MutantSubjects(place, f".kernelpair/power-{os.getpid()}")
    rows, powerless = ["| pair | relation | notices | after cases |", "|---|---|---|---|"], 0
    for name in options.pairs or known:
        found = noticed(known[name], options.seconds, resolve)
        for relation in known[name].relations:
            mutant, cases = found.get(relation, (None, 0))
            says = f"{mutant.id}: {mutant.says}" if mutant else "nothing"
            powerless += mutant is None
            rows.append(f"| {name} | `{relation}` | {says} | {cases or ''} |")
            print(f"{name:24} {relation:16} {says}" + (f" ({cases} cases)" if cases else ""), flush=True)
    if options.markdown:
        write_whole(Path(options.markdown), "\n".join(rows) + "\n")
    return 1 if powerless else 0


if __name__ == "__main__":
    sys.exit(main())
