"""What `kernelpair check` prints of one pair and candidate as soon as it is through."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kernelpair.contract.case import WRONG_CALL
from kernelpair.names import noun
from kernelpair.report.lines import PairResult, histogram, instructions
from kernelpair.search.tally import LEAST

NAME = 24  # characters of a pair's name for which there is room in any case
COLOURS = {"pass": "green", "fail": "red", "skip": "yellow"}


def print_line(console: Console, result: PairResult, undrawn: Sequence[str], longest: int = 0, *, verbose: bool) -> None:
    """The line of a result; with `verbose` what it covered too, and the trials that were never drawn. `longest`: characters of
    the longest name of a pair in this run."""
    line = Text(f"{result.pair:{max(longest, NAME)}} {result.shown:13} ")
    if result.cases or result.verdict != "skip":  # a skip has but a reason, which shall fit into 80 columns
        speed = f"{result.cases / result.seconds:5.0f}/s" if result.seconds else "     - "
        line.append(f"{result.cases:>7} {noun(result.cases)}  {speed}  ")
    line.append(result.verdict, style=COLOURS[result.verdict])
    if result.reason:
        line.append(f"  {result.reason}", style="dim")
    for path, count in instructions(result.executed).items():
        line.append(f"  {count:,} {path} instructions", style="dim")
    if result.unsupported:
        limits = "" if result.cases else ": " + ", ".join(f"{limit} ({count})" for limit, count in result.unsupported.items())
        line.append(f"  {sum(result.unsupported.values())} drawn outside of documented limits{limits}", style="dim")
    console.print(line, soft_wrap=True)
    if verbose and result.verdict != "skip":
        for says in _covered(result):
            console.print(f"    {says}", style="dim", soft_wrap=True, markup=False)
        for what, names in (
            ("trials never drawn", undrawn),
            ("paths through the kernel never taken", result.untaken),
            ("cells never hit", result.unhit),
            ("edges never hit", result.uncovered),
        ):
            if names:
                console.print(f"    {what}: {', '.join(names)}", style="yellow", soft_wrap=True, markup=False)


def _covered(result: PairResult) -> list[str]:
    """How near results came to their bounds, what was drawn, and what was executed."""
    told = [
        f"error / bound, 2^{LEAST} to 1: {name:24} |{histogram(ratios, LEAST)}| largest <= 2^{max(ratios)}"
        for name, ratios in result.ratios.items()
    ]
    if result.executed:
        told.append("executed: " + ", ".join(f"{name} {count:,}" for name, count in result.executed.items()))
    told += [f"unsupported: {limit}: {count}" for limit, count in result.unsupported.items()]
    drawn: Counter[str] = Counter()
    for name, count in result.trials.items():
        drawn[WRONG_CALL.rstrip(":") if name.startswith(WRONG_CALL) else name] += count
    told.append("trials: " + ", ".join(f"{name} {count}" for name, count in drawn.most_common()))
    sizes = ", ".join(f"{name} {largest:,} / {most:,}" for name, (largest, most) in result.measures.items() if most)
    return [*told, f"largest drawn / branched on: {sizes}"] if sizes else told
