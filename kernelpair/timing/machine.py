"""What the timing of a suite's kernels needs to know, and what its page of speeds says."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kernelpair.contract.pair import BenchRow, Pair


@dataclass(frozen=True)
class Floors:
    """What the floors of bench rows are claims about."""

    tier: str = ""
    """The tier on which rows have floors; empty: no row claims anything."""
    threads: int = 0
    mean: float = 0.0
    """What the geometric mean of the counted rows must reach; 0 if nothing is claimed."""


@dataclass(frozen=True)
class SpeedPage:
    """What the page of speeds says beside its figures."""

    title: str = "# Speed"
    command: str = "kernelpair bench --against torch --json speed.json"
    remake: str = "kernelpair speed speed.json speed.md"
    series: Mapping[str, str] = field(default_factory=dict)
    """Series -> the title of its plot."""
    bounds: str = "The bound is the contract's."
    memory: str = ""
    """Above the table of what each pair says of its memory."""
    end: str = ""
    """The last line."""


class Peak(NamedTuple):
    """What limits a call: the tier whose peaks are measured, which kind of products and of memory where it has several."""

    tier: str
    products: str = ""
    memory: str = ""

    @property
    def product_key(self) -> str:
        return f"{self.tier}, {self.products}" if self.products else self.tier

    @property
    def read_key(self) -> str:
        return f"{self.tier}, {self.memory}" if self.memory else self.tier


class Uncounted(Exception):
    """Raised where the instructions of a bench row cannot be counted; the message says why."""


class Machine:
    """The defaults are those of a suite without tiers and without measured peaks."""

    floors: Floors = Floors()
    page: SpeedPage = SpeedPage()
    untimed: Collection[str] = ()
    """Candidates that `bench` times only when they are asked for by name."""
    contest: Sequence[str] = ()
    """Tiers that `bench --against` times unless others are named; empty: all that run here."""

    def usual(self, pair: "Pair | None" = None) -> str:
        """The tier in which kernels run when nobody asks for one; those of a pair may have one of their own."""
        return ""

    @contextmanager
    def use(self, tier: str) -> Iterator[None]:
        """Run the kernels of this process in a tier; afterwards as before."""
        yield

    def peak(self, tier: str, given: Mapping[str, Any]) -> Peak:
        """What limits a call with these arguments."""
        return Peak(tier)

    def counted(self, pair: "Pair", row: "BenchRow", asked: bool) -> Mapping[str, float]:
        """Heading -> figure: what one call of a row executes, beside the least that its work needs. `asked`: it was named, so
        that it may take minutes. Raises Uncounted."""
        raise Uncounted("this suite counts no instructions")

    def product_rate(self, peak: Peak) -> float:
        """Operations a second from registers; 0 where it is not known."""
        return 0.0

    def read_rate(self, peak: Peak, nbytes: int) -> float:
        """Bytes a second from a buffer of this size, in memory of this kind; 0 where it is not known."""
        return 0.0
