"""Cases that the harness judges a second on one core, kernels isolated: `python benchmarks/throughput.py [PAIR…] [--tier T]`.

Prints each pair's figure on the tier (default: the best that runs here) and their mean. A drive is timed from its first case,
after the worker has started.
"""

import argparse
import os

import torch

import properties
from kernelpair.drive import Drive
from kernelpair.run import Isolated
from optimized import selected_tier
from properties.candidates import PYTHON, candidate


def cases_per_second(name: str, tier: str, cases: int, seed: int) -> float:
    """Judged cases a second of one pair, one judging process."""
    pair = properties.pairs()[name]
    subject = candidate(pair, PYTHON if pair.tiers == PYTHON else tier)
    with Isolated(subject, preload=("properties.candidates",)) as runner:
        tally = Drive(pair, subject, runner).run(cases, None, seed, None)
    return tally.cases / tally.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", metavar="PAIR")
    parser.add_argument("--tier", default=selected_tier())
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    speeds = []
    for name in options.pairs or properties.pairs():
        speeds.append(cases_per_second(name, options.tier, options.cases, options.seed))
        print(f"{name:28} {options.tier:13} {speeds[-1]:6.0f} cases/s")
    print(f"{'mean':28} {'':13} {sum(speeds) / len(speeds):6.0f} cases/s on one core")


if __name__ == "__main__":
    main()
