"""The page of speeds: what `kernelpair bench --against` wrote, as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from kernelpair.suite import Suite
from kernelpair.timing.machine import Floors, SpeedPage
from kernelpair.timing.show import floor_of, slower_on_all
from kernelpair.timing.speeds import Errors, SpeedRow, Speeds, Timed

FLOORS = """\
Floors are what the rows are to reach on the {tier} tier with {threads} threads: the time of the fastest peer over
ours, unless they name something else. {judged}

"""
EXPLAINED = """\
The ratio is the fastest peer's time over ours, from one interleaved run; peers have everything prepared that their own engine
prepares once. The spread is the distance of the quartiles over the median. The roofline is measured in the same run: products
from registers, and reading a buffer of about the row's bytes. More than 100% means that the row's data lay in a nearer cache than
the buffer, or that the buffer was read while the machine was busy."""
ERRORS = """\
## Errors on the same data

The largest error of any element over its bound, in one judged case of each pair, bf16. """
NOISY = 0.5  # spread above which a row is marked
HEADINGS = """\
| row | ms | spread | rate | roofline | fastest peer | its ms | ratio | floor |
|---|--:|--:|--:|--:|---|--:|--:|---|"""


def page_of(speeds: Speeds, plots: Mapping[str, Path], suite: Suite) -> str:
    """The page as Markdown."""
    says, floors = suite.machine.page, suite.machine.floors
    parts = [
        says.title,
        _introduction(speeds, says, floors),
        *(_tier(speeds, tier, floors) for tier in dict.fromkeys(row.tier for row in speeds.rows if row.ours)),
        _series(speeds, plots, says.series),
        _threads(speeds),
        _roofline(speeds),
        _errors(speeds, says),
        _memory(suite, says),
        says.end,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(speeds: Speeds, page: SpeedPage, floors: Floors) -> str:
    machine = speeds.environment
    versions = ", ".join(f"{name} {version}" for name, version in speeds.versions.items()) or "none but torch"
    timed = [row for row in speeds.rows if row.ours]
    spread = median(row.ours.spread for row in timed if row.ours) if timed else 0.0
    says = [
        "This page is generated. It is made again, on any machine, by\n",
        f"    {page.command}\n    {page.remake}\n",
        "| measured on | |\n|---|---|",
        f"| CPU | {machine.get('cpu', 'unknown')}; {', '.join(machine.get('cpu_flags', []))} |",
        f"| cores | {machine.get('cores', 'unknown')} |",
        f"| threads | {speeds.threads} |",
        f"| tiers | {', '.join(dict.fromkeys(row.tier for row in timed)) or 'none'} |",
        f"| torch | {machine.get('torch', 'unknown')} |",
        f"| other peers | {versions} |",
        f"| sampling | {speeds.seconds:g} s for each competitor of a row, in turns; median spread of our times {spread:.0%} |",
    ]
    noisy = [row for row in timed if row.ours and row.ours.spread > NOISY]
    if noisy:
        says.append(
            f"\n**The machine was busy**: {len(noisy)} of {len(timed)} rows have a spread above {NOISY:.0%} (marked ~). "
            "Their times and ratios say little."
        )
    busy = [load for load in speeds.load if load.busy]
    if busy:
        cause = "Other processes ran beside it" if busy[0].shared else "The processor's speed varied"
        says.append(f"\n**{cause}** ({busy[0].says.removeprefix('busy machine: ')}).")
    if speeds.interrupted:
        says.append("\n**The run was interrupted**: the rows after that are missing.")
    if speeds.again:
        says.append(f"\nThe rows of {', '.join(speeds.again)} are of a later run than the others.")
    says += [f"\n**{row.pair}: {row.row} ({row.tier}) was not timed**: {row.failed}." for row in speeds.rows if row.failed]
    says += [f"\nThe {tier} tier was not measured: {reason}." for tier, reason in speeds.skipped_tiers.items()]
    claimed = any(row.goal and row.goal.claimed for row in speeds.rows)
    judged = "They are judged below." if claimed else "**None of them was measured here.**"
    about = FLOORS.format(tier=floors.tier, threads=floors.threads, judged=judged) if floors.tier else ""
    says.append(f"\n{about}{EXPLAINED}")
    return "\n".join(says)


def _tier(speeds: Speeds, tier: str, floors: Floors) -> str:
    rows = [row for row in speeds.rows if row.tier == tier and row.ours and not row.series]
    parts = [f"## Rows on {tier}"]
    mean = speeds.mean(tier)
    if mean:
        value, having, counted = mean
        floor = f"; {floors.mean} is the {floors.tier} tier's floor" if floors.mean else ""
        rows_that = f"{having} of the {counted} rows that count (marked *)"
        parts.append(f"Geometric mean of the ratio: **{value:.2f}** over {rows_that}{floor}.")
    for pair in dict.fromkeys(row.pair for row in rows):
        parts.append(f"### {pair}\n\n" + _table([row for row in rows if row.pair == pair], floors))
    return "\n\n".join(parts)


def _table(rows: Sequence[SpeedRow], floors: Floors) -> str:
    lines = [HEADINGS]
    for row in rows:
        if row.ours is None:
            continue
        work, unit = (row.flops / 1e9, "TFLOP/s") if row.flops else (row.bytes / 1e6, "GB/s")
        best = min(row.peers, key=lambda peer: peer.milliseconds, default=None)
        alone = f" (alone {row.ratio_alone:.2f})" if row.ratio_alone else ""
        cells = [
            row.row + (" *" if row.counts else ""),
            f"{row.ours.milliseconds:.4g}",
            _spread(row.ours),
            f"{work / row.ours.milliseconds:.3g} {unit}" if work else "",
            f"{row.fraction:.0%} {row.limited_by}" if row.fraction else "",
            best.name if best else "none",
            f"{best.milliseconds:.4g}" if best else "",
            f"{row.ratio:.2f}{alone}" if row.ratio else "",
            _floor(row, floors),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "".join(f"\n\nNot timed: {says}." for says in _not_timed(rows))


def _not_timed(rows: Sequence[SpeedRow]) -> list[str]:
    """A sentence for each reason and the rows it holds for, with all peers that have both in common."""
    rows_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for peer, reason in row.unsupported.items():
            rows_of.setdefault((peer, reason), []).append(row.row)
    peers_of: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (peer, reason), names in rows_of.items():
        peers_of.setdefault((reason, tuple(names)), []).append(peer)
    return [
        f"{', '.join(peers)} ({reason}): {'every row' if 1 < len(rows) == len(names) else '; '.join(names)}"
        for (reason, names), peers in peers_of.items()
    ]


def _spread(ours: Timed) -> str:
    return f"{ours.spread:.0%}" + (" ~" if ours.spread > NOISY else "")


def _floor(row: SpeedRow, floors: Floors) -> str:
    return floor_of(row, floors) if row.goal and row.goal.claimed else row.floor


def _series(speeds: Speeds, plots: Mapping[str, Path], titles: Mapping[str, str]) -> str:
    if not plots:
        return ""
    parts = ["## Over the length"]
    for name, path in plots.items():
        title = titles.get(name, name)
        parts.append(f"{title}.\n\n![{title}]({path.as_posix()})")
        for tier in dict.fromkeys(row.tier for row in speeds.rows if row.series == name and row.ours):
            points = [row for row in speeds.rows if row.series == name and row.tier == tier and row.ours]
            lines = ["| tokens | ms | spread | of the roofline | ratio |", "|--:|--:|--:|--:|--:|"]
            lines += [
                f"| {row.size:,} | {row.ours.milliseconds:.4g} | {_spread(row.ours)} | "
                f"{f'{row.fraction:.0%}' if row.fraction else ''} | {f'{row.ratio:.2f}' if row.ratio else ''} |"
                for row in points if row.ours
            ]
            parts.append(f"On {tier}:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _threads(speeds: Speeds) -> str:
    rows = [row for row in speeds.rows if row.ours and row.one_thread]
    if not rows:
        return ""
    slower = slower_on_all(rows)
    table = [
        f"| row | one thread, ms | {speeds.threads} threads, ms | speed-up |",
        "|---|--:|--:|--:|",
    ] + [
        f"| {row.pair}: {row.row} ({row.tier}) | {row.one_thread.milliseconds:.4g} | {row.ours.milliseconds:.4g} | "
        f"{row.one_thread.milliseconds / row.ours.milliseconds:.2f} |"
        for row in rows if row.ours and row.one_thread
    ]
    names = "; ".join(f"{row.pair} {row.row} ({row.tier})" for row in slower)
    says = (
        f"Slower on {speeds.threads} threads than on one, beyond the quartiles of both: {names}." if slower
        else f"No row is slower on {speeds.threads} threads than on one beyond the quartiles of both."
    )
    return f"## One thread and {speeds.threads}\n\n" + "\n".join(table) + f"\n\n{says}"


def _roofline(speeds: Speeds) -> str:
    if not speeds.product_rates and not speeds.read_rates:
        return ""
    lines = ["## What the machine allows", f"Measured in this run, {speeds.threads} threads, the best of many short samples."]
    table = ["| tier | products from registers, TFLOP/s | reading, GB/s by size of the buffer |", "|---|--:|---|"]
    for tier in dict.fromkeys([*speeds.product_rates, *speeds.read_rates]):
        products = f"{speeds.product_rates[tier] / 1e12:.3g}" if tier in speeds.product_rates else ""
        sizes = sorted(speeds.read_rates.get(tier, {}).items())
        reading = ", ".join(f"{_bytes(size)}: {rate / 1e9:.3g}" for size, rate in sizes if size >= 1 << 18)
        table.append(f"| {tier} | {products} | {reading} |")
    return "\n\n".join([*lines, "\n".join(table)])


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _errors(speeds: Speeds, page: SpeedPage) -> str:
    if not speeds.errors:
        return ""
    said = [(*errors.largest, *errors.failed, *errors.unsupported) for errors in speeds.errors]
    names = list(dict.fromkeys(name for candidates in said for name in candidates))
    lines = ["| pair | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    lines += [f"| {errors.pair} | " + " | ".join(_error(errors, name) for name in names) + " |" for errors in speeds.errors]
    cases = "\n".join(errors.case for errors in speeds.errors)
    return f"{ERRORS}{page.bounds}\n\n" + "\n".join(lines) + f"\n\nThe cases, for `kernelpair replay`:\n\n```json\n{cases}\n```"


def _error(errors: Errors, name: str) -> str:
    if name in errors.unsupported:
        return "has none" if errors.unsupported[name] == "has no such kernel" else "outside of its limits"
    ratio = f"{errors.largest[name]:.3g}" if name in errors.largest else "no value"
    return f"{ratio}, fails" if name in errors.failed else ratio


def _memory(suite: Suite, page: SpeedPage) -> str:
    lines = [f"| {pair.name} | {pair.bench.memory} |" for pair in suite.pairs().values() if pair.bench.memory]
    if not lines:
        return ""
    head = "\n\n".join(filter(None, ("## Memory beyond arguments and results", page.memory, "| kernel | memory |\n|---|---|")))
    return "\n".join([head, *lines])
