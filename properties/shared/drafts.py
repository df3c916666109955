"""Requests with some drafted tokens each, some of them pads: what the cases of both kernels that verify drafts have in common."""

from typing import Any

from properties.shared.crowds import MANY_REQUESTS, WIDER, elements_of
from properties.shared.pads import MANY_SLOTS

DRAWN = 7  # requests whose lengths are drawn; those of more repeat them
FEW = 17  # requests of a crowd that is no longer small


def repeated(entries: tuple[int, ...], count: int) -> tuple[int, ...]:
    """So many of them, in turn."""
    return tuple(entries[b % len(entries)] for b in range(count))


def few_drafts_if_wider(drawn: Any, fitted: Any) -> dict[str, Any]:
    """Fields in which the case that a provider's limits have made differs again, where they made its slots larger: a crowd has a
    few requests, and there are no tokens or slots of nobody that only had to be many."""
    if elements_of(fitted) <= WIDER * elements_of(drawn):
        return {}
    fewer: dict[str, Any] = {name: max(count - MANY_SLOTS, 1) for name in ("spare", "before")
                             if (count := getattr(fitted, name)) >= MANY_SLOTS}
    if len(fitted.lengths) > MANY_REQUESTS:
        fewer |= {name: getattr(fitted, name)[:FEW] for name in ("lengths", "accepted")}
        fewer["pads"] = tuple(request for request in fitted.pads if request < FEW)
    return fewer


class DraftRequests:
    """For a case with these fields."""

    lengths: tuple[int, ...]
    accepted: tuple[int, ...]
    before: int
    pads: tuple[int, ...]

    @property
    def most_drafts(self) -> int:
        """Of any request, in this call or the one before."""
        return max((max(n, a) for n, a in zip(self.lengths, self.accepted)), default=1)

    @property
    def live(self) -> list[int]:
        """The requests that are computed."""
        return [b for b, n in enumerate(self.lengths) if n and b not in self.pads]

    @property
    def starts(self) -> list[int]:
        """query_start_loc."""
        return [self.before + sum(self.lengths[:b]) for b in range(len(self.lengths) + 1)]
