"""What a check says at its end: what was proven, each failure and how to see it again, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from kernelpair.cli.table import remarks, show_table
from kernelpair.names import count
from kernelpair.providers.ledger import Known
from kernelpair.report import words
from kernelpair.report.lines import PairResult, command_for_pytest
from kernelpair.suite import Resolve, Suite
from kernelpair.trial.check import read_case


def _seen(result: PairResult, group: str) -> str:
    """How many cases were a group's, and how far off."""
    cases, worst = result.groups.get(group, (0, None))
    far = f", up to {worst:.3g} times the bound" if worst else ""
    return f" ({count(cases, 'case')}{far})" if cases else ""


@dataclass
class Conclusion:
    """What there is to say, and where."""

    console: Console
    suite: Suite
    resolve: Resolve
    results: Sequence[PairResult]
    known: Sequence[Known]
    """The entries of the ledger,"""
    ledger: str
    """which is this file."""
    verbose: bool
    interrupted: bool

    def show(self, steps: Sequence[str], thin: str) -> None:
        """What was proven in one sentence, the failures with the shortest case first, and what to do next."""
        order = {id(result): place for place, result in enumerate(words.shortest_first(self.results))}
        self.console.print()
        self.console.print(words.proven(self.results, self.interrupted), style="bold", soft_wrap=True, markup=False)
        missing = words.not_tried(self.results)
        if missing:
            self.console.print(missing, style="dim", soft_wrap=True, markup=False)
        if thin:
            self.console.print(thin, style="yellow", soft_wrap=True, markup=False)
        for result in sorted(self.results, key=lambda result: order.get(id(result), len(order))):
            if result.verdict == "fail":
                self._print_failure(result)
            self._print_known(result)
            if result.verdict == "fail" or (result.verdict == "pass" and self.verbose):
                self._print_tables(result)
        for number, step in enumerate(steps):
            self.console.print(f"{'Next: ' if not number else '      '}{step}", soft_wrap=True, markup=False)

    def _print_failure(self, result: PairResult) -> None:
        """One line a failure, then how to see it again."""
        self.console.print()
        command = group = ""
        for failure in result.failures:
            if failure.group and failure.group != group:
                group = failure.group
                self.console.print(f"group {group}{_seen(result, group)}", soft_wrap=True, markup=False)
            head = Text("FAIL ", style="bold red")
            head.append(f"{result.pair}[{result.shown}] {failure.kind}: {failure.detail}", style="default")
            self.console.print(head, soft_wrap=True)
            if failure.replay and failure.replay != command:
                command = failure.replay
                self.console.print(f"  {failure.replay}", soft_wrap=True, markup=False)
                for says in failure.shared.splitlines():
                    self.console.print(f"  {says}", soft_wrap=True, markup=False)
        test = command_for_pytest(self.suite.test, result.pair, result.candidate)
        if test:
            self.console.print(f"  {test}", soft_wrap=True, markup=False)

    def _print_tables(self, result: PairResult) -> None:
        """Place by place, where the pair's judge goes through several; after Ctrl-C without what takes another run."""
        if not result.tables:
            return
        subject = self.resolve(result.pair, result.candidate)
        cases = [read_case({result.pair: subject.pair}, table.line)[1] for table in result.tables]
        feet = [""] * len(cases) if self.interrupted else remarks(subject, cases, self.suite.preload)
        self.console.print(f"\n{result.pair}[{result.shown}] layer by layer", soft_wrap=True, markup=False)
        for table, foot in zip(result.tables, feet):
            show_table(self.console, table, foot)

    def _print_known(self, result: PairResult) -> None:
        """What the ledger says about this kernel: still so, or no longer."""
        for group in result.known:
            entry = next(entry for entry in self.known if (entry.pair, entry.group) == (result.pair, group))
            says = f"known: {result.pair} {group}{_seen(result, group)}: {entry.reason} {entry.link}".rstrip()
            self.console.print(says, soft_wrap=True, markup=False)
        for output, (cases, worst, line) in result.gaps.items():
            far = f"{worst:.3g} times the contract's bound in {count(cases, 'case')}"
            says = f"gap: {result.pair} {output}: {result.rounding}: {far}; {line}"
            self.console.print(says, soft_wrap=True, markup=False)
        for group in result.mended:
            says = f"no longer fails: {result.pair} {group}: take the entry out of {self.ledger}"
            self.console.print(says, style="yellow", soft_wrap=True, markup=False)
