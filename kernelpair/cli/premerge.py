"""`kernelpair premerge`: is this change fit to be merged? What it touches is tried first and longest, in about a minute."""

import argparse
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from kernelpair.changes import Affected, Needs, RevisionError, affected, base_revision, changed_files, is_new
from kernelpair.cli.main import EXIT_FAILED, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK, UsageError
from kernelpair.cli.pages import premerge_page
from kernelpair.cli.select import select_candidates, select_suite
from kernelpair.contract.candidate import Candidate
from kernelpair.environment import environment
from kernelpair.names import count
from kernelpair.providers.subjects import Subjects
from kernelpair.report.files import write_whole
from kernelpair.report.history import History
from kernelpair.report.lines import PairResult, result_of, write_junit
from kernelpair.report.live import Progress
from kernelpair.report.steps import Steps
from kernelpair.search.jobs import STATE, Ended, Job, Jobs
from kernelpair.search.operators import called
from kernelpair.sources import BuildError
from kernelpair.suite import Place, Suite, loaded, saved_lines, usual_candidate
from kernelpair.timing.compare import NewError, Ratio, compare
from kernelpair.timing.counting import Count, compare_counts, counted_rows
from kernelpair.timing.load import Load, look

FOR_AFFECTED = 0.75  # share of the budget for the pairs that the change touches
START_SECONDS = 1.0  # for the worker of a trial
LEAST_SECONDS = 2.5  # of a trial with its worker's start, so that it can find anything
BENCH_SECONDS = 1.5  # for each affected kernel
MOST_BENCHES = 4
FEW = 3  # files that are named as the reason for a pair
ASKING = (
    "asking {} which operators they call, for which of them a compiled file serves is seen in runs alone: some minutes the first "
    "time; later those whose Python files have changed"
)
HEADINGS = {
    EXIT_OK: "pass",
    EXIT_FAILED: "fail",
    EXIT_HARNESS: "harness fault",
    EXIT_INTERRUPTED: "interrupted",
    EXIT_NOTHING: "nothing was tested",
}


@dataclass
class Premerge:
    """Everything that the summary says."""

    base: str
    files: list[str]
    touched: Affected = field(default_factory=Affected)
    results: list[PairResult] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    """Kernels that the base does not have."""
    load: Load | None = None
    """What else the machine did before speeds were compared."""
    notes: list[str] = field(default_factory=list)
    uncompared: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What could not be compared with the base and why, and of which kernels."""
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def failed(self) -> list[PairResult]:
        return [result for result in self.results if result.verdict == "fail"]

    @property
    def remarks(self) -> list[str]:
        return [*self.notes, *(f"{', '.join(names)}: {why}" for why, names in self.uncompared.items())]

    @property
    def busy(self) -> bool:
        """Whether other processes had so much of the machine that times say little."""
        return self.load is not None and self.load.busy

    @property
    def slower(self) -> list[Ratio]:
        return [ratio for ratio in self.ratios if ratio.slower]

    def verdict(self, ratio: Ratio) -> str:
        """What is said of a row's speed; beside other work the same code may take a third longer than itself."""
        return ("slower" if ratio.slower else "no slower") + (", beside other work" if self.busy else "")

    @property
    def raised(self) -> list[Count]:
        return [count for count in self.counts if count.raised]


def premerge(options: argparse.Namespace) -> int:
    """Try what changed, compare its speed with the base, and say so; the exit status is that of `check`."""
    place, suite = select_suite(options, built=True)
    try:
        base = base_revision(suite.root, options.base)
    except RevisionError as error:
        raise UsageError(f"--base: {error}") from None
    started, console = time.monotonic(), Console(highlight=False)
    run = Premerge(base, changed_files(suite.root, base))
    try:
        run.touched = affected(suite, run.files, _needs(run, place, console))
        changed = f"{count(len(run.files), 'file')} changed"
        console.print(f"against {base[:10]}: {changed}; affected: {', '.join(run.touched.tiers) or 'no pair'}")
        _trials(run, options, place, console)
        _benches(run, place, console)
        _counts(run, place, console)
    except KeyboardInterrupt:
        run.interrupted = True
    run.seconds = time.monotonic() - started
    lines = summary(run)
    console.print("\n".join(lines), soft_wrap=True, markup=False)
    if options.markdown:
        write_whole(Path(options.markdown), markdown(run, options.fail_on_slowdown))
    if options.junit:
        pairs = [(error.partition(": ")[0], error) for error in run.errors]
        faults = [PairResult(pair, "", "skip", f"harness fault: {error}", fault=True) for pair, error in pairs]
        facts = environment() | {"notes": "; ".join(run.notes), "interrupted": run.interrupted}
        write_junit(Path(options.junit), [*run.results, *faults], facts)
    history = History.usual(suite.root)
    if history is not None and run.results:
        history.append("premerge", run.results)
    if options.html:
        premerge_page(console, options.html, run, suite, Subjects(place), options.fail_on_slowdown)
    if os.environ.get("GITHUB_ACTIONS"):
        print("\n".join(annotations(run, suite)))
    return _status(run, options.fail_on_slowdown)


def _needs(run: Premerge, place: Place, console: Console) -> Needs:
    """The files that each pair needs; where a compiled one has changed that the pair does not include anyway, with the sources
    of the operators that it calls."""
    suite = place.load()
    needs = Needs.of(suite)
    compiled = {suite.root / file for file in run.files if suite.sources.is_native(file)}
    asked = {name: files for name, files in needs.all.items() if not files >= compiled}
    if not asked:
        return needs
    console.print(ASKING.format(count(len(asked), "pair")), soft_wrap=True)
    with Steps(console, 0, "pairs") as steps:

        def begun(many: int) -> Callable[[str], None]:
            steps.many = many
            return steps.ended

        return Needs.of(suite, called(place, asked, begun=begun))


def _status(run: Premerge, fail_on_slowdown: bool) -> int:
    if run.interrupted:
        return EXIT_INTERRUPTED
    if run.failed or (fail_on_slowdown and (run.slower or run.raised)):
        return EXIT_FAILED
    if run.errors:
        return EXIT_HARNESS
    return EXIT_OK if any(result.cases for result in run.results) else EXIT_NOTHING


def _trials(run: Premerge, options: argparse.Namespace, place: Place, console: Console) -> None:
    """Saved cases and the example database first, in each job; then new ones for as long as the job's share lasts."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    run.notes.append(f"seed {seed}")
    first: list[Job] = []
    rest: list[Job] = []
    suite = place.load()
    pairs, broken = loaded(suite)
    run.errors += [f"{name}: {says}" for name, says in broken.items()]
    for pair in pairs.values():
        wanted = run.touched.tiers.get(pair.name)
        for name, reason in select_candidates(suite, pair, ()):
            if reason:
                continue
            job = Job(pair.name, name, seed=seed, corpus=saved_lines(suite, pair.name))
            is_own = pair.name in run.touched.own and (not wanted or name in wanted)
            (first if is_own else rest).append(job)
    random.Random(seed).shuffle(rest)
    processes = len(os.sched_getaffinity(0))
    for_first = options.seconds * processes * (FOR_AFFECTED if first else 0.0)
    for_rest = options.seconds * processes - for_first
    fit = rest[: max(1, int(for_rest / LEAST_SECONDS))]
    if len(fit) < len(rest):
        run.notes.append(f"{len(rest) - len(fit)} trials left out, chosen by the seed: the change touches no file of their own")
    jobs = [replace(job, seconds=for_first / len(first)) for job in first]
    jobs += [replace(job, seconds=for_rest / len(fit) - START_SECONDS) for job in fit]
    leader = Jobs(Subjects(place), suite.preload, processes)
    try:
        with Progress(console, len(jobs), options.seconds) as progress:
            leader.run(
                jobs,
                lambda job, cases, seconds: progress.update(job.key, cases, seconds),
                lambda ended: _ended(run, suite, ended, progress, options.suite),
            )
    finally:
        leader.close()


def _ended(run: Premerge, suite: Suite, ended: Ended, progress: Progress, spec: str | None) -> None:
    progress.ended(ended.job.key, ended.tally.cases, list(ended.tally.failures))
    if ended.error:
        run.errors.append(f"{ended.job.pair} {ended.job.candidate}: {ended.error}")
    else:
        run.results.append(result_of(ended, suite.pairs()[ended.job.pair], spec))


def _benches(run: Premerge, place: Place, console: Console) -> None:
    """The first bench row of each kernel that the change touches, against the base's, on a tier that it touches."""
    suite = place.load()
    pairs = suite.pairs()
    found = {name: timed_candidate(run, suite, name) for name in sorted(run.touched.compiled) if pairs[name].bench.rows}
    timed = [(name, candidate) for name, candidate in found.items() if candidate is not None]
    if not timed:
        return
    if len(timed) > MOST_BENCHES:
        run.notes.append(f"benches of {', '.join(name for name, _ in timed[MOST_BENCHES:])} left out")
    folder = (STATE / "base").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    run.load = look()
    with Steps(console, len(timed[:MOST_BENCHES]), "kernels compared with the base") as steps:
        for name, now in timed[:MOST_BENCHES]:
            steps.begin(name)
            try:
                then = suite.sources.at_revision(suite.root, pairs[name], now, run.base, run.files, folder / now.name)
                run.ratios.append(compare(place, name, now, then, BENCH_SECONDS))
            except NewError:
                run.new.append(name)
            except BuildError as error:
                run.uncompared[f"speed is not compared: the base does not build: {error}"].append(name)
            except RuntimeError as error:
                run.uncompared[f"speed is not compared: {error}"].append(name)


def timed_candidate(run: Premerge, suite: Suite, name: str) -> Candidate | None:
    """The candidate whose speed is compared: the usual one, or where the change cannot touch that, one that it does. None, and a
    note, where the kernel is new, or no candidate that is touched can be timed here."""
    pair = suite.pairs()[name]
    if is_new(suite, pair, run.base):
        run.new.append(name)
        return None
    touched, usual = run.touched.tiers[name], usual_candidate(suite, pair)
    if not touched or usual.name in touched:
        return usual
    here = [known for known, reason in select_candidates(suite, pair, sorted(touched), timed=True) if not reason]
    here = [known for known in here if known in touched and known not in suite.machine.untimed]
    if not here:
        run.notes.append(f"{name}: not timed: the change touches {', '.join(sorted(touched))} only, which cannot be timed here")
        return None
    return next(candidate for candidate in suite.candidates(pair) if candidate.name == here[-1])


def _counts(run: Premerge, place: Place, console: Console) -> None:
    """What the kernels that the change touches execute, where that can be seen, against the base's."""
    suite = place.load()
    pairs = [suite.pairs()[name] for name in sorted(run.touched.compiled - set(run.new))]
    counted = [(pair, now) for pair in pairs for now in suite.candidates(pair) if now.executed and counted_rows(pair)]
    with Steps(console, len(counted), "kernels whose instructions are counted") as steps:
        for pair, now in counted:
            steps.begin(pair.name)
            folder = (STATE / "base" / now.name).resolve()  # beside the sources that speeds were compared with
            try:
                then = suite.sources.at_revision(suite.root, pair, now, run.base, run.files, folder)
                run.counts += compare_counts(place, pair.name, now, then)
            except (BuildError, RuntimeError) as error:
                run.uncompared[f"instructions on {now.name} are not compared: {error}"].append(pair.name)


# --- what it says ---


def summary(run: Premerge) -> list[str]:
    """The outcome on one screen."""
    lines = []
    for result in run.failed:
        for failure in result.failures[:2]:
            lines += [f"FAIL {result.pair}[{result.candidate}] {failure.kind}: {failure.detail}", f"  {failure.replay}"]
    lines += [f"harness fault: {error}" for error in run.errors]
    lines += [run.load.says] if run.load is not None and run.busy else []
    for ratio in run.ratios:
        figures = f"time / base {ratio.median:.2f} ({ratio.low:.2f} … {ratio.high:.2f})"
        lines.append(f"{ratio.pair} {ratio.row}: {run.verdict(ratio)}, {figures}")
    lines += [f"{name}: new: the base has nothing to compare its speed with" for name in run.new]
    lines += [f"{one.pair} {one.row}: {one.says}" for one in run.raised]
    for pair in {one.pair: None for one in run.counts if not one.raised}:
        if not any(one.pair == pair for one in run.raised):
            rows = len({one.row for one in run.counts if one.pair == pair})
            lines.append(f"{pair}: executes no more instructions than the base, counted on {rows} of its bench rows")
    lines += run.remarks
    touched = [result for result in run.results if result.pair in run.touched.tiers]
    cases, own = sum(result.cases for result in run.results), sum(result.cases for result in touched)
    passed = sum(result.verdict == "pass" for result in run.results)
    stopped = "interrupted: " if run.interrupted else ""
    counts = f"{passed} passed, {len(run.failed)} failed; {count(cases, 'case')}, {own} of them on affected pairs"
    return [*lines, f"{stopped}{counts}, in {run.seconds:.0f} s"]


def markdown(run: Premerge, fail_on_slowdown: bool = False) -> str:
    """The summary as a pull request's comment; its heading says what the exit status says."""
    changed = f"Against `{run.base[:10]}`, {count(len(run.files), 'file')} changed."
    lines = [f"### kernelpair: {HEADINGS[_status(run, fail_on_slowdown)]}", "", changed, _machine()]
    if run.touched.tiers:
        lines += ["", "| affected pair | tiers | cases | verdict | because of |", "|---|---|---|---|---|"]
        for name, files in run.touched.files.items():
            own = [result for result in run.results if result.pair == name]
            verdict = "fail" if any(result.verdict == "fail" for result in own) else "pass" if own else "not tried"
            names, cases = ", ".join(result.shown for result in own), sum(result.cases for result in own)
            why = ", ".join(f"`{file}`" for file in files[:FEW]) + (f" and {len(files) - FEW} more" if len(files) > FEW else "")
            lines.append(f"| {name} | {names} | {cases} | {verdict} | {why} |")
    if run.ratios:
        lines += ["", "| bench | time / base | quartiles | |", "|---|---|---|---|"]
        for r in run.ratios:
            lines.append(f"| {r.pair} {r.row} | {r.median:.2f} | {r.low:.2f} … {r.high:.2f} | {run.verdict(r)} |")
    lines += [f"\n**{one.pair} {one.row}**: {one.says}" for one in run.raised]
    return "\n".join([*lines, "", "```", *summary(run), "```", ""])


def _machine() -> str:
    """What it ran on: a verdict on a tier is one on this CPU."""
    found = environment()
    cpu = found["cpu"] + (f" ({found['cpu_kind']})" if found["cpu_kind"] else "")
    return f"On {cpu} with {count(found['cores'], 'core')}, torch {found['torch']}."


def annotations(run: Premerge, suite: Suite) -> list[str]:
    """Workflow commands by which GitHub marks the files of a failing pair."""
    lines = []
    for result in run.failed:
        files = suite.files(suite.pairs()[result.pair])
        file = (run.touched.files.get(result.pair) or [files.get("kernel", files["properties"])])[0]
        for failure in result.failures[:2]:
            says = f"{result.pair}[{result.candidate}] {failure.kind}: {failure.detail}\n{failure.replay}"
            lines.append(f"::error file={_escaped(file, ':,')},title=kernelpair::{_escaped(says)}")
    warned = [f"{ratio.pair} {ratio.row} takes {ratio.median:.2f} times as long as before" for ratio in run.slower]
    warned += [f"{one.pair} {one.row}: {one.says}" for one in run.raised]
    return lines + [f"::warning title=kernelpair::{_escaped(says)}" for says in warned]


def _escaped(text: str, more: str = "") -> str:
    """As a workflow command holds it: what ends it, or one of its properties, in the way of an address."""
    return "".join(f"%{ord(letter):02X}" if letter in "%\r\n" + more else letter for letter in text)
