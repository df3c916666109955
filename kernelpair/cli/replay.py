"""`kernelpair replay`: saved cases again, with everything that can be said about them."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelpair.call.runner import InProcess, Isolated
from kernelpair.call.system import limited_memory, printable
from kernelpair.cli.case_lines import Given, lines_of, read
from kernelpair.cli.findings import unseen
from kernelpair.cli.main import EXIT_FAILED, EXIT_OK, UsageError
from kernelpair.cli.select import (
    provided,
    select_candidates,
    select_cpu,
    select_provider,
    select_suite,
    select_tiers,
)
from kernelpair.cli.table import remarks, show_table
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.providers.bug_script import write_script
from kernelpair.providers.provider import Provider
from kernelpair.providers.subjects import Subjects
from kernelpair.report.files import add_line
from kernelpair.report.lines import replay_command, shown
from kernelpair.report.picture import picture
from kernelpair.report.plane import Plane, drawn_in_text
from kernelpair.report.recorder import Recorder
from kernelpair.suite import Suite
from kernelpair.trial.check import check

PRINTED_LINES = {False: 10, True: 200}
"""Of what a kernel printed, how many are shown, without -v and with it."""


def replay(options: argparse.Namespace) -> int:
    """Replay each case on each tier, or with the provider, that is asked for; 1 if any fails."""
    if options.guards and not options.in_process:
        raise UsageError("--guards needs --in-process: in a worker the pages around buffers always fault")
    with nullcontext() if options.in_process else limited_memory():  # in this process the kernel takes its own, too
        return _replayed(options)


def _replayed(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    torch.set_num_threads(1)
    place, suite = select_suite(options, built=True)
    asked = select_cpu(suite, options)
    # A wrong line is told before any other runs.
    wanted = [(given.line, spec, cpu, *read(suite, given.line, given.place)) for given, spec, cpu in _lines(options, suite)]
    failed, ran = False, 0
    for line, spec, its_own, pair, case in wanted:
        cpu = asked or its_own
        if cpu and options.script:
            raise UsageError("--script does not go with --cpu: a script runs on the CPU that there is")
        fails_here = False
        if options.verbose:
            console.print(picture(pair, case), soft_wrap=True, markup=False)
        provider = select_provider(suite, spec, options.tier) if spec else None
        tiers = [] if provider else select_tiers(suite, options.tier)
        for name, reason in provided(provider, pair, cpu) if provider else select_candidates(suite, pair, tiers):
            verdict = None
            if not reason:
                subject = Subjects(place)(pair.name, name)
                verdict, planes, printed = _once(subject, case, options, suite.preload)
                unsupported = verdict.unsupported and not verdict.calls
                reason = f"outside of the documented limits: {verdict.unsupported}" if unsupported else ""
            if verdict is None or reason:
                says = f"{pair.name}[{shown(name)}] skipped: {reason}"
                console.print(says, style="yellow", soft_wrap=True, markup=False)
                continue
            fails_here |= not verdict.passed
            ran += 1
            _show(console, pair, shown(name, subject.candidate.run_as), verdict, options.verbose)
            _show_printed(console, printed, PRINTED_LINES[options.verbose])
            if options.verbose:
                for plane in planes:
                    console.print(drawn_in_text(plane), soft_wrap=True, markup=False)
            if verdict.table is not None and (options.verbose or not verdict.passed):
                show_table(console, verdict.table, remarks(subject, [case], suite.preload)[0])
            if not verdict.passed:
                again = replay_command(verdict.line, name, options.suite)
                console.print(f"  {again}{'' if options.verbose else ' -v'}", soft_wrap=True, markup=False)
            if options.script and ran == 1:  # of several cases the first
                _write(console, Path(options.script), subject, verdict, _load_line(suite, provider, name))
        if fails_here or options.save_passing:
            _save(console, suite, pair, line, options, provider)
        elif options.save:
            raise UsageError(f"--save: no candidate fails on {line}; --save-passing keeps it all the same")
        failed |= fails_here
    if not ran:
        raise UsageError("nothing was run: no candidate that was asked for has this kernel, supports the case and runs here")
    return EXIT_FAILED if failed else EXIT_OK


def _lines(options: argparse.Namespace, suite: Suite) -> Iterator[tuple[Given, str, str]]:
    """Cases given as JSON, lines of files, or ids of findings, each with the provider and the CPU that it is for (or none)."""
    for argument in options.cases:
        for given in lines_of(suite, argument):
            finding = given.finding
            if finding is None:
                yield given, options.provider, ""
                continue
            provider = options.provider or ("" if options.tier else finding.provider)
            if provider and (why_not := unseen(suite, finding)):
                raise UsageError(f"{finding.id} does not show here: {why_not}")
            yield given, provider, finding.cpu if provider else ""


def _save(
    console: Console, suite: Suite, pair: Pair, line: str, options: argparse.Namespace, provider: Provider | None
) -> None:
    """Add the case to the corpus of its pair, or to the provider's own, once, if that was asked for."""
    if not (options.save or options.save_passing):
        return
    path = provider.saved(pair.name) if provider else suite.saved(pair.name)
    add_line(path, pair.line(read(suite, line)[1]))
    console.print(f"saved in {path}", soft_wrap=True, markup=False)


def _load_line(suite: Suite, provider: Provider | None, name: str) -> str:
    """The lines of a script that load the candidate's library."""
    load = str(getattr(provider.module, "SCRIPT", "")) if provider else suite.script
    return load or f"# load the library of {shown(name)} here"


def _write(console: Console, path: Path, subject: Subject, verdict: Verdict, load: str) -> None:
    """Write the script, which begins with the lines `load`."""
    try:
        write_script(path, subject.pair, subject.candidate, verdict, load)
    except ValueError as error:
        raise UsageError(f"--script: {error}") from None
    console.print(f"wrote {path}", soft_wrap=True, markup=False)


def _once(
    subject: Subject, case: Case, options: argparse.Namespace, preload: Sequence[str]
) -> tuple[Verdict, list[Plane], str]:
    """The verdict, the outputs that are wrong as planes, and what the kernel printed."""
    kept: list[Recorder] = []

    def recorder(*arguments: Any) -> Recorder:
        kept.append(Recorder(*arguments))
        return kept[-1]

    here = InProcess(subject.candidate, guards=options.guards) if options.in_process else None
    with here or Isolated(subject.candidate, preload=preload) as runner:
        verdict = check(subject, case, runner, session_type=recorder)
        printed = runner.printed()
    return verdict, [plane for plane in kept[0].planes.values() if plane.wrong], printed


def _show(console: Console, pair: Pair, name: str, verdict: Verdict, verbose: bool) -> None:
    line = Text(f"{pair.name}[{name}] ")
    line.append("pass" if verdict.passed else "fail", style="green" if verdict.passed else "red")
    if verbose:
        for output, tightness in verdict.tightness.items():
            line.append(f"  {output}: largest error / bound {tightness.largest:.3g}", style="dim")
    console.print(line, soft_wrap=True)
    for failure in verdict.failures:
        console.print(f"  {failure}", soft_wrap=True, markup=False)
        if verbose and failure.differences:
            console.print(_table(failure))


def _show_printed(console: Console, printed: str, most: int) -> None:
    """The last `most` lines of what the kernel printed in the calls of the case."""
    lines = printed.splitlines()
    if not lines:
        return
    several = "" if len(lines) <= most else f" (the last {most} of {len(lines)} lines)"
    console.print(f"  printed{several}:", soft_wrap=True)
    for line in lines[-most:]:
        console.print(f"    {printable(line)}", soft_wrap=True, markup=False)


def _table(failure: Failure) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("tensor", "index", "expected", "got", "bound", "ratio"):
        table.add_column(heading, justify="left" if heading == "tensor" else "right")
    for each in failure.differences:
        table.add_row(failure.tensor, str(list(each.index)), *each.told(), f"{each.bound:.6g}", f"{each.ratio:.6g}")
    return table
