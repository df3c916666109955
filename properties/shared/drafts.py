"""Requests with some drafted tokens each, some of them pads: what the cases of both kernels that verify drafts have in common."""

from itertools import accumulate

DRAWN = 7  # requests whose lengths are drawn; those of more repeat them


def repeated(entries: tuple[int, ...], count: int) -> tuple[int, ...]:
    """So many of them, in turn."""
    return tuple(entries[b % len(entries)] for b in range(count))


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
        pads = set(self.pads)
        return [b for b, n in enumerate(self.lengths) if n and b not in pads]

    @property
    def starts(self) -> list[int]:
        """query_start_loc."""
        return list(accumulate(self.lengths, initial=self.before))
