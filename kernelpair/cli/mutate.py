"""`kernelpair mutate`: plant known bugs in the kernels and see which trial notices them."""

import argparse
import os
import shlex
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kernelpair.cli.main import EXIT_FAILED, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.pages import MOST_MUTANTS, figures_of, mutate_page
from kernelpair.cli.select import select_candidates, select_pairs, select_suite, select_tiers
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.environment import environment
from kernelpair.mutation.candidate import MutantSubjects, host, moved_to
from kernelpair.mutation.mutant import Mutant, MutantError, mutants
from kernelpair.mutation.report import (
    EQUIVALENT,
    ERROR,
    KILLED,
    SKIPPED,
    SURVIVED,
    MutantResult,
    markdown,
    others,
    result_of,
    score,
    skipped,
    write_json,
)
from kernelpair.names import count, noun, unknown
from kernelpair.providers.subjects import Subjects
from kernelpair.report.exhibit import Again, Exhibit, exhibits
from kernelpair.report.files import write_whole
from kernelpair.report.history import History
from kernelpair.report.lines import result_of as trial_result
from kernelpair.report.steps import Steps
from kernelpair.search.jobs import STATE, Ended, Job, Jobs
from kernelpair.suite import Place, SavedLine, Suite

SHRINK_SECONDS = 2.0  # a mutant's case is to be read, not to be kept
LEAST_CASES = 100  # of an unmutated kernel, where its mutants were noticed sooner
COLOURS = {KILLED: "green", SURVIVED: "bold red", ERROR: "bold red", EQUIVALENT: "yellow", SKIPPED: "yellow"}


def mutate(options: argparse.Namespace) -> int:
    """Try the mutants, then the kernels as they are on as many cases; the exit status is that of the worst that happened."""
    place, suite = select_suite(options, built=True)
    chosen = chosen_mutants(options, suite)
    compiled = any(suite.sources.is_native(patch.file) for mutant in chosen for patch in mutant.patches)
    if compiled and (why := suite.sources.unplantable(suite.root)):
        raise UsageError(why)
    folder = (STATE / f"mutants-{os.getpid()}").resolve()
    run = MutateRun(options, place, chosen, folder)
    interrupted = False
    started = time.monotonic()
    try:
        run.carry_out()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return run.conclude(time.monotonic() - started, interrupted)


def chosen_mutants(options: argparse.Namespace, suite: Suite) -> list[Mutant]:
    """What is to be planted; UsageError for a mutant or a pair that is not known, and where nothing is left."""
    try:
        known = mutants(suite)
    except MutantError as error:
        raise UsageError(str(error)) from None
    for name in options.mutant:
        if name not in known:
            raise UsageError(unknown("mutant", name, known))
    pairs = [pair.name for pair in select_pairs(suite, options.pairs)] if options.pairs or not options.mutant else []
    named = {known[name].pair for name in options.mutant}  # of these pairs no others are meant
    chosen = [mutant for mutant in known.values() if mutant.name in options.mutant or mutant.pair in {*pairs} - named]
    instead = _instead(options, suite)
    if instead is not None:
        chosen = [moved_to(mutant, instead) for mutant in chosen if mutant.tier == instead[0]]
        if not chosen:
            raise UsageError(f"--tier: none of these mutants names {instead[0]}")
    if not chosen:
        raise UsageError(f"there is no mutant of {', '.join(pairs)}: [[mutant]] tables in mutants.toml describe some")
    return chosen


def _instead(options: argparse.Namespace, suite: Suite) -> tuple[str, str] | None:
    """The two tiers of `--tier OLD=NEW`."""
    if not options.tier:
        return None
    old, _, new = options.tier.partition("=")
    known = [tier.name for tier in suite.tiers()]
    if old not in known or new not in known:
        raise UsageError(f"--tier: {options.tier!r} must be OLD=NEW, two of {', '.join(known)}")
    select_tiers(suite, [new])  # names one that cannot run here
    return old, new


class MutateRun:
    """One `kernelpair mutate`."""

    def __init__(self, options: argparse.Namespace, place: Place, chosen: list[Mutant], folder: Path) -> None:
        self.options, self.suite = options, place.load()
        self.resolve = MutantSubjects(place, str(folder), _instead(options, self.suite))
        self.console = Console(highlight=False)
        self.mutants = {mutant.name: mutant for mutant in chosen}
        self.results: dict[str, MutantResult] = {}
        self.healthy: list[dict[str, Any]] = []
        self.drawn: list[Exhibit] = []
        self._running: dict[tuple[str, str], str] = {}
        self._live: Live | None = None
        self._steps = Steps(self.console, 0, "mutants")

    def carry_out(self) -> None:
        """Every mutant, one a core, then the unmutated kernels."""
        jobs = [job for mutant in self.mutants.values() for job in self._job(mutant)]
        many = count(len(jobs), "mutant")
        self.console.print(f"seed {self.options.seed}; {many}, at most {self.options.seconds:g} s each", style="dim")
        leader = Jobs(self.resolve, self.suite.preload, min(len(os.sched_getaffinity(0)), max(len(jobs), 1)))
        try:
            with Live(console=self.console, refresh_per_second=5, transient=True) as self._live:
                self._steps = Steps(self.console, len(jobs), "mutants")
                leader.run(jobs, self._progress, self._ended)
                unmutated = self._unmutated()
                self._steps = Steps(self.console, len(unmutated), "unmutated kernels")
                leader.run(unmutated, self._progress, self._ended_unmutated)
        finally:
            self._live = None
            leader.close()

    def _job(self, mutant: Mutant) -> list[Job]:
        """The trial of a mutant; none if it cannot be planted here, which is its result then."""
        tier = ""
        try:
            candidate, reason = host(self.suite, mutant)
            tier = mutant.tier or candidate.name
            mutant.patched(self.suite.root)  # now, not after an hour of others
        except MutantError as error:
            ended = Ended(Job(mutant.pair, mutant.name), error=str(error))
            self._add(result_of(mutant, tier, ended, self.suite.pairs()[mutant.pair]))
            return []
        if reason:
            self._add(skipped(mutant, tier, reason))
            return []
        limits = {"seconds": self.options.seconds, "seed": self.options.seed, "shrink_seconds": SHRINK_SECONDS}
        return [Job(mutant.pair, mutant.name, trial=mutant.relation, remember=False, **limits)]

    def _unmutated(self) -> list[Job]:
        """Each kernel and tier that had a mutant: on the cases by which its mutants were noticed, then on as many as its
        hardest one took, drawn in the same way."""
        cases: dict[tuple[str, str, str | None], int] = defaultdict(lambda: LEAST_CASES)
        noticed: dict[tuple[str, str, str | None], list[str]] = defaultdict(list)
        for name, result in self.results.items():
            if result.verdict in (KILLED, SURVIVED):
                candidate, _ = host(self.suite, self.mutants[name])
                key = result.pair, candidate.name, self.mutants[name].relation
                cases[key] = max(cases[key], result.cases)
                if result.case:
                    noticed[key].append(result.case)
        seed = self.options.seed
        return [
            Job(*key[:2], examples=count, seed=seed, trial=key[2], corpus=tuple(map(SavedLine, noticed[key])), remember=False)
            for key, count in cases.items()
        ]

    def _progress(self, job: Job, cases: int, seconds: float) -> None:
        self._running[job.key] = f"{job.candidate:40} {cases:>6} {noun(cases)}  {seconds:5.1f} s  …"
        if self._live is not None:
            self._live.update(Text("\n".join([*self._running.values(), self._steps.says()]), style="dim"))

    def _ended(self, ended: Ended) -> None:
        self._running.pop(ended.job.key, None)
        self._steps.ended(ended.job.candidate)
        mutant = self.mutants[ended.job.candidate]
        if ended.cut_short and not ended.tally.failures:
            return  # more cases might have noticed it
        if self.options.html and ended.candidate is not None and len(self.drawn) < MOST_MUTANTS:
            self._draw(mutant, ended, ended.candidate)
        shutil.rmtree(self.resolve.folder_of(mutant), ignore_errors=True)
        tier = mutant.tier or host(self.suite, mutant)[0].name
        self._add(result_of(mutant, tier, ended, self.suite.pairs()[mutant.pair]))

    def _draw(self, mutant: Mutant, ended: Ended, candidate: Candidate) -> None:
        """How the bug looks, while its build is still there."""
        pair = self.suite.pairs()[mutant.pair]
        planted = Subject(pair, candidate)
        healthy = Subjects(self.resolve.place)

        def resolve(name: str, which: str) -> Subject:
            return planted if which == mutant.name else healthy(name, which)

        how = Again(resolve, self.suite.preload, lambda pair: select_candidates(self.suite, pair, ()))
        made, _ = exhibits([trial_result(ended, pair)], how, 1)
        suite = ["--suite", self.options.suite] if self.options.suite else []
        again = ["kernelpair", "mutate", *suite, "--mutant", mutant.name, "--seed", str(self.options.seed), "-v"]
        for exhibit in made:
            exhibit.title = f"{mutant.name}: {mutant.says}"
            for report in exhibit.reports:
                report.replay = shlex.join(again)  # a mutant is built for the time of its trial
        self.drawn += made

    def _add(self, result: MutantResult) -> None:
        self.results[result.mutant] = result
        line = Text(f"{result.mutant:48} ")
        line.append(f"{result.verdict:10}", style=COLOURS[result.verdict])
        if result.verdict == KILLED:
            line.append(f" {result.cases:>6} {noun(result.cases)} {result.seconds:6.1f} s  {result.noticed}")
            line.append("".join(f"  {name} {count}" for name, count in result.sizes.items()), style="dim")
        else:
            line.append(f" {result.cases:>6} {noun(result.cases)} {result.seconds:6.1f} s  {result.reason}", style="dim")
        self.console.print(line, soft_wrap=True)
        if result.case and self.options.verbose:
            self.console.print(f"    {result.case}", style="dim", soft_wrap=True, markup=False)

    def _ended_unmutated(self, ended: Ended) -> None:
        self._running.pop(ended.job.key, None)
        self._steps.ended(ended.job.candidate)
        tally = ended.tally
        failures = [failure for verdict in tally.failures.values() for failure in verdict.failures]
        self.healthy.append(
            {
                "pair": ended.job.pair,
                "tier": ended.job.candidate,
                "cases": tally.cases,
                "passed": not ended.error and not failures,
                "why": ended.error or "; ".join(f"{failure.kind}: {failure.detail}" for failure in failures),
                "lines": [verdict.line for verdict in tally.failures.values()],
            }
        )

    def conclude(self, seconds: float, interrupted: bool) -> int:
        """Print survivors, what was wrong with unmutated kernels and the score, write the files, choose the exit status."""
        results = [self.results[name] for name in self.mutants if name in self.results]
        alarms = [entry for entry in self.healthy if not entry["passed"]]
        self._print_table(results)
        self._print_what_is_wrong(results, alarms)
        cases = sum(entry["cases"] for entry in self.healthy)
        untried = len(self.mutants) - len(results)
        stopped = f"interrupted, {count(untried, 'mutant')} not tried: " if interrupted else ""
        unmutated = f"unmutated kernels: {len(self.healthy) - len(alarms)} passed, {len(alarms)} failed on {count(cases, 'case')}"
        self.console.print(f"{stopped}{score(results)}", soft_wrap=True)
        self.console.print(f"{unmutated}; {seconds:.1f} s in all, seed {self.options.seed}", soft_wrap=True)
        if self.options.json:
            facts = environment() | {"seed": self.options.seed, "interrupted": interrupted}
            write_json(Path(self.options.json), results, self.healthy, facts)
        if self.options.markdown:
            text = markdown(results, self.options.seed, self.options.seconds, environment(), stopped)
            write_whole(Path(self.options.markdown), text)
        history = History.usual(self.suite.root)
        if history is not None and not interrupted:
            history.append("mutate", [], figures_of(results))
        status = EXIT_INTERRUPTED if interrupted else self._status(results, bool(alarms))
        if self.options.html:
            sentence, good = f"{stopped}{score(results)}.", status == EXIT_OK
            mutate_page(self.console, self.options.html, sentence, results, self.drawn, len(alarms), self.options.seed, good)
        return status

    def _status(self, results: list[MutantResult], alarms: bool) -> int:
        verdicts = {result.verdict for result in results}
        if SURVIVED in verdicts or alarms or any(result.large for result in results):
            return EXIT_FAILED
        if ERROR in verdicts:
            return EXIT_HARNESS
        return EXIT_OK if KILLED in verdicts else EXIT_NOTHING

    def _print_what_is_wrong(self, results: list[MutantResult], alarms: list[dict[str, Any]]) -> None:
        for verdict, says in ((SURVIVED, "nothing noticed it"), (ERROR, "it could not be tried")):
            for result in results:
                if result.verdict == verdict:
                    head = Text(f"{verdict.upper()} ", style="bold red").append(f"{result.mutant}: {says}", style="default")
                    self.console.print(head, soft_wrap=True)
                    self.console.print(f"  {result.says}  {result.reason}", soft_wrap=True, markup=False)
        for result in results:
            if result.large:
                head = Text("NOT SMALL ", style="bold red")
                head.append(f"{result.mutant}: the smallest case that was found has {result.large}", style="default")
                self.console.print(head, soft_wrap=True)
                self.console.print(f"  {result.case}", soft_wrap=True, markup=False)
        for entry in alarms:
            head = Text("FALSE ALARM ", style="bold red")
            head.append(f"{entry['pair']}[{entry['tier']}] {entry['why']}", style="default")
            self.console.print(head, soft_wrap=True)
            for line in entry["lines"]:
                self.console.print(f"  kernelpair replay '{line}' --tier {entry['tier']}", soft_wrap=True, markup=False)

    def _print_table(self, results: list[MutantResult]) -> None:
        """One line a pair: how many of its mutants were killed, and how long the median and the hardest one took."""
        self.console.print()
        for pair in dict.fromkeys(result.pair for result in results):
            own = [result for result in results if result.pair == pair]
            self.console.print(f"{pair:26} {score(own)}{others(own)}", soft_wrap=True)
        self.console.print()
