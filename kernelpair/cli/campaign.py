"""`kernelpair campaign`: many cases on many machines, by Ray. One task is a block of seeds of one pair and candidate: the
ordinary job, whose result is one file. What is on disk is not run again."""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelpair.call.runner import HarnessError
from kernelpair.cli.ending import end
from kernelpair.cli.main import EXIT_OK, UsageError
from kernelpair.cli.select import select_candidates, select_pairs, select_suite, select_tiers
from kernelpair.providers.subjects import Subjects
from kernelpair.report.files import write_whole
from kernelpair.report.lines import result_of, shown
from kernelpair.report.live import Progress
from kernelpair.report.merge import block_file, results_on_disk
from kernelpair.search.jobs import Job, carry_out
from kernelpair.suite import Place, SavedLine, Suite, saved_lines

LABEL = "kernelpair/"  # and a candidate: the label of a node that can run it
BLOCK = 2000  # cases: some seconds to some minutes, so that a lost one is no loss
RETRIES = 3  # of a block whose node dies, by Ray: none of its cases was counted
AHEAD = 2  # blocks handed out for each core, so that none waits
WAIT_SECONDS = 2.0


@dataclass(frozen=True)
class SeedBlock:
    """The seeds of one task."""

    pair: str
    candidate: str
    number: int
    cases: int

    @property
    def key(self) -> tuple[str, str]:
        return self.pair, self.candidate

    @property
    def file(self) -> str:
        return block_file(self.pair, self.candidate, f"{self.number:06}")


def campaign(options: argparse.Namespace) -> int:
    """Run blocks until the cases or the hours are used up; what is on disk counts. The exit status is that of `check`."""
    place, suite = select_suite(options, built=True)
    if options.labels:
        print(",".join(f"{name}=yes" for name in labels_here(suite)))
        return EXIT_OK
    if options.cases is None and options.hours is None:
        raise UsageError("say when to stop: --cases N, such as 1e8, or --hours H")
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"Ray cannot be imported ({error}): pip install 'kernelpair[campaign]'") from None
    run = _Campaign(options, place, suite, ray)
    labels = dict.fromkeys(labels_here(suite), "yes") if options.address in (None, "local") else None
    ray.init(address=options.address, labels=labels, log_to_driver=False)
    interrupted = False
    try:
        run.carry_out()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        ray.shutdown()
    return run.conclude(interrupted)


def labels_here(suite: Suite) -> list[str]:
    """The labels of a node that is this machine: one for each candidate that can run, with nothing standing in for hardware."""
    pairs = suite.pairs().values()
    ready = (name for pair in pairs for name, reason in select_candidates(suite, pair, (), timed=True) if not reason)
    return sorted({LABEL + name for name in ready})


def run_block(
    place: Place, block: SeedBlock, seed: int, corpus: tuple[SavedLine, ...], shared: str, spec: str | None
) -> dict[str, Any]:
    """What a task does, on whichever node: the ordinary job in a folder of the node's own. Returns the result as JSON, with
    commands for the suite that `--suite` named."""
    folder = Path(tempfile.gettempdir(), f"kernelpair-campaign-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    resolve, suite = Subjects(place), place.load()
    job = Job(block.pair, block.candidate, examples=block.cases, seed=seed, corpus=corpus, several=True, shared=shared)
    ended = carry_out(job, resolve, suite.preload, False, lambda tally: None)
    if ended.error:
        raise HarnessError(ended.error)
    return asdict(result_of(ended, resolve(*block.key).pair, spec)) | {"asked": block.cases}


class _Campaign:
    """One `kernelpair campaign`."""

    def __init__(self, options: argparse.Namespace, place: Place, suite: Suite, ray: Any) -> None:
        self.options, self.place, self.suite, self.ray = options, place, suite, ray
        tiers, pairs = select_tiers(suite, options.tier), select_pairs(suite, options.pairs)
        self.trials = [(pair.name, name) for pair in pairs for name, _ in select_candidates(suite, pair, tiers)]
        self.console, self.folder = Console(highlight=False), Path(options.folder)
        (self.folder / "blocks").mkdir(parents=True, exist_ok=True)
        self.seed, self.block = self._plan()
        self.started = time.monotonic()
        self.reasons: dict[tuple[str, str], str] = {}  # trial -> why no more blocks of it are run

    def _plan(self) -> tuple[int, int]:
        """Seed and size of a block: new ones, or those of the campaign in this folder. UsageError where others are asked for."""
        file = self.folder / "campaign.json"
        asked = {name: getattr(self.options, name) for name in ("seed", "block") if getattr(self.options, name) is not None}
        plan: dict[str, int] = {"seed": random.SystemRandom().randrange(2**31), "block": BLOCK} | asked
        plan |= json.loads(file.read_text()) if file.is_file() else {}
        for name in (name for name, value in asked.items() if value != plan[name]):
            says = f"--{name} {asked[name]}: the campaign in {self.folder} has {plan[name]}"
            raise UsageError(f"{says}; leave the option out to go on with it, or name another --folder")
        write_whole(file, json.dumps(plan))
        return plan["seed"], plan["block"]

    def blocks(self) -> Iterator[SeedBlock]:
        """Every block, each trial's first before any trial's second; those on disk are left out."""
        share = float("inf") if self.options.cases is None else -(-int(self.options.cases) // len(self.trials))
        number = 0
        while number * self.block < share and not all(trial in self.reasons for trial in self.trials):
            for pair, candidate in self.trials:
                block = SeedBlock(pair, candidate, number, int(min(self.block, share - number * self.block)))
                if block.key not in self.reasons and not self._done(block):
                    yield block
            number += 1

    def _done(self, block: SeedBlock) -> bool:
        """Is its result on disk, of no fewer cases."""
        file = self.folder / "blocks" / block.file
        return file.is_file() and json.loads(file.read_text())["asked"] >= block.cases

    def carry_out(self) -> None:
        """Hand blocks out, take results in, write each as it comes."""
        seconds = None if self.options.hours is None else self.options.hours * 3600
        waiting, running = self.blocks(), dict[Any, SeedBlock]()
        count = len(list(self.blocks())) if self.options.cases is not None else 0
        task = self.ray.remote(max_retries=RETRIES)(run_block)
        with Progress(self.console, count, seconds) as progress:
            while True:
                over = seconds is not None and time.monotonic() - self.started > seconds
                labels = {label for node in self.ray.nodes() if node["Alive"] for label in node.get("Labels", {})}
                room = AHEAD * int(self.ray.cluster_resources().get("CPU", 1))
                while not over and len(running) < room and (block := next(waiting, None)) is not None:
                    self._hand_out(task, block, labels, running)
                self._give_up(running, labels)
                if not running:
                    return
                for reference in self.ray.wait(list(running), timeout=WAIT_SECONDS)[0]:
                    self._take_in(reference, running.pop(reference), progress)

    def _hand_out(self, task: Any, block: SeedBlock, labels: set[str], running: dict[Any, SeedBlock]) -> None:
        label = LABEL + block.candidate
        if label not in labels:
            self.reasons[block.key] = f"no node of the cluster has the label {label}"
            return
        corpus = saved_lines(self.suite, block.pair) if block.number == 0 else ()
        seed = self.seed + block.number * self.block
        selected = task.options(label_selector={label: "yes"})
        task_of = (self.place, block, seed, corpus, self.options.shared or "", self.options.suite)
        running[selected.remote(*task_of)] = block

    def _give_up(self, running: dict[Any, SeedBlock], labels: set[str]) -> None:
        """Blocks that wait for a label which no living node has any more."""
        for reference, block in list(running.items()):
            if LABEL + block.candidate not in labels:
                self.reasons[block.key] = f"the last node with the label {LABEL}{block.candidate} is gone"
                self.ray.cancel(reference, force=True)
                del running[reference]

    def _take_in(self, reference: Any, block: SeedBlock, progress: Progress) -> None:
        try:
            document = self.ray.get(reference)
        except HarnessError as error:
            cause = getattr(error, "cause", error)  # without the traceback of the other machine
            self.reasons[block.key] = f"harness fault in block {block.number}: {cause}"
        except self.ray.exceptions.RayError as error:
            self.reasons[block.key] = f"block {block.number} was lost {RETRIES + 1} times: {type(error).__name__}"
        else:
            write_whole(self.folder / "blocks" / block.file, json.dumps(document))
            where = f"{block.pair}[{shown(block.candidate)}]"
            progress.ended(block.key, document["cases"], [f"{where} {each['detail']}" for each in document["failures"]])

    def conclude(self, interrupted: bool) -> int:
        """Say what was proven, write the files, choose the exit status."""
        results = results_on_disk(self.folder / "blocks", self.trials, self.reasons)
        seconds = time.monotonic() - self.started
        tried = {(result.pair, result.candidate) for result in results if result.cases}
        faults = [f"{pair}[{name}] stopped: {why}" for (pair, name), why in self.reasons.items() if (pair, name) in tried]
        notes = [f"{sum(result.cases for result in results):,} cases on disk in {self.folder}, {seconds:.0f} s, seed {self.seed}"]
        how = {"interrupted": interrupted, "faults": faults, "notes": notes, "facts": [("seed", str(self.seed))]}
        return end(self.console, self.options, self.suite, Subjects(self.place), results, **how)  # type: ignore[arg-type]
