"""What the steps of a case mean: which requests live, what they hold, and which calls a server makes for them.

The plan knows neither slots nor rows, only how many pages there are: whoever serves hands those out, and is judged by whether
what it hands out fits the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from properties.scenarios.serving.cases import (
    ROWS,
    ServingCase,
    Step,
    bare,
    encoder_row,
    has_mla_backend,
    is_gdn,
    longest,
    page_of,
    prefills_slots,
    slots_of,
    specs,
    token_row,
)
from properties.scenarios.serving.wrong import WRONG
from serving import ModelConfig, ServerConfig, check_config

INTERRUPTIONS = ("", "capture", "another")


@dataclass(eq=False)
class ServedRequest:
    """A request. `rows[p]` is the row of activations of its token p; pages are numbers that nobody else has at the time."""

    number: int
    prompt: int
    encoder: int
    longest: int
    """Tokens that it may have in the end."""
    rows: list[int] = field(default_factory=list)
    encoder_rows: list[int] = field(default_factory=list)
    seen: int = 0
    encoded: bool = False
    shared: int = 0
    encoder_pages: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    @property
    def decodes(self) -> bool:
        """Whether its prompt is done and there is room for another token."""
        return self.seen >= self.prompt and self.seen < self.longest


@dataclass
class Work:
    """Tokens of a request in one call: from position `start` on, those of these rows."""

    request: ServedRequest
    start: int
    rows: list[int]

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


@dataclass
class LayerPass:
    """One pass over some of the layers."""

    mode: str
    work: list[Work]
    layers: list[int]
    num_decodes: int = 0
    encoding: list[ServedRequest] = field(default_factory=list)
    """Requests whose encoder tokens come with this call."""
    padded: int | None = None
    save: bool = True
    drafts: int = 0
    step_id: int = 0
    interrupted: str = ""
    """What comes between this step of a draft and the one before: `capture` of the draft's static buffers, or `another` draft,
    of half of the requests in buffers of another size."""
    finals: list[int] | None = None
    """Of each request, how many outputs stay, those of rejected tokens and of tokens that run again not; None: all."""


@dataclass
class Planned:
    """One step: what is asked of the server, in this order, and what must come of it."""

    index: int
    step: Step
    arrives: ServedRequest | None = None
    shared_with: ServedRequest | None = None
    grows: list[tuple[ServedRequest, int]] = field(default_factory=list)
    calls: list[LayerPass] = field(default_factory=list)
    shrinks: list[tuple[ServedRequest, int]] = field(default_factory=list)
    frees: list[ServedRequest] = field(default_factory=list)
    capture: int | None = None
    wrong: list[int] = field(default_factory=list)
    """Wrong calls, each of which must be refused."""
    subject: Work | None = None
    """The token that they are about."""
    refused: str = ""
    """The class of the error that the server must answer with, the first wrong call at least; nothing changes then."""
    freed: list[int] = field(default_factory=list)
    """Pages that nobody owns after the step."""
    held: dict[ServedRequest, tuple[list[int], list[int], int]] = field(default_factory=dict)
    """While the calls run: the pages of every living request's encoder tokens, those of its others, and how many others."""


class Planner:
    """Goes through the steps of a case. `plan(case)` is the whole of it."""

    def __init__(self, case: ServingCase) -> None:
        self.case, self.page = case, page_of(case)
        kinds = specs(case)
        self.drafting = [n for n, spec in enumerate(kinds) if spec.get("draft")]
        self.target = [n for n in range(len(kinds)) if n not in self.drafting]
        self.recurrent = [n for n, spec in enumerate(kinds) if is_gdn(spec)]
        self.has_encoder = any(spec.get("is_cross") for spec in kinds)
        self.alive: list[ServedRequest] = []
        self.numbers, self.page_numbers = count(), count()
        self.free = slots_of(case) // self.page
        self.owners: dict[int, int] = {}

    def steps(self) -> list[Planned]:
        found = []
        for index, step in enumerate(self.case.steps):
            planned = Planned(index, step)
            getattr(self, f"_{step[0]}")(planned, *step[1:])
            if not planned.held:
                self._note(planned)
            found.append(planned)
        return found

    def _note(self, planned: Planned) -> None:
        """Who holds what, before anything is given back."""
        room = {} if planned.refused else dict(planned.grows)
        for request in self.alive:
            held = list(request.encoder_pages), list(request.pages), max(request.seen, room.get(request, 0))
            planned.held[request] = held

    # --- the steps ---

    def _arrive(self, planned: Planned, tokens: int, encoder: int, share: int) -> None:
        tokens, encoder = tokens * self.case.stretch, encoder * self.case.stretch
        request = ServedRequest(next(self.numbers), tokens, encoder if self.has_encoder else 0, longest(self.case))
        planned.arrives = request
        other = self.alive[(share - 1) % len(self.alive)] if share and self.alive and self._can_share() else None
        if other is not None:
            request.shared = min(other.seen, tokens - 1) // self.page * self.page
            planned.shared_with = other if request.shared else None
        request.rows = [token_row(self.case, request.number, p) for p in range(request.longest)]
        request.encoder_rows = [encoder_row(self.case, request.number, p) for p in range(request.encoder)]
        needed = self._pages(request.encoder)
        if len(self.alive) == ROWS or needed > self.free:
            planned.refused = "PoolExhausted"
            return
        request.encoder_pages = self._take(needed)
        if other is not None and request.shared:
            request.rows[: request.shared] = other.rows[: request.shared]
            request.pages = other.pages[: request.shared // self.page]
            for page in request.pages:
                self.owners[page] += 1
            request.seen = request.shared
        self.alive.append(request)

    def _can_share(self) -> bool:
        """What the server decides of such a model when it starts."""
        model = ModelConfig(recurrent=bool(self.recurrent), is_encoder_decoder=self.has_encoder)
        return bool(check_config(ServerConfig("paged" if self.case.paged else "slot", page_size=64, model=model)).prefix_caching)

    def _extend(self, planned: Planned, first: int, second: int, mask: int) -> None:
        unfinished = [request for request in self.alive if request.seen < request.prompt]
        decoding = self._chosen([request for request in self.alive if request.decodes], mask)
        work = [self._next(request, 1) for request in decoding]
        for request, chunk in zip(unfinished, (first, second)):
            if chunk:
                work.append(self._next(request, min(chunk * self.case.stretch, request.prompt - request.seen)))
        if len(work) == len(decoding) or not self._grow(planned, work):
            return
        encoding = [one.request for one in work if one.request.encoder and not one.request.encoded]
        everywhere = [*self.target, *self.drafting]
        mode = "mixed" if decoding else "extend"
        planned.calls = [LayerPass(mode, work, everywhere, len(decoding), encoding)]
        self._advance(work)

    def _decode(self, planned: Planned, mask: int, pads: int, eager: int) -> None:
        work = [self._next(request, 1) for request in self._chosen([r for r in self.alive if r.decodes], mask)]
        replayed = self.case.replayed and not eager
        if not work and not (pads and replayed):
            return
        if not self._grow(planned, work):
            return
        padded = len(work) + pads if replayed else None
        planned.calls = [LayerPass("decode" if work else "idle", work, [*self.target, *self.drafting], padded=padded)]
        self._advance(work)

    def _verify(self, planned: Planned, mask: int, accepts: int, between: int) -> None:
        drafts = self.case.drafts
        able = [request for request in self.alive if request.decodes and request.seen + drafts <= request.longest]
        chosen = self._chosen(able, mask)
        attempt = planned.index + 1
        work = []
        for request in chosen:
            rows = [token_row(self.case, request.number, p, attempt) for p in range(request.seen, request.seen + drafts)]
            work.append(Work(request, request.seen, rows))
        if not work or not self._grow(planned, work):
            return
        kind, pads = divmod(between, 2)
        padded = len(work) + pads if self.case.replayed else None
        calls, none = planned.calls, [0] * len(work)
        if self.drafting:
            for i in range(drafts - 1):
                ones = [Work(one.request, one.start + i, one.rows[i : i + 1]) for one in work]
                draft = LayerPass("draft_decode", ones, self.drafting, padded=padded, drafts=drafts, step_id=i, finals=none)
                draft.interrupted = INTERRUPTIONS[(kind + i - 1) % 3] if i and padded is not None else ""
                calls.append(draft)
        taken = [accepts // 5**i % 5 % (drafts + 1) for i in range(len(work))]
        attention = [n for n in self.target if n not in self.recurrent]
        tentative = self.case.tentative and prefills_slots(self.case)
        sizes: dict[str, Any] = {"padded": padded, "drafts": drafts}
        finals = none if tentative else taken
        calls.append(LayerPass("target_verify", work, attention, save=not tentative, finals=finals, **sizes))
        if self.recurrent:
            calls.append(LayerPass("target_verify", work, self.recurrent, save=False, finals=none, **sizes))
        self._note(planned)
        accepted = [Work(one.request, one.start, one.rows[:kept]) for one, kept in zip(work, taken)]
        again = [one for one in accepted if one.rows]
        for layers in (attention if tentative else [], self.recurrent, self.drafting):
            if layers and again:
                calls.append(LayerPass("draft_extend", again, layers))
        self._accept(planned, accepted)

    def _accept(self, planned: Planned, accepted: list[Work]) -> None:
        """Take the accepted tokens over, and give the room of the others back."""
        for one in accepted:
            one.request.rows[one.start : one.end] = one.rows
            planned.shrinks.append((one.request, one.end))
            kept = self._pages(one.end)
            self._give_back(planned, one.request.pages[kept:])
            one.request.pages = one.request.pages[:kept]
        self._advance(accepted)

    def _finish(self, planned: Planned, who: int, *_: int) -> None:
        if self.alive:
            self._note(planned)
            request = self.alive.pop(who % len(self.alive))
            planned.frees = [request]
            self._give_back(planned, request.encoder_pages + request.pages)

    def _capture(self, planned: Planned, size: int, *_: int) -> None:
        planned.capture = size
        if self.case.paged and bare(self.case):
            planned.refused = "ValueError"

    def _bad(self, planned: Planned, which: int, who: int, more: int) -> None:
        able = [request for request in self.alive if request.seen and (request.encoded or not request.encoder)]
        if not able:
            return
        request = able[who % len(able)]
        offered = self._offers(request)
        wrong = [number for number in range(len(WRONG))[which : which + more + 1] if offered.issuperset(WRONG[number].needs)]
        if wrong:
            last = request.seen - 1  # other keys than its own: if they are stored, that shows
            planned.subject = Work(request, last, [token_row(self.case, request.number, last, planned.index + 1)])
            planned.wrong = wrong
            planned.refused = WRONG[wrong[0]].error

    def _offers(self, request: ServedRequest) -> set[str]:
        """What wrong calls about this request may need: a free row, a whole page of tokens, tokens for a draft, and kinds of
        layers and backends."""
        slots = prefills_slots(self.case)
        has = {
            "row": len(self.alive) < ROWS,
            "page": request.seen >= self.page,
            "drafts": request.seen > self.case.drafts,
            "recurrent": bool(self.recurrent),
            "cross": self.has_encoder,
            "slots": slots,
            "paged": not slots,
            "static": self.case.paged and not bare(self.case),
            "mla": has_mla_backend(self.case),
        }
        return {name for name, there in has.items() if there}

    # --- what they share ---

    def _chosen(self, requests: Sequence[ServedRequest], mask: int) -> list[ServedRequest]:
        return [request for i, request in enumerate(requests) if mask >> i & 1]

    def _next(self, request: ServedRequest, length: int) -> Work:
        return Work(request, request.seen, request.rows[request.seen : request.seen + length])

    def _advance(self, work: Sequence[Work]) -> None:
        for one in work:
            one.request.seen = one.end
            one.request.encoded = True

    def _grow(self, planned: Planned, work: Sequence[Work]) -> bool:
        """Room for the tokens of the step, or a refusal that leaves everything as it is."""
        planned.grows = [(one.request, one.end) for one in work]
        wanted = [max(0, self._pages(one.end) - len(one.request.pages)) for one in work]
        if sum(wanted) > self.free:
            planned.refused = "PoolExhausted"
            return False
        for one, pages in zip(work, wanted):
            one.request.pages += self._take(pages)
        return True

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _take(self, wanted: int) -> list[int]:
        taken = [next(self.page_numbers) for _ in range(wanted)]
        self.owners |= dict.fromkeys(taken, 1)
        self.free -= wanted
        return taken

    def _give_back(self, planned: Planned, pages: Sequence[int]) -> None:
        for page in pages:
            self.owners[page] -= 1
            if not self.owners[page]:
                del self.owners[page]
                planned.freed.append(page)
                self.free += 1


def plan(case: ServingCase) -> list[Planned]:
    """Every step of a case, with what it asks for and what must come of it."""
    return Planner(case).steps()
