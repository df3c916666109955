"""How the wrong calls of a step `bad` are made, about the last token of a living request."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.scenarios.serving.cases import ROWS, STATES, ServingCase, columns_of, longest, max_bs, page_of, slots_of
from properties.scenarios.serving.plan import LayerPass, Work
from serving import AttentionLayer, ForwardBatch, GdnLayer, RequestPool

Change = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class WrongCalls:
    """`server` is a `server.Server`. `make(which)` makes the call of that number in `wrong.WRONG`."""

    def __init__(self, server: Any, subject: Work) -> None:
        self.backends, self.table, self.subject, self.batch_of = server.backends, server.table, subject, server.batch
        case: ServingCase = server.case
        self.pool: RequestPool = server.pool
        self.max_bs = max_bs(case)
        self.rows: list[int] = [*server.rows.values()]
        self.row, self.seen = server.row(subject.request), subject.request.seen
        self.page, self.slots, self.columns, self.longest = page_of(case), slots_of(case), columns_of(case), longest(case)
        self.drafts = case.drafts

    def make(self, which: int) -> None:
        """Make it. Whatever it does to the table is undone."""
        held = self.table.clone()
        try:
            CALLS[which](self)
        finally:
            self.table.copy_(held)

    # what a call is about

    def pass_of(self, mode: str, cross: bool = False, recurrent: bool = False) -> LayerPass:
        """A pass of the token over one layer."""
        layers = self.backends.layers
        fits = (lambda each: isinstance(each, GdnLayer)) if recurrent else (
            lambda each: isinstance(each, AttentionLayer) and each.is_cross == cross
        )  # fmt: skip
        layer = next(each for each in layers if fits(each))
        return LayerPass(mode, [self.subject], [layer.layer_id], encoding=[self.subject.request] if cross else [])

    def prepared(self, backend: Any, **changes: Any) -> None:
        """Prepare the token's decode with these changes."""
        backend.prepare(replace(self.batch_of(self.pass_of("decode")), **changes))

    def decoded(self, change: Change = lambda *given: given, cross: bool = False, **changes: Any) -> None:
        """Prepare the decode with these changes, and attend with activations that are changed."""
        self._forward(self.backends.decode, self.pass_of("decode", cross), change, changes)

    def prefilled(self, change: Change = lambda *given: given, **changes: Any) -> None:
        """The same, as a prefill of one token."""
        self._forward(self.backends.prefill, self.pass_of("extend"), change, changes)

    def recurred(self, change: Change) -> None:
        """The same over the recurrent layer."""
        self._forward(self.backends.recurrent, self.pass_of("decode", recurrent=True), change, {})

    def _forward(self, backend: Any, call: LayerPass, change: Change, changes: dict[str, Any]) -> None:
        layer = self.backends.layers[call.layers[0]]
        good: ForwardBatch = self.batch_of(call)
        given = self.backends.inputs(call, layer, good)
        batch = replace(good, **changes)
        backend.prepare(batch)
        forward = backend.forward_decode if call.mode == "decode" else backend.forward_extend
        forward(*change(*given), layer, batch)

    def outside_in_table(self) -> None:
        """The table names a slot that no pool has."""
        good = self.batch_of(self.pass_of("decode"))
        self.table[self.table == good.out_cache_loc] = self.slots
        self.prepared(self.backends.decode, out_cache_loc=good.out_cache_loc)

    def beyond_static(self) -> None:
        """A length that the table holds, but no static buffer."""
        self.table[self.row] = torch.arange(self.columns, dtype=self.table.dtype)
        self.prepared(self.backends.decode, seq_lens=_ints(self.longest + 1), padded_size=1)

    def beyond_drafts(self, mode: str, **changes: int) -> None:
        """A replay of more tokens of a draft than static buffers hold, of a request that has as many."""
        self.prepared(self.backends.decode, mode=mode, seq_lens=_ints(0), padded_size=1, **changes)

    def forward_at_once(self) -> None:
        """The decode on a backend that has prepared nothing."""
        call = self.pass_of("decode")
        batch, layer = self.batch_of(call), self.backends.layers[call.layers[0]]
        self.backends.unprepared().decode.forward_decode(*self.backends.inputs(call, layer, batch), layer, batch)

    def without_a_request(self) -> int:
        """A row that nobody has."""
        return next((row for row in range(ROWS) if row not in self.rows), ROWS)




def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _one_more(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])


def _apart(rows: Tensor) -> Tensor:
    """The same rows, whose elements do not lie side by side."""
    return rows.repeat_interleave(2, dim=-1)[..., ::2]


SHORT, FLOAT = torch.int16, torch.float32
CALLS: tuple[Callable[[WrongCalls], Any], ...] = (
    lambda w: w.decoded(lambda q, k, v: (q, k, None)),
    lambda w: w.decoded(lambda q, k, v: (q[:, :0], k, v)),
    lambda w: w.decoded(out_cache_loc=_ints(0, 0, 0)),
    lambda w: w.decoded(out_cache_loc=_ints(w.slots)),
    lambda w: w.pool.free(w.without_a_request()),
    lambda w: w.pool.grow([w.row], [w.columns + 1]),
    lambda w: w.decoded(seq_lens=_ints(w.columns + 1)),
    lambda w: w.decoded(mode="prefill"),
    lambda w: w.decoded(padded_size=w.max_bs + 1),
    lambda w: w.outside_in_table(),
    lambda w: w.pool.arrive(0, w.row, (w.seen // w.page + 1) * w.page),
    lambda w: w.pool.arrive(0, w.row, 1 if w.page > 1 else -1),
    lambda w: w.pool.locations(w.row, w.seen, 1),
    lambda w: w.pool.shrink(w.row, -1),
    # slots of encoder tokens
    lambda w: w.decoded(encoder_out_cache_loc=_ints(0, w.slots)),
    lambda w: w.decoded(encoder_out_cache_loc=_ints(-1, 0)),
    lambda w: w.decoded(encoder_out_cache_loc=_ints(1, 0, 1)),
    lambda w: w.decoded(lambda q, k, v: (q, _one_more(-k), _one_more(-v)), cross=True),
    lambda w: w.decoded(lambda q, k, v: (q, -k, -v), cross=True, encoder_lens=None),
    # slots of tokens
    lambda w: w.decoded(out_cache_loc=None),
    lambda w: w.decoded(out_cache_loc=_ints(0, 1)),
    # slots of states
    lambda w: w.prepared(w.backends.recurrent, seq_lens=_ints(1, 1), req_pool_indices=_ints(0, 0), state_indices=_ints(1, 1)),
    lambda w: w.prepared(w.backends.recurrent, state_indices=_ints(STATES)),
    lambda w: w.prepared(w.backends.recurrent, state_indices=None),
    lambda w: w.prepared(w.backends.recurrent, state_indices=_ints(w.row).to(SHORT)),
    lambda w: w.recurred(lambda mixed, a, b: (_one_more(mixed), a, b)),
    lambda w: w.recurred(lambda mixed, a, b: (mixed, a, b[:0])),
    # dtypes of index tensors
    lambda w: w.decoded(seq_lens=_ints(w.seen).to(FLOAT)),
    lambda w: w.decoded(req_pool_indices=_ints(w.row).to(SHORT)),
    lambda w: w.decoded(out_cache_loc=_ints(0).to(FLOAT)),
    lambda w: w.decoded(encoder_out_cache_loc=_ints(0).to(SHORT)),
    # activations
    lambda w: w.decoded(lambda q, k, v: (q.int(), k, v)),
    lambda w: w.decoded(lambda q, k, v: (q, k.int(), v)),
    lambda w: w.decoded(lambda q, k, v: (q, k[..., 1:], v)),
    lambda w: w.decoded(lambda q, k, v: (_apart(q), k, v)),
    lambda w: w.decoded(lambda q, k, v: (q, None, v)),
    # batches
    lambda w: w.decoded(req_pool_indices=_ints(ROWS)),
    lambda w: w.decoded(seq_lens=_ints(-1)),
    lambda w: w.prefilled(extend_seq_lens=_ints(w.seen + 1)),
    lambda w: w.prefilled(extend_seq_lens=None),
    lambda w: w.prefilled(padded_size=1),
    lambda w: w.decoded(padded_size=0),
    lambda w: w.decoded(speculative_step_id=-1),
    # static buffers
    lambda w: w.beyond_drafts("draft_decode", speculative_step_id=max(w.drafts - 1, 0)),
    lambda w: w.beyond_drafts("target_verify", num_draft_tokens=w.drafts + 1),
    lambda w: w.beyond_static(),
    # prefills
    lambda w: w.prefilled(lambda q, k, v: (_one_more(q), k, v)),
    lambda w: w.prefilled(lambda q, k, v: (q, k, None)),
    lambda w: w.prefilled(out_cache_loc=_ints(0, 1)),
    lambda w: w.prefilled(out_cache_loc=None),
    lambda w: w.prefilled(lambda q, k, v: (q, k, v[..., 1:])),
    lambda w: w.prepared(w.backends.decode, mode="extend", extend_seq_lens=_ints(1)),
    lambda w: w.backends.decode.forward_extend(None, None, None, w.backends.layers[0], None),
    # arrivals
    lambda w: w.pool.arrive(0, None, w.page),
    lambda w: w.pool.arrive(-1),
    lambda w: w.pool.arrive(w.columns + 1),
    lambda w: w.pool.arrive(w.columns),
    lambda w: w.pool.arrive(0, ROWS, w.page),
    lambda w: w.pool.arrive(1, w.row, w.page),
    # room
    lambda w: w.pool.grow([ROWS], [1]),
    lambda w: w.pool.grow([w.row], [-1]),
    lambda w: w.pool.grow([w.row, w.row], [w.seen + 1, w.columns + 1]),
    lambda w: w.pool.locations(w.row, 0, -1),
    lambda w: w.pool.shrink(ROWS, 0),
    lambda w: w.pool.encoder_locations(ROWS),
    # others
    lambda w: w.decoded(out_cache_loc=_ints(0)[None]),
    lambda w: w.forward_at_once(),
)
