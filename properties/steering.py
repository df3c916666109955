"""Does steering find bugs sooner? `python -m properties.steering [PAIR…] [--seconds S] [--seeds N]`

`kernelpair check -v` and test_kernel_paths.py name the cells and the paths through a kernel that no case hits. Where there
were some, the pair's strategy draws on purpose, by the number that it calls `rare`, the batches that hit them. This puts each
mutant of such a pair on trial with that number drawn and with it held at 0, several times each, and prints how many cases it
took to notice it.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import geometric_mean
from unittest.mock import patch

import torch

from kernelpair.call.runner import Isolated
from kernelpair.mutation.candidate import MutantSubjects, host
from kernelpair.mutation.mutant import Mutant, mutants
from kernelpair.search.search import Search
from kernelpair.suite import Place
from properties.shared.strategies import any_of
from properties.suite import SUITE

RESOLVE = MutantSubjects(Place("properties.suite"), ".kernelpair/steering")


@contextmanager
def unsteered() -> Iterator[None]:
    """`rare` is 0 in every case."""
    held = patch("properties.extend_attention.cases.RARE", any_of(0))
    with held, patch("properties.paged_attention.cases.between", lambda low, high: any_of(low)):
        yield


def noticed(mutant: Mutant, seconds: float, seeds: range) -> list[int]:
    """For each seed after how many cases the mutant's trial failed first; 0 if it did not in time."""
    subject = RESOLVE(mutant.pair, mutant.name)
    found = []
    with Isolated(subject.candidate, preload=SUITE.preload) as runner:
        for seed in seeds:
            search = Search(subject, runner, trial=mutant.relation, shrink_seconds=0.0)
            first = search.run(None, seconds, seed, None).first
            found.append(first.cases if first else 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs = ("paged_attention", "extend_attention")
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"of {', '.join(pairs)} (default: both)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each mutant, way and seed (default 10)")
    parser.add_argument("--seeds", type=int, default=5, help="trials of each mutant and way (default 5)")
    options = parser.parse_args()
    if set(options.pairs) - set(pairs):
        parser.error(f"no such draws in {', '.join(sorted(set(options.pairs) - set(pairs)))}")
    torch.set_num_threads(1)
    seeds, held, drawn = range(1, options.seeds + 1), list[int](), list[int]()
    print(f"cases until it was noticed, by seed{'':21} {'rare held at 0':32} rare drawn")
    for mutant in mutants(SUITE).values():
        if mutant.pair in (options.pairs or pairs) and not mutant.equivalent and not host(SUITE, mutant)[1]:
            with unsteered():
                plain = noticed(mutant, options.seconds, seeds)
            steered = noticed(mutant, options.seconds, seeds)
            print(f"{mutant.name:55} {_says(plain):32} {_says(steered)}", flush=True)
            held += plain
            drawn += steered
    for way, found in (("rare held at 0", held), ("rare drawn", drawn)):
        cases = [count for count in found if count]
        mean = f"after {geometric_mean(cases):.0f} cases (geometric mean)" if cases else ""
        print(f"{way:16} noticed {len(cases)} of {len(found)} times {mean}")


def _says(found: list[int]) -> str:
    return " ".join(str(count or "never") for count in found)


if __name__ == "__main__":
    main()
