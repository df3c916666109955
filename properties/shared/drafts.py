"""Requests with some drafted tokens each, some of them pads: what the cases of both kernels that verify drafts have in common."""


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
