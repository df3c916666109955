"""`kernelpair replay`: saved cases again, with everything that can be said about them."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import properties
from kernelpair.candidate import Candidate
from kernelpair.case import Case, CaseError, to_line
from kernelpair.check import check, read_case
from kernelpair.cli.findings import finding_by_id
from kernelpair.cli.main import EXIT_FAILED, EXIT_OK, UsageError
from kernelpair.cli.select import PRELOAD, provided, select_candidates, select_provider, select_tiers
from kernelpair.cli.table import remarks, show_table
from kernelpair.pair import Pair
from kernelpair.picture import picture
from kernelpair.provider import Provider
from kernelpair.report import shown
from kernelpair.run import InProcess, Isolated
from kernelpair.script import write_script
from kernelpair.verdict import Failure, Verdict
from optimized._library import library_path
from properties.candidates import resolve


def replay(options: argparse.Namespace) -> int:
    """Replay each case on each tier, or with the provider, that is asked for; 1 if any fails."""
    console = Console(highlight=False)
    torch.set_num_threads(1)
    wanted = list(_lines(options))
    failed, ran = False, 0
    for line, spec in wanted:
        pair, case = _read(line)
        if options.verbose:
            console.print(picture(pair, case), soft_wrap=True, markup=False)
        if options.save:
            console.print(f"saved in {_save(pair, line)}", soft_wrap=True, markup=False)
        provider = select_provider(spec, options.tier) if spec else None
        tiers = [] if provider else select_tiers(options.tier)
        for name, reason in provided(provider, pair) if provider else select_candidates(pair, tiers):
            verdict = None
            if not reason:
                judged, subject = resolve(pair.name, name)
                verdict = _once(judged, subject, case, options.in_process)
                unsupported = verdict.unsupported and not verdict.calls
                reason = f"outside of what is documented: {verdict.unsupported}" if unsupported else ""
            if verdict is None or reason:
                says = f"{pair.name}[{shown(name)}] skipped: {reason}"
                console.print(says, style="yellow", soft_wrap=True, markup=False)
                continue
            failed |= not verdict.passed
            ran += 1
            _show(console, pair, shown(name), verdict, options.verbose)
            if verdict.table is not None and (options.verbose or not verdict.passed):
                show_table(console, verdict.table, remarks(judged, subject, [case], PRELOAD)[0])
            if options.script and ran == 1:  # of several cases the first
                _write(console, Path(options.script), judged, subject, verdict, provider)
    if not ran:
        raise UsageError("nothing was run: no candidate that was asked for has this kernel, supports the case and runs here")
    return EXIT_FAILED if failed else EXIT_OK


def _lines(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Cases given as JSON, lines of files, or ids of findings, each with the provider that it is for (or none)."""
    for argument in options.cases:
        if argument.lstrip().startswith("{"):
            yield argument, options.provider
            continue
        path = Path(argument)
        if not path.is_file():
            finding = finding_by_id(argument)
            if finding is None:
                raise UsageError(f"{argument!r} is neither a case (JSON) nor a file nor the id of a finding")
            provider = options.provider or ("" if options.tier else finding.provider)
            yield from ((case, provider) for case, _ in finding.cases)
            continue
        try:
            lines = [line for line in path.read_text().splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {argument}: {error}") from None
        if not lines:
            raise UsageError(f"{argument} holds no case")
        yield from ((line, options.provider) for line in lines)


def _save(pair: Pair, line: str) -> Path:
    """Add the case to the corpus of its pair, once. Returns the file."""
    path = properties.ROOT / "tests" / "corpus" / pair.name / "saved.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_text().splitlines() if path.is_file() else []
    case = to_line(pair.name, pair.version, _read(line)[1])
    if case not in known:
        path.write_text("\n".join([*known, case]) + "\n")
    return path


def _write(
    console: Console, path: Path, pair: Pair, subject: Candidate, verdict: Verdict, provider: Provider | None
) -> None:
    """Write the script, with the lines that load the candidate's library."""
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--script: the folder of {path} does not exist")
    load = getattr(provider.module, "SCRIPT", "") if provider else f'torch.ops.load_library("{library_path()}")'
    try:
        write_script(path, pair, subject, verdict, load or f"# load the library of {shown(subject.name)} here")
    except ValueError as error:
        raise UsageError(f"--script: {error}") from None
    console.print(f"wrote {path}", soft_wrap=True, markup=False)


def _read(line: str) -> tuple[Pair, Case]:
    try:
        return read_case(properties.pairs(), line)
    except CaseError as error:
        raise UsageError(str(error)) from None


def _once(pair: Pair, subject: Candidate, case: Case, in_process: bool) -> Verdict:
    with InProcess(subject) if in_process else Isolated(subject, preload=PRELOAD) as runner:
        return check(pair, subject, case, runner)


def _show(console: Console, pair: Pair, name: str, verdict: Verdict, verbose: bool) -> None:
    line = Text(f"{pair.name}[{name}] ")
    line.append("pass" if verdict.passed else "fail", style="green" if verdict.passed else "red")
    if verbose:
        for output, tightness in verdict.tightness.items():
            line.append(f"  {output}: largest error / bound {tightness.largest:.3g}", style="dim")
    console.print(line, soft_wrap=True)
    for failure in verdict.failures:
        console.print(f"  {failure.kind}: {failure.tensor}: {failure.detail}", soft_wrap=True, markup=False)
        if verbose and failure.differences:
            console.print(_table(failure))


def _table(failure: Failure) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("tensor", "index", "expected", "got", "bound", "ratio"):
        table.add_column(heading, justify="left" if heading == "tensor" else "right")
    for difference in failure.differences:
        numbers = (difference.expected, difference.got, difference.bound, difference.ratio)
        table.add_row(failure.tensor, str(list(difference.index)), *(f"{number:.6g}" for number in numbers))
    return table
