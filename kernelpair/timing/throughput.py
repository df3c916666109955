"""Cases that the harness judges a second on one core, kernels isolated.

    python -m kernelpair.timing.throughput [PAIR…] [--tier T]

Prints each pair's figure on the tier (default: the usual one) and their mean. A search is timed from its first case,
after the worker has started.
"""

import argparse
import os

import torch

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.suite import Suite, find


def cases_per_second(suite: Suite, name: str, tier: str, cases: int, seed: int) -> float:
    """Judged cases a second of one pair, one judging process."""
    pair = suite.pairs()[name]
    candidates = suite.candidates(pair)
    subject = Subject(pair, next((candidate for candidate in candidates if candidate.name == tier), candidates[0]))
    with Isolated(subject.candidate, preload=suite.preload) as runner:
        tally = Search(subject, runner).run(cases, None, seed, None)
    return tally.cases / tally.seconds


def main() -> None:
    suite = find().load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="PAIR")
    parser.add_argument("--tier", default=suite.machine.usual())
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    speeds = []
    for name in options.pairs or suite.pairs():
        speeds.append(cases_per_second(suite, name, options.tier, options.cases, options.seed))
        print(f"{name:28} {options.tier:13} {speeds[-1]:6.0f} cases/s")
    print(f"{'mean':28} {'':13} {sum(speeds) / len(speeds):6.0f} cases/s on one core")


if __name__ == "__main__":
    main()
