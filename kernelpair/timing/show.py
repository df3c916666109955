"""What `kernelpair bench --against` prints."""

from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelpair.timing.load import Load
from kernelpair.timing.machine import Floors
from kernelpair.timing.speeds import Errors, SpeedRow, Speeds


def show_load(console: Console, load: Load, known: Sequence[Load] = ()) -> Load:
    """One line where the machine is busy, unless that is known."""
    if load.busy and not any(before.busy for before in known):
        console.print(Text(load.says, style="yellow"), soft_wrap=True)
    return load


def show_row(console: Console, row: SpeedRow, floors: Floors) -> None:
    """Our tier, its peers, and one line of what follows."""
    if row.ours is None and not row.failed:  # of a tier that cannot run, which is said once
        return
    console.print(Text(f"{row.pair}  {row.row}  [{row.tier}]", style="bold"), soft_wrap=True)
    if row.ours is None:
        show_failed(console, {row.tier: row.failed})
        return
    work, unit = (row.flops / 1e9, "TFLOP/s") if row.flops else (row.bytes / 1e6, "GB/s")
    table = Table(box=None, padding=(0, 2, 0, 2))
    for heading in ("", "median ms", "spread", unit, "time / ours"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=not heading)
    for timed in filter(None, (row.ours, row.one_thread, *row.peers, *row.others)):
        rate = f"{work / timed.milliseconds:.3g}" if work else "-"
        ratio = f"{timed.milliseconds / row.ours.milliseconds:.2f}"
        spread = f"{timed.spread:.0%}" if timed.samples > 1 else "once"
        table.add_row(timed.name, f"{timed.milliseconds:.4g}", spread, rate, ratio)
    console.print(table)
    for name, reason in row.unsupported.items():
        console.print(Text(f"  {name}: not timed: {reason}", style="dim"), soft_wrap=True)
    console.print(Text("  " + "; ".join(said_of(row, floors))), soft_wrap=True)


def show_failed(console: Console, failed: Mapping[str, str]) -> None:
    """Candidates of ours that are not timed, each with the reason."""
    for name, reason in failed.items():
        console.print(Text(f"  {name}: not timed: {reason}", style="red"), soft_wrap=True)


def show_next(console: Console, failed: Collection[tuple[str, str]]) -> None:
    """What to do about candidates of pairs that were not timed."""
    for pair, name in dict.fromkeys(failed):
        says = f"{pair} [{name}] failed before it could be timed; what is wrong: kernelpair check {pair} --tier {name}"
        console.print(Text(says, style="red"), soft_wrap=True)


def said_of(row: SpeedRow, floors: Floors) -> list[str]:
    """Ratio, fraction of the roofline and floor of a timed row, in words."""
    says = [f"ratio {row.ratio:.2f} to {row.best_peer}" if row.ratio else "no peer"]
    if row.ratio_alone:
        says.append(f"alone {row.ratio_alone:.2f}")
    if row.fraction:
        says.append(f"{row.fraction:.0%} of the roofline ({row.limited_by})")
    if row.floor:
        says.append(floor_of(row, floors))
    return says


def floor_of(row: SpeedRow, floors: Floors) -> str:
    """Whether the row's floor is reached, where this run can say so."""
    head = f"{floors.tier} floor {row.floor}".strip()
    if row.goal is None:
        return f"{head}: nothing to compare with"
    if not row.goal.claimed:
        return f"{head}: not measured here"
    return f"floor {row.floor}: {'reached' if row.goal.reached else f'NOT reached ({row.goal.now:.2f})'}"


def slower_on_all(rows: Sequence[SpeedRow]) -> list[SpeedRow]:
    """Rows that all threads do more slowly than one, beyond the quartiles of both."""
    return [row for row in rows if row.ours and row.one_thread and row.ours.quartiles[0] > row.one_thread.quartiles[1]]


def show_summary(console: Console, speeds: Speeds, floors: Floors) -> None:
    """Means, floors that are not reached, rows that threads slow down, and errors."""
    for tier in dict.fromkeys(row.tier for row in speeds.rows):
        mean = speeds.mean(tier)
        if mean:
            value, having, counted = mean
            says = f"{tier}: geometric mean of the ratio {value:.2f} over {having} of {counted} counted rows"
            console.print(says + (f" ({floors.tier} floor {floors.mean})" if floors.mean else ""), soft_wrap=True)
    missed = [row for row in speeds.rows if row.goal and row.goal.claimed and not row.goal.reached]
    for row in missed:
        console.print(Text(f"{row.pair}  {row.row}: {floor_of(row, floors)}", style="red"), soft_wrap=True)
    for row in slower_on_all(speeds.rows):
        console.print(Text(f"{row.pair}  {row.row} [{row.tier}]: slower on {speeds.threads} threads than on one", style="red"),
                      soft_wrap=True)
    show_skipped(console, speeds)
    show_next(console, [(row.pair, row.tier) for row in speeds.rows if row.failed])


def show_skipped(console: Console, speeds: Speeds) -> None:
    """Tiers that were asked for, or are what the floors are about, and cannot run here: their rows are kept as skipped."""
    for tier, reason in speeds.skipped_tiers.items():
        console.print(Text(f"{tier}: every row skipped: {reason}", style="yellow"), soft_wrap=True)


def show_absent(console: Console, absent: Mapping[str, str]) -> None:
    """Peers that were asked for and do not run here: every row names them as not timed."""
    for name, reason in absent.items():
        console.print(Text(f"{name} cannot be used here: {reason}", style="yellow"), soft_wrap=True)


def show_errors(console: Console, errors: Errors) -> None:
    """One line: each candidate's largest error over the bound."""
    says = [f"{name} {ratio:.3g}" for name, ratio in errors.largest.items()]
    says += [f"{name} FAILS ({reason})" for name, reason in errors.failed.items()]
    says += [f"{name} not judged ({reason})" for name, reason in errors.unsupported.items()]
    console.print(f"{errors.pair}  largest error / bound: {', '.join(says) or 'exact'}", soft_wrap=True, markup=False)
