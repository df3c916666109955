"""Which request owns which slots: pages with counts of their owners, rows of the request table, slots of recurrent state."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


class PoolExhausted(RuntimeError):
    """There is no room for what was asked; nothing was given out."""


@dataclass
class _Held:
    """What one request owns: pages of its encoder tokens, pages of its decoder tokens, tokens that it has room for."""

    encoder_pages: list[int]
    encoder_len: int
    pages: list[int] = field(default_factory=list)
    room: int = 0


class RequestPool:
    """Requests by their row of `req_to_token` [rows, columns], which this object writes and nobody else.

    Columns 0 to encoder_len - 1 of a row name the slots of a request's encoder tokens; its decoder tokens follow, from the next
    multiple of page_size on. A page's slots are consecutive and begin at a multiple of page_size. Every method checks first:
    where it raises, nothing has changed.
    """

    def __init__(self, req_to_token: Tensor, pages: int, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.req_to_token, self.page_size = req_to_token, page_size
        self._free = list(range(pages))[::-1]
        self._owners = [0] * pages
        self._rows = list(range(len(req_to_token)))[::-1]
        self._held: dict[int, _Held] = {}

    @property
    def free_pages(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def arrive(self, encoder_len: int = 0, shared_with: int | None = None, shared_tokens: int = 0) -> int:
        """A row for a new request, with slots for its encoder tokens, and its first `shared_tokens` tokens, whole pages of them,
        in the slots of another request. Raises PoolExhausted (rows, pages), ValueError (lengths, an unknown request)."""
        if not self._rows:
            raise PoolExhausted(f"no free row: all {len(self.req_to_token)} rows of req_to_token are in use")
        if encoder_len < 0 or encoder_len > self.req_to_token.shape[1]:
            raise ValueError(f"encoder_len {encoder_len} does not fit the {self.req_to_token.shape[1]} columns of req_to_token")
        shared = self._shared(shared_with, shared_tokens, encoder_len)
        encoder_pages = self._take(self._pages(encoder_len))
        for page in shared:
            self._owners[page] += 1
        row = self._rows.pop()
        held = self._held[row] = _Held(encoder_pages, encoder_len, list(shared), shared_tokens)
        self._write(row, 0, encoder_pages, encoder_len)
        self._write(row, self._base(held), shared, shared_tokens)
        return row

    def grow(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Make room for so many decoder tokens in each of the requests, all or none. Raises PoolExhausted (pages), ValueError
        (an unknown request, a length that is negative or beyond the table)."""
        longest: dict[int, int] = {}
        for row, length in zip(rows, lengths, strict=True):
            held = self._known(row)
            if length < 0 or self._base(held) + length > self.req_to_token.shape[1]:
                columns = self.req_to_token.shape[1]
                raise ValueError(f"length {length} of the request in row {row} does not fit the {columns} columns of the table")
            longest[row] = max(length, longest.get(row, 0))
        wanted = [max(0, self._pages(length) - len(self._held[row].pages)) for row, length in longest.items()]
        if sum(wanted) > len(self._free):
            raise PoolExhausted(f"{sum(wanted)} pages wanted, {len(self._free)} are free")
        for (row, length), count in zip(longest.items(), wanted):
            held = self._held[row]
            held.pages += self._take(count)
            held.room = max(held.room, length)
            self._write(row, self._base(held), held.pages, held.room)

    def shrink(self, row: int, length: int) -> Tensor:
        """Keep room for `length` decoder tokens; the slots that nobody owns any more. ValueError (an unknown request, a negative
        length)."""
        held = self._known(row)
        if length < 0:
            raise ValueError(f"length {length} of the request in row {row} is negative")
        kept = self._pages(length)
        freed, held.pages = held.pages[kept:], held.pages[:kept]
        held.room = min(held.room, length)
        return self._give_back(freed)

    def free(self, row: int) -> Tensor:
        """End a request; the slots that nobody owns any more. ValueError if there is none in that row: it was freed before."""
        held = self._known(row)
        del self._held[row]
        self._rows.append(row)
        return self._give_back(held.encoder_pages + held.pages)

    def locations(self, row: int, start: int, count: int) -> Tensor:
        """Slots [count] of a request's decoder tokens from `start` on. ValueError beyond what it has room for."""
        held = self._known(row)
        if start < 0 or count < 0 or start + count > held.room:
            raise ValueError(f"start {start}: {count} tokens lie beyond the {held.room} that row {row} has room for")
        base = self._base(held) + start
        return self.req_to_token[row, base : base + count].to(torch.int64)

    def encoder_locations(self, row: int) -> Tensor:
        """Slots [encoder_len] of a request's encoder tokens."""
        held = self._known(row)
        return self.req_to_token[row, : held.encoder_len].to(torch.int64)

    def _known(self, row: int) -> _Held:
        if row not in self._held:
            raise ValueError(f"row {row} holds no request: it was freed, or never given out")
        return self._held[row]

    def _shared(self, other: int | None, tokens: int, encoder_len: int) -> list[int]:
        if other is None:
            if tokens:
                raise ValueError(f"shared_tokens {tokens} without a request to share them with")
            return []
        held = self._known(other)
        if not tokens:
            return []
        if tokens < 0 or tokens % self.page_size or tokens > held.room:
            whole = f"whole pages of {self.page_size} out of the {held.room} tokens of row {other}"
            raise ValueError(f"shared_tokens {tokens} are no {whole}")
        if encoder_len != 0 or held.encoder_len != 0:
            raise ValueError("shared_tokens: tokens that attended an encoder cannot be shared")
        return held.pages[: tokens // self.page_size]

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _base(self, held: _Held) -> int:
        """The first column of decoder tokens."""
        return self._pages(held.encoder_len) * self.page_size

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise PoolExhausted(f"{count} pages wanted, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._owners[page] = 1
        return taken

    def _give_back(self, pages: Sequence[int]) -> Tensor:
        freed = []
        for page in pages:
            self._owners[page] -= 1
            if self._owners[page] == 0:
                freed.append(page)
        self._free += freed
        return self._slots(freed)

    def _slots(self, pages: Sequence[int]) -> Tensor:
        first = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size
        return (first + torch.arange(self.page_size)).flatten()

    def _write(self, row: int, column: int, pages: Sequence[int], tokens: int) -> None:
        self.req_to_token[row, column : column + tokens] = self._slots(pages)[:tokens].to(self.req_to_token.dtype)
