"""Does steering find bugs sooner? `python benchmarks/steering.py [PAIR…] [--seconds S]`

`kernelpair check -v` and tests/test_kernel_paths.py name the cells and the ways through a kernel that no case hits. Where there
were some, the pair's strategy draws on purpose, by the number that it calls `rare`, the batches that hit them. This puts each
mutant of such a pair on trial twice, with that number drawn and with it held at 0, and prints how many cases and seconds each
took to notice it.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import geometric_mean

import torch

from kernelpair.drive import Drive
from kernelpair.run import Isolated
from kernelpair.tally import First
from mutants import Mutant, mutants
from mutants.candidate import resolve, tier_of
from properties import extend_attention, paged_attention
from properties.strategies import any_of

SEED = 1


@contextmanager
def unsteered() -> Iterator[None]:
    """`rare` is 0 in every case."""
    drawn, between = extend_attention.RARE, paged_attention.between
    extend_attention.RARE, paged_attention.between = any_of(0), lambda low, high: any_of(low)
    try:
        yield
    finally:
        extend_attention.RARE, paged_attention.between = drawn, between


def noticed(mutant: Mutant, seconds: float) -> First | None:
    """The first failure of a mutant's trial, None if there was none in time."""
    pair, candidate = resolve(mutant.pair, mutant.name)
    with Isolated(candidate, preload=("mutants.candidate",)) as runner:
        drive = Drive(pair, candidate, runner, relation=mutant.relation, shrink_seconds=0.0)
        return drive.run(None, seconds, SEED, None).first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs = ("paged_attention", "extend_attention")
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"of {', '.join(pairs)} (default: both)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each mutant and way (default 20)")
    options = parser.parse_args()
    if set(options.pairs) - set(pairs):
        parser.error(f"no such draws in {', '.join(sorted(set(options.pairs) - set(pairs)))}")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    firsts: list[tuple[First | None, First | None]] = []
    for mutant in mutants().values():
        if mutant.pair in (options.pairs or pairs) and not mutant.equivalent and not tier_of(mutant)[1]:
            with unsteered():
                plain = noticed(mutant, options.seconds)
            firsts.append((plain, noticed(mutant, options.seconds)))
            print(f"{mutant.name:44}", *(_says(first) for first in firsts[-1]), flush=True)
    for way, found in zip(("rare held at 0", "rare drawn"), zip(*firsts)):
        cases = [first.cases for first in found if first]
        late = sum(first is None for first in found)
        print(f"{way:44} {len(cases)} noticed after {geometric_mean(cases):.0f} cases (geometric mean), {late} not")


def _says(first: First | None) -> str:
    return "          not noticed" if first is None else f"{first.cases:6} cases {first.seconds:5.1f} s"


if __name__ == "__main__":
    main()
