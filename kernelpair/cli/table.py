"""A case that runs through several places, layer by layer of a model, say: one line a place, and what is said at the foot."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from kernelpair.call.outcome import CallRequest
from kernelpair.call.runner import START_SECONDS, HarnessError, Isolated
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Stepwise
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import PlaceTable

FIRST = "first beyond the bound"


def show_table(console: Console, table: PlaceTable, foot: str = "") -> None:
    """One line a place, in order: largest error / bound of each kind of part, and the verdict. The first place beyond a bound is
    marked: there the difference begins."""
    kinds = list(dict.fromkeys(kind for row in table.rows for kind in row.ratios))
    says = max(len(row.says) for row in table.rows)
    head = "".join(f"{kind:>16}" for kind in kinds)
    console.print(f"  {table.title}, largest error / bound", style="bold", markup=False)
    console.print(f"  layer  {'':{says}}{head}", style="dim", soft_wrap=True, markup=False)
    marked = False
    for row in table.rows:
        ratios = "".join(f"{_number(row.ratios[kind]) if kind in row.ratios else '':>16}" for kind in kinds)
        line = Text(f"  {row.place:5}  {row.says:{says}}{ratios}  ")
        line.append("fail" if row.beyond else "pass", style="red" if row.beyond else "green")
        if row.beyond:
            line.append(f"  {row.beyond}{'' if marked else f'  <- {FIRST}'}")
            marked = True
        console.print(line, soft_wrap=True)
    if foot:
        console.print(f"  {foot}", soft_wrap=True, markup=False)


def _number(ratio: float) -> str:
    return f"{ratio:.3g}" if math.isfinite(ratio) else "inf"


def remarks(subject: Subject, cases: Iterable[Case], preload: Sequence[str]) -> list[str]:
    """What the pair says of each case beside its judgement (`Stepwise.remark`), from a process of the candidate's own; empty
    where it says nothing, and the reason where it cannot."""
    wanted = list(cases)
    way = subject.pair.truth
    if not isinstance(way, Stepwise) or not way.remark or not wanted:
        return [""] * len(wanted)
    speaker = replace(subject.candidate, entry=way.remark, ran="", paths="")
    found = []
    with Isolated(speaker, preload=preload, hang_seconds=START_SECONDS) as runner:
        for case in wanted:
            try:
                outcome = runner.run(CallRequest({"case": case}, [], 0, ("says",), 1))
            except HarnessError as error:
                found.append(f"nothing is known beyond this: {error}")
                continue
            says = str(outcome.results.get("says", ""))
            found.append(says if outcome.status == "ok" else f"nothing is known beyond this: {outcome.error}: {outcome.message}")
    return found
