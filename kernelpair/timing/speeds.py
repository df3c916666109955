"""Speeds as `kernelpair bench --against` writes them: rows with their competitors, and what follows from them."""

import json
from dataclasses import field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kernelpair.contract.pair import PEERS, BenchRow, Floor
from kernelpair.report.files import write_whole
from kernelpair.timing.interleaved import Timing
from kernelpair.timing.load import Load
from kernelpair.timing.machine import Floors

FORMAT = 1  # of the file; another one is refused
DIGITS = 6  # of a number in it: times are not known to more than three
STRICT = ConfigDict(extra="forbid")


class SpeedError(ValueError):
    """A file that does not hold speeds; the message says what is wrong with it."""


@dataclass(frozen=True, config=STRICT)
class Timed:
    """One competitor of a row."""

    name: str
    milliseconds: float
    """Median of the samples."""
    quartiles: tuple[float, float]
    samples: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a fraction of the median."""
        return (self.quartiles[1] - self.quartiles[0]) / self.milliseconds


def timed(name: str, timing: Timing) -> Timed:
    """In milliseconds."""
    return Timed(name, timing.median * 1e3, (timing.low * 1e3, timing.high * 1e3), timing.samples)


@dataclass(frozen=True, config=STRICT)
class Goal:
    """A row's floor, and where this run stands."""

    says: str
    now: float
    """The ratio that the floor is about, or microseconds."""
    reached: bool
    claimed: bool
    """Whether this is the tier and the number of threads that the floor is about; elsewhere it is no claim."""


@dataclass(config=STRICT)
class SpeedRow:
    """One bench row on one tier."""

    pair: str
    row: str
    tier: str
    skipped: str = ""
    """Why it was not timed on this tier; then there is nothing below."""
    series: str = ""
    size: int = 0
    counts: bool = False
    flops: float = 0.0
    bytes: float = 0.0
    ours: Timed | None = None
    one_thread: Timed | None = None
    peers: list[Timed] = field(default_factory=list)
    """Those of `--against` that do the row, each of their ways to do it."""
    others: list[Timed] = field(default_factory=list)
    """What floors are also measured by: a memcpy, another of our kernels on the same tier."""
    unsupported: dict[str, str] = field(default_factory=dict)
    """Peer -> why it does not do the row."""
    alone: list[Timed] = field(default_factory=list)
    """Each competitor once more, without the others in turns: weights stay in the cache. Ours comes first."""
    limit: float = 0.0
    """Milliseconds that the roofline allows; 0 where nothing is known of the row's work."""
    limited_by: str = ""
    """`products` or `reading`."""
    best_peer: str = ""
    ratio: float | None = None
    """The best peer's time over ours."""
    ratio_alone: float | None = None
    fraction: float | None = None
    """The fraction of the roofline: its time over ours."""
    floor: str = ""
    goal: Goal | None = None
    failed: str = ""
    """How our own kernel crashed, hung or raised in its first calls; then nobody was timed beside it."""


@dataclass(config=STRICT)
class Errors:
    """Errors of one pair's `Bench.case`, by candidate."""

    pair: str
    case: str
    largest: dict[str, float] = field(default_factory=dict)
    """Candidate (a tier or a peer) -> its largest error over the bound."""
    failed: dict[str, str] = field(default_factory=dict)
    """Candidate -> its first failure, where it has one."""
    unsupported: dict[str, str] = field(default_factory=dict)


@dataclass(config=STRICT)
class Speeds:
    """A whole run."""

    environment: dict[str, Any]
    threads: int
    seconds: float
    against: list[str]
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of the peers, where they tell."""
    skipped_tiers: dict[str, str] = field(default_factory=dict)
    product_rates: dict[str, float] = field(default_factory=dict)
    """Tier -> operations a second from registers."""
    read_rates: dict[str, dict[int, float]] = field(default_factory=dict)
    """Tier -> buffer in bytes -> bytes a second."""
    rows: list[SpeedRow] = field(default_factory=list)
    errors: list[Errors] = field(default_factory=list)
    load: list[Load] = field(default_factory=list)
    """What else the machine did, before the first row and after the last."""
    interrupted: bool = False
    """Whether the run was interrupted, so that rows are missing."""
    again: list[str] = field(default_factory=list)
    """Pairs whose rows are of a later run than the others (`replace_rows`)."""
    format: int = FORMAT

    @property
    def machine(self) -> str:
        """Where it was measured, in a few words."""
        cores, found = self.environment.get("cores", "?"), self.environment.get("torch", "")
        cpu = self.environment.get("cpu", "unknown CPU")
        return f"{cpu}, {self.threads} threads on {cores} cores" + (f", torch {found}" if found else "")

    def replace_rows(self, later: "Speeds") -> None:
        """Replace the rows and errors of some pairs by those of a later run. Raises SpeedError unless it
        was of the same machine, threads and peers."""
        for name, here, there in (
            ("machine", self.machine, later.machine),
            ("peers", self.against, later.against),
            ("versions of the peers", self.versions, self.versions | later.versions),
        ):
            if here != there:
                raise SpeedError(f"not the same {name}: {here} and {there}")
        rows = {(row.pair, row.row, row.tier): row for row in (*self.rows, *later.rows)}
        errors = {one.pair: one for one in (*self.errors, *later.errors)}
        self.rows, self.errors = list(rows.values()), list(errors.values())
        self.again = sorted({*self.again, *(row.pair for row in later.rows)})
        self.load += later.load

    def mean(self, tier: str) -> tuple[float, int, int] | None:
        """Geometric mean of the ratios of a tier's counted rows, how many have one, and how many are counted."""
        counted = [row for row in self.rows if row.counts and row.tier == tier and not row.skipped]
        ratios = [row.ratio for row in counted if row.ratio]
        if not ratios:
            return None
        return geometric_mean(ratios), len(ratios), len(counted)


_ADAPTER = TypeAdapter(Speeds)


def conclude(row: SpeedRow, floor: Floor | None, threads: int, floors: Floors) -> None:
    """Fill in what follows from the times: ratios, the fraction of the roofline, where the floor stands."""
    row.floor = str(floor) if floor else ""
    if row.ours is None:
        return
    if row.peers:
        best = min(row.peers, key=lambda peer: peer.milliseconds)
        row.best_peer, row.ratio = best.name, best.milliseconds / row.ours.milliseconds
    names = {peer.name for peer in row.peers}
    alone = [peer.milliseconds for peer in row.alone if peer.name in names]
    own = [one.milliseconds for one in row.alone if one.name == row.ours.name]
    if alone and own:
        row.ratio_alone = min(alone) / own[0]
    if row.limit:
        row.fraction = row.limit / row.ours.milliseconds
    row.goal = _goal(row, floor, row.tier == floors.tier and threads == floors.threads)


def _goal(row: SpeedRow, floor: Floor | None, claimed: bool) -> Goal | None:
    if floor is None or row.ours is None:
        return None
    if floor.microseconds:
        now = row.ours.milliseconds * 1e3
        return Goal(str(floor), now, now <= floor.microseconds, claimed)
    over = [row.ratio] if floor.over == PEERS else [
        other.milliseconds / row.ours.milliseconds for other in (*row.others, *row.peers) if other.name == floor.over
    ]
    if not over or over[0] is None:
        return None
    return Goal(str(floor), over[0], over[0] >= floor.ratio, claimed)


def started(row: BenchRow, pair: str, tier: str, skipped: str = "") -> SpeedRow:
    """An empty result of a bench row."""
    return SpeedRow(
        pair, row.name, tier, skipped, row.series, row.size, row.counts, row.flops, row.bytes,
        floor=str(row.floor) if row.floor else "",
    )


def write(speeds: Speeds, path: Path) -> None:
    """As JSON: a line for each field that is not at its default, and for each row, so that a new run shows as what it
    changed."""
    kept = {"format": FORMAT, **_ADAPTER.dump_python(speeds, mode="json", exclude_defaults=True)}
    lines = ",\n".join(f"{json.dumps(name)}: {_lines(_rounded(value))}" for name, value in kept.items())
    write_whole(path, f"{{\n{lines}\n}}\n")


def _lines(value: Any) -> str:
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def read(path: Path) -> Speeds:
    """What `write` wrote. Raises SpeedError."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SpeedError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format", "none") if isinstance(values, dict) else "none"
        raise SpeedError(f"{path} has format {found}, this build reads {FORMAT}: write it with `kernelpair bench --against`")
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpeedError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
