"""Instructions that a kernel executes on its bench rows beside those of the base. They are exact where times are noise: each row
is run once."""

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from kernelpair.call.place import resolve
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import BenchRow, Pair
from kernelpair.suite import Place
from kernelpair.timing.compare import answer, prepared, versions

RAISED = 0.02  # a count that grows by more is told
MOST_OPERATIONS = 5e9  # of the rows of one pair that are counted: some seconds where each instruction is a trap
UNTOLD = "traps"  # how often instructions were caught says nothing about the kernel


@dataclass(frozen=True)
class Count:
    """How often a row executes an instruction, such as "amx loads", now and at the base."""

    pair: str
    row: str
    instruction: str
    now: int
    base: int

    @property
    def raised(self) -> bool:
        """More than at the base, and by more than the share that is allowed."""
        return self.now > self.base * (1.0 + RAISED)

    @property
    def says(self) -> str:
        """In a few words."""
        share = f"{100.0 * (self.now - self.base) / self.base:.3g}% more than" if self.base else "none"
        return f"{self.now:,} {self.instruction}, {share} at the base{f' ({self.base:,})' if self.base else ''}"


def counted_rows(pair: Pair) -> list[BenchRow]:
    """The cheapest rows that declare their operations: as many as take some seconds, and one at least."""
    rows = sorted((row for row in pair.bench.rows if row.flops and not row.series), key=lambda row: row.flops)
    costs = [sum(row.flops for row in rows[: place + 1]) for place in range(len(rows))]
    return [row for row, cost in zip(rows, costs) if cost <= MOST_OPERATIONS or row is rows[0]]


def compare_counts(place: Place, pair: str, now: Candidate, then: Candidate) -> list[Count]:
    """Run the rows with both versions of a candidate that counts. Raises RuntimeError where one of them cannot run them."""
    with versions(_side, place, pair, now, then) as sides:
        counts, counts_then = [answer(connection) for connection in sides]
    return [
        Count(pair, row, name, count, counts_then.get(row, {}).get(name, 0))
        for row, executed in counts.items()
        for name, count in executed.items()
        if row in counts_then and not name.endswith(UNTOLD)
    ]


def _side(connection: Connection, place: Place, name: str, candidate: Candidate) -> None:
    """One version's process: its counts, row by row."""
    try:
        candidate.enter()  # before the suite is there: it may come from a copy
        pair, counter = place.load().pairs()[name], candidate.counter()
        found: dict[str, Mapping[str, int]] = {}
        for row in counted_rows(pair):
            call = prepared(pair, row, resolve(row.arguments()), candidate)
            counter()
            call()
            found[row.name] = counter() or {}
        connection.send(found)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side says it
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
