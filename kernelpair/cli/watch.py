"""`kernelpair watch`: after each change of a source the kernels are built and tried again, the earlier failures first."""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kernelpair.call import fork_server
from kernelpair.call.system import kill_children
from kernelpair.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOTHING, UsageError
from kernelpair.cli.select import select_candidates, select_pairs, select_suite, select_tiers
from kernelpair.names import count
from kernelpair.providers.subjects import Subjects
from kernelpair.report.lines import PairResult, result_of, shown
from kernelpair.search.jobs import Ended, Job, Jobs
from kernelpair.sources import BuildError, source_files
from kernelpair.suite import Suite, saved_lines

POLL_SECONDS = 0.3  # between two looks at the sources
SETTLE_SECONDS = 0.15  # an editor writes several files, or one in several steps
LIST_SECONDS = 3.0  # between two looks for files that are new
ROUND_SECONDS = 20.0  # of new cases after a change; the failures of before come within the first
PYTHON = (".py", ".pyi", ".toml")
Stamps = dict[Path, tuple[int, int]]


class WatchedFiles:
    """The files of a repository, and which of them changed since they were last asked for."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self._clock = root, clock
        self._files, self._listed = source_files(root), clock()
        self._known = self._stamps()

    def _stamps(self) -> Stamps:
        found: Stamps = {}
        for file in self._files:
            try:
                status = (self.root / file).stat()
            except OSError:
                continue
            found[file] = status.st_mtime_ns, status.st_size
        return found

    def changed(self) -> list[Path]:
        """Files that were written, came or went since the last call."""
        if self._clock() - self._listed > LIST_SECONDS:
            self._files, self._listed = source_files(self.root), self._clock()
        now = self._stamps()
        before, self._known = self._known, now
        return sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))

    def wait(self, sleep: Callable[[float], None] = time.sleep) -> list[Path]:
        """What changed, once something has and the writing has come to rest."""
        changed: set[Path] = set()
        while True:
            more = self.changed()
            if changed and not more:
                return sorted(changed)
            changed |= set(more)
            sleep(SETTLE_SECONDS if changed else POLL_SECONDS)


def watch(options: argparse.Namespace) -> int:
    """Try the pairs now and after every change until one fails, or, with --keep-going, until Ctrl-C."""
    place, suite = select_suite(options)
    pairs = select_pairs(suite, options.pairs)
    tiers = select_tiers(suite, options.tier)
    jobs = [
        Job(pair.name, name, corpus=saved_lines(suite, pair.name))
        for pair in pairs
        for name, reason in select_candidates(suite, pair, tiers)
        if not reason
    ]
    if not jobs:
        raise UsageError(f"nothing of {', '.join(pair.name for pair in pairs)} can run here: see kernelpair doctor")
    run = _Watch(options, suite, Subjects(place), jobs)
    sources = WatchedFiles(suite.root)
    try:
        while True:
            if run.round() and not options.keep_going:
                return EXIT_FAILED
            run.say(f"waiting for a change in {suite.root.name} (Ctrl-C ends)", "dim")
            changed = sources.wait()
            run.say(f"changed: {_named(changed)}", "bold")
            if any(file.suffix in PYTHON for file in changed):
                run.close()
                _again()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED if run.rounds else EXIT_NOTHING
    finally:
        run.close()


def _again() -> None:
    """Begin anew in this process: modules that were imported are not what is on disk."""
    sys.stdout.flush()
    fork_server.close()  # what is not waited for before stays as a zombie of this process
    kill_children()
    os.execv(sys.executable, [sys.executable, "-m", "kernelpair", *sys.argv[1:]])  # noqa: S606 - the same command


def _named(files: Iterable[Path]) -> str:
    names = [str(file) for file in files]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class _Watch:
    """One `kernelpair watch`: the judging processes stay, so that a round begins at once."""

    def __init__(self, options: argparse.Namespace, suite: Suite, resolve: Subjects, jobs: list[Job]) -> None:
        self.options, self.suite, self.resolve, self.jobs = options, suite, resolve, jobs
        self.console = Console(highlight=False)
        self.leader = Jobs(resolve, suite.preload, min(len(os.sched_getaffinity(0)), len(jobs)))
        self.rounds = 0
        self.failing: set[tuple[str, str]] = set()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, soft_wrap=True, markup=False)

    def round(self) -> list[PairResult]:
        """Build, then try what failed before and then the others. Returns the failures."""
        started = time.monotonic()
        try:
            self.suite.sources.bring_up_to_date(self.suite.root)
        except BuildError as error:
            self.say(f"does not build: {error}", "red")
            return []
        built = time.monotonic()
        seed = random.SystemRandom().randrange(2**31)
        jobs = [replace(job, seed=seed) for job in sorted(self.jobs, key=lambda job: job.key not in self.failing)]
        results: list[PairResult] = []

        def ended(one: Ended) -> None:
            if one.error:
                self.say(f"harness fault: {one.job.pair} {shown(one.job.candidate)}: {one.error}", "red")
                return
            result = result_of(one, self.resolve(*one.job.key).pair, self.options.suite)
            results.append(result)
            self._show(result, time.monotonic() - built)

        self.leader.run(jobs, lambda job, cases, seconds: None, ended, self.options.seconds or ROUND_SECONDS)
        self.rounds += 1
        failed = [result for result in results if result.verdict == "fail"]
        self.failing = {(result.pair, result.candidate) for result in failed}
        cases = sum(result.cases for result in results)
        verdict = f"{len(failed)} of {len(results)} trials failed" if failed else f"{count(len(results), 'trial')} passed"
        spent = f"built in {built - started:.1f} s, tried in {time.monotonic() - built:.1f} s"
        self.say(f"{verdict}: {count(cases, 'case')}; {spent}, seed {seed}", "bold red" if failed else "green")
        return failed

    def _show(self, result: PairResult, seconds: float) -> None:
        if result.verdict == "fail":
            first = min(result.failures, key=lambda failure: len(failure.case))
            self.say(f"FAIL {result.pair}[{result.shown}] {first.kind}: {first.detail}  ({seconds:.1f} s)", "red")
            self.say(f"  {first.replay}")

    def close(self) -> None:
        self.leader.close()
