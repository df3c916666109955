"""Run the corpus in this process and print what was done as JSON; the first difference ends it with an AssertionError.

python -m tests.native.tile_corpus.run FOLDER SEED PROGRAMS REPEATS
"""

import json
import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optimized
from tests.native.tile_corpus.assembly import Functions
from tests.native.tile_corpus.illegal import FULL, REFUSED, Refusals
from tests.native.tile_corpus.machine import Corpus
from tests.native.tile_corpus.program import ABSOLUTE, BESIDE, CorpusRun, Program, random_program, stores, write

THREADS = 4
DEADLY = ("a square", "another instruction")


def on_threads(corpus: Corpus, functions: Functions, programs: list[Program]) -> int:
    """The same programs in several threads at the same time; how many instructions that were."""

    def run(number: int) -> int:
        one = CorpusRun(corpus, functions, ABSOLUTE + (number + 1) * 0x100_0000, number)
        for program in programs:
            one.run(program)
        return one.instructions

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(run, range(THREADS)))


def dies_of(corpus: Corpus, configure: str, name: str) -> int:
    """The signal that ends a process in which nobody handles any, when it calls a function."""
    child = os.fork()
    if child == 0:
        corpus["watch_no_signals"]()
        catch()
        write(corpus.address(BESIDE), FULL)
        corpus[configure](None)
        corpus[name](None)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def nests(corpus: Corpus, configure: str, product: str) -> bool:
    """Another handler on top of what is there, which it calls, changes nothing."""
    write(corpus.address(BESIDE), FULL)
    corpus["nest_on_top"]()
    corpus[configure](None)
    corpus[product](None)
    return bool(corpus["times_nested"]() >= 2) == trapped()


def trapped() -> bool:
    """Whether tile instructions are carried out by the handler, and not by the CPU."""
    return not next(tier for tier in optimized.tiers() if tier.products == "tile_registers").runnable


def catch() -> None:
    """Make tile instructions run in this process; where there is hardware, its permission was asked for by `tiers`."""
    if trapped():
        from optimized import trapped as handler

        handler.install()


def main(folder: str, seed: int, programs: int, repeats: int) -> None:
    rng, functions = random.Random(seed), Functions(data=[BESIDE])
    refusals = Refusals(functions)
    alone = [random_program(rng, functions, ABSOLUTE) for _ in range(programs)]
    together = [random_program(rng, functions, 0) for _ in range(max(programs // 10, 1))]
    stores(functions)
    configure = functions.relative("ldtilecfg", BESIDE)
    calls = {says: functions.plain(refused[1]) for says, refused in REFUSED.items() if says in DEADLY}
    product = functions.product("tdpbssd", 0, 1, 2)
    corpus = Corpus(functions.build(Path(folder)))
    corpus["watch_signals"]()  # the program's own, which the handler has to respect
    catch()
    refusals.check(corpus, partial=not trapped())
    run = CorpusRun(corpus, functions, ABSOLUTE, seed)
    for _ in range(repeats):
        for program in alone:
            run.run(program)
    done = {
        "how": "trapped" if trapped() else "hardware",
        "functions": len(functions.names),
        "instructions": run.instructions,
        "products": run.products,
        "sums": run.sums,
        "on threads": on_threads(corpus, functions, together),
        "deaths": {name: dies_of(corpus, configure, call) for name, call in calls.items()},
        "nests": nests(corpus, configure, product),
    }
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
