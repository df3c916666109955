"""`kernelpair check`: put candidates on trial, with a live line for each."""

import argparse
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from kernelpair.cli import page
from kernelpair.cli.conclusion import Conclusion
from kernelpair.cli.input_faults import input_fault, unfinished
from kernelpair.cli.main import EXIT_FAILED, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK, EXIT_USAGE, UsageError
from kernelpair.cli.result_lines import COLOURS, print_line
from kernelpair.cli.select import (
    provided,
    select_candidates,
    select_cpu,
    select_loaded,
    select_provider,
    select_suite,
    select_tiers,
)
from kernelpair.contract.pair import Pair
from kernelpair.environment import environment
from kernelpair.interruption import handled_by, interrupt, until_interrupted
from kernelpair.names import count, unknown
from kernelpair.providers.ledger import Known, LedgerError, ledger
from kernelpair.providers.subjects import Subjects
from kernelpair.report import words
from kernelpair.report.files import WriteError
from kernelpair.report.history import History
from kernelpair.report.lines import (
    FailureReport,
    PairResult,
    replay_command,
    result_of,
    shown,
    write_json,
    write_junit,
)
from kernelpair.report.live import Progress
from kernelpair.search.jobs import INTERRUPT_SECONDS, Ended, Job, Jobs, carry_out, spread
from kernelpair.suite import Place, Suite, lines_in, saved_lines
from kernelpair.trial.check import known_trials
from kernelpair.trial.truths import Truths

EXAMPLES = 200  # for each pair and tier where nothing else is asked for,
SECONDS = 45.0  # and at most this long in all: a check without options ends within a minute
PILOT = 30  # cases that measure the cost of each pair and tier before --total is spread
ALIKE = 3  # skips for one reason that get a line each; more of them share one


def check(options: argparse.Namespace) -> int:
    """Run the trials and report; the exit status is that of the worst thing that happened."""
    place, suite = select_suite(options, built=True)
    pairs, broken = select_loaded(suite, options.pairs)
    _refuse_trial(options.trial, pairs)
    run = CheckRun(options, place, suite, pairs, broken)
    interrupted = False
    started = time.monotonic()
    with until_interrupted():  # what is known is told in full, however long that takes
        try:
            with until_interrupted(INTERRUPT_SECONDS if options.in_process else None) as stopped:
                options.begun = True
                run.carry_out(stopped)
        except KeyboardInterrupt:
            interrupted = True
        return run.conclude(time.monotonic() - started, interrupted)


def _refuse_trial(trial: str | None, pairs: list[Pair]) -> None:
    """Raises UsageError for a trial that none of the pairs has."""
    known = {name for pair in pairs for name in known_trials(pair)}
    if trial and trial not in known:
        raise UsageError(unknown("trial", trial, sorted(known)))


def _known(path: str | None) -> tuple[Known, ...]:
    try:
        return ledger(Path(path)) if path else ()
    except LedgerError as error:
        raise UsageError(f"--known: {error}") from None


class CheckRun:
    """One `kernelpair check`."""

    def __init__(
        self, options: argparse.Namespace, place: Place, suite: Suite, pairs: list[Pair], broken: Mapping[str, str]
    ) -> None:
        self.options, self.suite, self.resolve = options, suite, Subjects(place)
        self.console = Console(highlight=False)
        self.seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
        self.pairs = {pair.name: pair for pair in pairs}
        self.jobs: list[Job] = []
        self.results: list[PairResult] = []
        self.errors: list[Ended] = []
        self.progress: Progress | None = None
        cpu = select_cpu(suite, options)
        self.provider = provider = select_provider(suite, options.provider, options.tier) if options.provider else None
        self.known = _known(options.known)
        tiers = [] if provider else select_tiers(suite, options.tier)
        for pair in pairs:
            for candidate, reason in provided(provider, pair, cpu) if provider else select_candidates(suite, pair, tiers):
                self._plan(pair, candidate, reason)
        for name, says in broken.items():
            self._ended(Ended(Job(name, ""), error=says))
        self._longest = max(map(len, [*self.pairs, *broken]), default=0)

    def _plan(self, pair: Pair, candidate: str, reason: str) -> None:
        trial = self.options.trial
        if not reason and trial and trial not in known_trials(pair):
            reason = f"this pair has no trial {trial}"
        elif not reason and trial and not self.resolve(pair.name, candidate).asked_for(trial):
            reason = f"this candidate is not asked for {trial}"
        if reason:
            self.results.append(PairResult(pair.name, candidate, "skip", reason))
        else:
            foreign = bool(self.options.provider)
            known = tuple((entry.group, entry.case, entry.ratio) for entry in self.known if entry.pair == pair.name)
            saved = lines_in(self.provider.saved(pair.name)) if self.provider else saved_lines(self.suite, pair.name)
            several = foreign or bool(known)
            self.jobs.append(Job(pair.name, candidate, None, None, self.seed, trial, saved, several, known, explain=True))

    def carry_out(self, stopped: Callable[[], bool]) -> None:
        """Run all jobs, one a core or one after another in this process. KeyboardInterrupt once `stopped` says so."""
        many = count(len(self.jobs), "trial")
        self.console.print(f"seed {self.seed}; {many}, {len(self.results)} skipped", style="dim")
        self._print_skipped()
        if self.options.in_process:
            self._one_after_another(stopped)
            return
        processes = min(len(os.sched_getaffinity(0)), max(len(self.jobs), 1))
        leader = Jobs(self.resolve, self.suite.preload, processes)
        try:
            with Progress(self.console, len(self.jobs), self._seconds()) as self.progress:
                jobs = self._spread(leader, stopped) if self.options.total else self._counted()
                leader.run(jobs, self._progress, self.progress.alone(self._ended), self._seconds(), stopped)
        finally:
            self.progress = None
            leader.close()

    def _one_after_another(self, stopped: Callable[[], bool]) -> None:
        torch.set_num_threads(1)
        jobs, seconds, truths = self._counted(), self._seconds(), Truths()
        for job in jobs:
            if seconds is not None:
                job = replace(job, seconds=seconds / len(jobs))
            ended = Ended(job)
            try:
                if not stopped():
                    carry_out(job, self.resolve, self.suite.preload, True, lambda tally: None, stopped, ended, truths=truths)
            finally:
                ended.cut_short = stopped()
                ended.tally.settle()
                if ended.tally.cases or not stopped():
                    self._ended(ended)
        if stopped():
            raise KeyboardInterrupt

    def _counted(self) -> list[Job]:
        """The jobs with their number of cases; none where only the time counts."""
        options = self.options
        examples = options.examples or (EXAMPLES if options.seconds is None else None)
        return [replace(job, examples=examples) for job in self.jobs]

    def _seconds(self) -> float | None:
        """How long all jobs may take together."""
        options = self.options
        unlimited = options.seconds is None and (options.examples or options.total)
        return None if unlimited else options.seconds or SECONDS

    def _spread(self, leader: Jobs, stopped: Callable[[], bool]) -> list[Job]:
        """Measure what a case costs, then share out the total."""
        pilots: dict[tuple[str, str], Ended] = {}
        size = min(PILOT, max(1, self.options.total // max(len(self.jobs), 1)))
        jobs = [replace(job, examples=size) for job in self.jobs]
        try:
            leader.run(jobs, self._progress, lambda ended: pilots.update({ended.job.key: ended}), stopped=stopped)
        except KeyboardInterrupt:
            for ended in pilots.values():
                self._ended(ended)
            raise
        rest = []
        for job in self.jobs:
            ended = pilots[job.key]
            if ended.error or not ended.tally.passed:
                self._ended(ended)
            else:
                rest.append(job)
        # The pilot's cases are drawn again by the jobs themselves (same seed), so each share is counted in full.
        costs = [pilots[job.key].tally.seconds / max(pilots[job.key].tally.cases, 1) for job in rest]
        return spread(rest, costs, max(self.options.total, len(rest))) if rest else []

    def _progress(self, job: Job, cases: int, seconds: float) -> None:
        if self.progress is not None:
            self.progress.update((job.pair, shown(job.candidate)), cases, seconds, job.examples)

    def _ended(self, ended: Ended) -> None:
        if says := unfinished(ended.error):
            failure = FailureReport("unfinished", "", f"kernelpair check {ended.job.pair}", says)
            self.results.append(PairResult(*ended.job.key, "fail", cases=ended.tally.cases, failures=[failure]))
            self._print(self.results[-1])
            return
        if ended.error:
            fault, told_before = input_fault(ended.error), {input_fault(other.error) for other in self.errors}
            self.errors.append(ended)
            if self.progress is not None:
                self.progress.ended((ended.job.pair, shown(ended.job.candidate)), ended.tally.cases)
            who = f"{ended.job.pair} {shown(ended.job.candidate)}".rstrip()
            reason = fault or f"harness fault: {ended.error}"
            self.results.append(PairResult(*ended.job.key, "skip", reason, ended.tally.cases, fault=True))
            if not fault or fault not in told_before:  # one mistake may stop every tier
                told = fault or f"harness fault: {who}: {ended.error}"
                self.console.print(told, style="red", soft_wrap=True, markup=False)
            self._print_during(ended)
            return
        result = result_of(ended, self.pairs[ended.job.pair], self.options.suite)
        self.results.append(result)
        if self.progress is not None:
            failures = [f"{result.pair}[{result.shown}] {f.kind}: {f.detail}" for f in result.failures]
            self.progress.ended((result.pair, shown(result.candidate)), result.cases, failures)
        self._print(result)
        if result.verdict != "fail":
            self._print_during(ended)

    def _print_during(self, ended: Ended) -> None:
        if ended.during:
            again = replay_command(ended.during, ended.job.candidate, self.options.suite)
            self.console.print(f"  interrupted in the middle of a call: {again}", soft_wrap=True, markup=False)

    def _print_skipped(self) -> None:
        """A line for each skip; of many for one reason one line."""
        alike: dict[tuple[str, str], list[PairResult]] = {}
        for result in self.results:
            alike.setdefault((result.candidate, result.reason), []).append(result)
        for (candidate, reason), results in alike.items():
            if len(results) > ALIKE:
                results = [PairResult(f"{len(results)} pairs", candidate, "skip", reason)]
            for result in results:
                self._print(result)

    def _print(self, result: PairResult) -> None:
        undrawn: list[str] = []
        if self.options.verbose and result.verdict != "skip" and not self.options.trial:
            undrawn = [name for name in known_trials(self.pairs[result.pair]) if name not in result.trials]
        print_line(self.console, result, undrawn, self._longest, verbose=self.options.verbose)

    def conclude(self, seconds: float, interrupted: bool) -> int:
        """Print failures and the summary, write the files, and choose the exit status."""
        if interrupted:
            reached = {(result.pair, result.candidate) for result in self.results}
            rest = [job.key for job in self.jobs if job.key not in reached]
            self.results += [PairResult(*key, "skip", "interrupted before it began") for key in rest]
        options = self.options
        thin = "" if options.examples or options.seconds or options.total or options.trial else words.thin(self.results)
        steps = words.next_steps(self.results, options.html, interrupted, bool(self.errors), bool(thin))
        conclusion = Conclusion(
            self.console, self.suite, self.resolve, self.results, self.known,
            ledger=options.known or "", verbose=options.verbose, interrupted=interrupted,
        )  # fmt: skip
        conclusion.show(steps, thin)
        counts = {verdict: sum(result.verdict == verdict for result in self.results) for verdict in COLOURS}
        cases = sum(result.cases for result in self.results)
        tally = f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"
        stopped = "interrupted: " if interrupted else ""
        self.console.print(f"{stopped}{tally}; {count(cases, 'case')} in {seconds:.1f} s, seed {self.seed}", soft_wrap=True)
        unwritten = self._write_files(seconds, interrupted, steps)
        if interrupted:
            return EXIT_INTERRUPTED
        if counts["fail"]:
            return EXIT_FAILED
        if unwritten or not all(input_fault(ended.error) for ended in self.errors):
            return EXIT_HARNESS
        if self.errors:
            return EXIT_USAGE
        if not cases:
            self.console.print("nothing was tested", style="red")
            return EXIT_NOTHING
        return EXIT_OK

    def _write_files(self, seconds: float, interrupted: bool, steps: list[str]) -> bool:
        """Write every file that was asked for, and the history. Says which cannot be written; returns whether there is one."""
        history = History.usual(self.suite.root)
        if history is not None and any(result.cases for result in self.results):
            history.append("check", self.results)
        options, facts = self.options, environment() | {"seed": self.seed, "interrupted": interrupted}
        unwritten = False
        for path, write in (
            (options.json, lambda: write_json(Path(options.json), self.results, facts)),
            (options.junit, lambda: write_junit(Path(options.junit), self.results, facts)),
            (options.html, lambda: self._write_page(seconds, interrupted, steps, history)),
        ):
            try:
                if path:
                    write()
            except WriteError as error:
                unwritten = True
                self.console.print(str(error), style="red", soft_wrap=True, markup=False)
        return unwritten

    def _write_page(self, seconds: float, interrupted: bool, steps: list[str], history: History | None) -> None:
        sentence = words.proven(self.results, interrupted)
        missing = words.not_tried(self.results).removeprefix("Not tried: ")
        facts = [("not tried", missing)] if missing else []
        facts += [("seed", str(self.seed)), ("time", f"{seconds:.1f} s")]
        good = not interrupted and not self.errors and all(result.verdict != "fail" for result in self.results)
        series = page.histories(self.console, history, self.results)
        how = page.again(self.suite, self.resolve)
        make = partial(
            page.page_of, "check", sentence, self.results, how, good=good, facts=facts, histories=series, next_steps=steps
        )
        try:
            with handled_by(interrupt):
                made = make(most=0) if interrupted else make()
        except KeyboardInterrupt:
            made = make(most=0)  # without the failures run again, which takes time
        page.write(self.console, self.options.html, made)
