"""A server in miniature: it carries out the steps of a case with the backends of one side, and says what each step left."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from kernelpair.call.form import bits_of
from kernelpair.call.values import fill_poison, poison
from properties.scenarios.serving import provoked
from properties.scenarios.serving.cases import (
    CHUNK,
    INDICES,
    ROWS,
    ServingCase,
    activations,
    bare,
    columns_of,
    index_dtype,
    is_gdn,
    layers_of,
    longest,
    max_bs,
    page_of,
    prefills_slots,
    slots_of,
    source,
    specs,
)
from properties.scenarios.serving.plan import LayerPass, Planned, ServedRequest, Work, plan
from properties.scenarios.serving.wrong import WRONG, refused
from properties.scenarios.serving.wrong_calls import WrongCalls
from serving import (
    DECODE_MODES,
    EXTEND_MODES,
    AttentionLayer,
    ForwardBatch,
    GdnLayer,
    KVPool,
    PoolExhausted,
    RequestPool,
    ServerConfig,
    StatePool,
    check_config,
)
from serving.config import CONV_STATE_LAYOUT

NOT_STORED = "a call that was asked not to store has changed it"
ONLY_READ = "a call that only reads it has changed it"


class Slots(Protocol):
    """Where a request's tokens are."""

    def row(self, request: ServedRequest) -> int: ...

    def tokens(self, request: ServedRequest, start: int, count: int) -> Tensor: ...

    def encoder(self, request: ServedRequest) -> Tensor: ...


@dataclass(frozen=True)
class Side:
    """The classes of the reference, or of the optimized kernels."""

    slot: type[Any]
    paged: type[Any]
    mla: type[Any]
    gdn: type[Any]
    latent: type[Any]
    recorded: type[Any] | None
    """Records decodes; the reference does not."""
    conv_weight: type[Any]


class Backends:
    """The backends of one side, and the layers that they serve."""

    def __init__(
        self, case: ServingCase, side: Side, memory: Mapping[str, Tensor], req_to_token: Tensor, wide: bool = False
    ) -> None:
        self.case, self.table, self.unprepared = case, req_to_token, partial(Backends, case, side, memory, req_to_token)
        self.provoked = case.provoked and not wide
        self.layers = layers_of(case, wide)
        self.activations = activations(case)
        if wide:
            self.activations = [(q.double(), k.double(), v.double()) for q, k, v in self.activations]
        attention = [layer for layer in self.layers if isinstance(layer, AttentionLayer)]
        recurrent = [layer for layer in self.layers if isinstance(layer, GdnLayer)]
        pools = {layer.layer_id: _pool(layer, source(case, layer.layer_id), memory) for layer in attention}
        self.prefill, self.decode = _attention(case, side, attention, pools, req_to_token, not bare(case))
        self.told_nothing = _attention(case, side, attention, pools, req_to_token, False)[1] if self.provoked else None
        layout = check_config(ServerConfig(), {CONV_STATE_LAYOUT: case.conv_layout}).conv_state_layout
        states = {n: StatePool(memory[f"conv{n}"], memory[f"ssm{n}"], layout, case.state_layout)
                  for n in (layer.layer_id for layer in recurrent)}  # fmt: skip
        self.recurrent = side.gdn(recurrent, states)
        self.recorded = None
        if case.recorded and side.recorded is not None:
            backends = {layer.layer_id: self.decode for layer in attention} | dict.fromkeys(states, self.recurrent)
            self.recorded = side.recorded(backends, {layer.layer_id: layer for layer in self.layers})
        self._given: dict[int, list[Tensor | None]] = {}

    def run(self, call: LayerPass, batch: ForwardBatch) -> dict[int, Tensor]:
        """One pass over the call's layers: layer -> its output, rows of padded requests among them."""
        decodes = call.mode in DECODE_MODES
        given = self._given = {n: self.inputs(call, self.layers[n], batch) for n in call.layers}
        if self.recorded is not None and call.padded is not None and decodes:
            found: dict[int, Tensor] = self.recorded.decode(given, batch)
            if self.provoked:
                provoked.behind(self.recorded, given, batch)
            return found
        attention = self.decode if decodes else self.prefill
        kinds = [self.layers[n] for n in call.layers]
        if any(isinstance(layer, AttentionLayer) for layer in kinds):
            if self.provoked:
                provoked.replays_nothing(self.told_nothing, batch)
                provoked.at_limits(self.case, attention, "decode" if decodes else "extend", self.table)
            attention.prepare(batch)
        if any(isinstance(layer, GdnLayer) for layer in kinds):
            self.recurrent.prepare(batch)
        if self.provoked:
            self._provoke(kinds, attention, batch)
        outs = {}
        for layer in kinds:
            backend = attention if isinstance(layer, AttentionLayer) else self.recurrent
            forward = backend.forward_decode if decodes else backend.forward_extend
            q, k, v = given[layer.layer_id]
            save = call.save and (k is None or source(self.case, layer.layer_id) == layer.layer_id)
            outs[layer.layer_id] = forward(q, k, v, layer, batch, save_kv_cache=save)
        return outs

    def changed(self, call: LayerPass, batch: ForwardBatch) -> set[str]:
        """Which activations that the last run was given it has changed, those of recurrent layers by the same names."""
        return {
            f"{name} of layer {n}" for n, values in self._given.items()
            for name, had, now in zip("qkv", self.inputs(call, self.layers[n], batch), values)
            if had is not None and now is not None and bits_of(had) != bits_of(now)
        }  # fmt: skip

    def _provoke(self, layers: Sequence[AttentionLayer | GdnLayer], attention: Any, batch: ForwardBatch) -> None:
        if any(isinstance(layer, AttentionLayer) for layer in layers):
            pages = self.case.paged and attention is self.decode
            provoked.between(self.case, attention, batch, self.table, pages)
        if any(isinstance(layer, GdnLayer) for layer in layers):
            provoked.between_recurrent(self.recurrent, batch)

    def inputs(self, call: LayerPass, layer: AttentionLayer | GdnLayer, batch: ForwardBatch) -> list[Tensor | None]:
        """A layer's q, k and v, or mixed_qkv, a and b; rows of padded requests hold poison."""
        q, k, v = self.activations[layer.layer_id]
        rows = torch.tensor([row for one in call.work for row in one.rows], dtype=torch.int64)
        pads = (batch.rows - batch.size) * (call.drafts if call.mode == "target_verify" else 1)
        if isinstance(layer, AttentionLayer) and layer.is_cross:
            if not call.encoding:
                return [self._padded(q[rows], pads), None, None]
            encoder = torch.tensor([row for request in call.encoding for row in request.encoder_rows], dtype=torch.int64)
            return [self._padded(q[rows], pads), k[encoder], v[encoder]]
        reads = source(self.case, layer.layer_id) != layer.layer_id
        if reads and (self.case.paged or call.mode in DECODE_MODES):  # else the kernel reads new keys from k and v
            return [self._padded(q[rows], pads), None, None]
        return [self._padded(value[rows], pads) for value in (q, k, v)]

    def _padded(self, rows: Tensor, pads: int) -> Tensor:
        if not pads:
            return rows
        return torch.cat([rows, poison(self.case.poison, (pads, *rows.shape[1:]), rows.dtype)])


def _pool(layer: AttentionLayer, number: int, memory: Mapping[str, Tensor]) -> KVPool:
    k = memory[f"k{number}"]
    return KVPool(k, k[..., : layer.v_head_dim] if layer.latent else memory[f"v{number}"])


def _attention(
    case: ServingCase, side: Side, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], table: Tensor, told: bool
) -> tuple[Any, Any]:
    """The backends of prefills and of decodes; `told`: how large static buffers are to be."""
    rows = {"max_bs": max_bs(case)} if told else {}
    static = rows | {"max_context_len": longest(case)} if told else {}
    if prefills_slots(case):
        slot = side.slot(layers, pools, table, **rows)
        return slot, side.mla(layers, pools, table, page_size=page_of(case), **static) if case.paged else slot
    chunk = CHUNK if any(layer.local for layer in layers) else None
    if told:
        encoder = columns_of(case) - longest(case) if any(layer.is_cross for layer in layers) else 0
        static |= {"max_encoder_len": encoder, "num_draft_tokens": case.drafts}
    paged = side.paged(layers, pools, table, page_size=page_of(case), attn_chunk_size=chunk, **static)
    return paged, paged


def batch_of(case: ServingCase, call: LayerPass, slots: Slots) -> ForwardBatch:
    """The batch that a call means, for requests that lie in these slots."""
    drafting = call.mode in ("draft_decode", "target_verify")
    lens = [one.start - call.step_id if drafting else one.end for one in call.work]
    rows = torch.tensor([slots.row(one.request) for one in call.work], dtype=torch.int64)
    encoders = [one.request.encoder for one in call.work]
    has_encoder = any(spec.get("is_cross") for spec in specs(case))
    batch = ForwardBatch(
        mode=call.mode,
        req_pool_indices=rows,
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        out_cache_loc=_joined([slots.tokens(one.request, one.start, len(one.rows)) for one in call.work]),
        extend_seq_lens=torch.tensor([len(one.rows) for one in call.work]) if call.mode in EXTEND_MODES else None,
        encoder_lens=torch.tensor(encoders, dtype=torch.int64) if has_encoder else None,
        encoder_out_cache_loc=_joined([slots.encoder(request) for request in call.encoding]) if call.encoding else None,
        state_indices=rows if any(is_gdn(spec) for spec in specs(case)) else None,
        num_decodes=call.num_decodes,
        num_draft_tokens=call.drafts,
        speculative_step_id=call.step_id,
        padded_size=call.padded,
    )
    given = {name: value for name in INDICES if (value := getattr(batch, name)) is not None}
    return replace(batch, **{name: value.to(index_dtype(case, name)) for name, value in given.items()})


def _changed(batch: ForwardBatch, before: ForwardBatch) -> set[str]:
    """The batch's tensors that are not what they were."""
    pairs = {name: (getattr(batch, name), getattr(before, name)) for name in INDICES}
    return {name for name, (now, had) in pairs.items() if had is not None and bits_of(now) != bits_of(had)}


def classes_of(error: Exception) -> list[str]:
    """The names of an error's class and of what it inherits from."""
    return [base.__name__ for base in type(error).__mro__]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])


class Server:
    """Requests, slots and backends over one program. Freed slots and states are poisoned before anyone uses them again."""

    def __init__(self, case: ServingCase, side: Side, table: Tensor, memory: Mapping[str, Tensor]) -> None:
        self.case, self.table, self.memory = case, table, memory
        self.backends = Backends(case, side, memory, table)
        self.pool = RequestPool(table, slots_of(case) // page_of(case), page_of(case))
        self.rows: dict[ServedRequest, int] = {}
        self.outputs: dict[int, list[Tensor]] = {n: [] for n in range(len(self.backends.layers))}
        self._table_then = table
        self._rows_then: dict[ServedRequest, int] = {}
        self._unasked: dict[str, str] = {}
        self._made: int | None = None

    # where requests are (Slots)

    def row(self, request: ServedRequest) -> int:
        return self.rows[request]

    def tokens(self, request: ServedRequest, start: int, count: int) -> Tensor:
        return self.pool.locations(self.rows[request], start, count)

    def encoder(self, request: ServedRequest) -> Tensor:
        return self.pool.encoder_locations(self.rows[request])

    def batch(self, call: LayerPass) -> ForwardBatch:
        """The batch that a call means."""
        return batch_of(self.case, call, self)

    def serve(self) -> dict[str, Any]:
        """Carry out every step until one goes otherwise than planned. The log says of each the error's classes, its message,
        the rows of the living, whether the request table is still what it was, what a call has changed that it must not, and
        which wrong call was the last. Tables and rows are those that a step's calls saw, pools those at its
        end."""
        log: list[Any] = []
        after: dict[str, list[Tensor]] = {name: [] for name in self.memory}
        tables, left = [], []  # type: list[Tensor], list[int]
        for planned in plan(self.case):
            error: Exception | None = None
            self._note()
            try:
                self._step(planned)
            except Exception as raised:  # noqa: BLE001 - it is judged by its class
                error = raised
            classes = [] if error is None else classes_of(error)
            rows = [[request.number, row] for request, row in self._rows_then.items()]
            same_table = torch.equal(self._table_then, self.table)
            log.append([classes, str(error or ""), rows, same_table, sorted(self._unasked.items()), self._made])
            tables.append(self._table_then)
            for name, pool in self.memory.items():
                after[name].append(pool.clone(memory_format=torch.contiguous_format))
            expected = planned.refused if self._made is None else WRONG[self._made].error
            if bool(expected) != bool(classes) or (expected and expected not in classes):
                break
        else:
            left = self._leave()
        found: dict[str, Any] = {"log": log, "left": left, "tables": torch.stack(tables)}
        found |= {f"after_{name}": torch.stack(several) for name, several in after.items()}
        found |= {f"out{n}": torch.cat(several) for n, several in self.outputs.items() if several}
        return found

    def _leave(self) -> list[int]:
        """Let everybody go: how many pages are free then, and for how many requests there are rows."""
        for row in self.rows.values():
            self.pool.free(row)
        rows = 0
        with suppress(PoolExhausted):
            while rows <= ROWS:
                self.pool.arrive()
                rows += 1
        return [self.pool.free_pages, rows]

    def _note(self) -> None:
        self._table_then, self._rows_then, self._unasked = self.table.clone(), dict(self.rows), {}
        self._made = None

    def _step(self, planned: Planned) -> None:
        if planned.subject is not None:
            self._wrong(planned.wrong, planned.subject)
            return
        if planned.arrives is not None:
            request, other = planned.arrives, planned.shared_with
            with_row = None if other is None else self.rows[other]
            self.rows[request] = self.pool.arrive(request.encoder, with_row, request.shared)
        if planned.capture is not None:
            self._capture(planned.capture)
        if planned.grows:
            rows, lengths = [self.rows[request] for request, _ in planned.grows], [length for _, length in planned.grows]
            self.pool.grow(rows, lengths)
            if self.case.provoked:  # less than they have, twice: nothing is to be done
                self.pool.grow([*rows, *rows], [length // 2 for length in [*lengths, *lengths]])
        self._note()
        for call in planned.calls:
            before = {} if call.save else {name: bits_of(pool) for name, pool in self.memory.items()}
            batch = self.batch(call)
            self._interrupt(call, batch)
            for n, out in self.backends.run(call, batch).items():
                self.outputs[n].append(out)
            self._unasked |= {name: NOT_STORED for name, bits in before.items() if bits_of(self.memory[name]) != bits}
            self._unasked |= dict.fromkeys(self.backends.changed(call, batch) | _changed(batch, self.batch(call)), ONLY_READ)
        for request, length in planned.shrinks:
            self._poison_slots(self.pool.shrink(self.rows[request], length))
        for request in planned.frees:
            row = self.rows.pop(request)
            self._poison_slots(self.pool.free(row))
            self._poison_state(row)

    def _wrong(self, calls: Sequence[int], subject: Work) -> None:
        """Make wrong calls, as far as each is refused as it must be."""
        wrong = WrongCalls(self, subject)
        for self._made in calls:
            try:
                wrong.make(self._made)
            except Exception as error:
                if self._made == calls[-1] or not refused(self._made, classes_of(error), str(error)):
                    raise
            else:
                return

    def _capture(self, size: int, *modes: str) -> None:
        capture = getattr(self.backends.decode, "capture", None)
        if capture is not None:
            for mode in modes or ("idle", "decode"):
                capture(mode, size)
        elif self.case.paged and size > max_bs(self.case):  # a reference has no static buffers
            raise ValueError(f"{size} requests are more than max_bs {max_bs(self.case)}")

    def _interrupt(self, call: LayerPass, batch: ForwardBatch) -> None:
        """What a server does between two steps of a draft."""
        if call.interrupted == "capture":
            self._capture(batch.rows, call.mode)
        if call.interrupted == "another":
            names = ("req_pool_indices", "seq_lens", "out_cache_loc", "encoder_lens", "state_indices")
            half = {name: value[: (batch.size + 1) // 2] for name in names if (value := getattr(batch, name)) is not None}
            self.backends.decode.prepare(replace(batch, **half, padded_size=batch.rows + 1, speculative_step_id=0))

    def _poison_slots(self, slots: Tensor) -> None:
        for name, pool in self.memory.items():
            if name[0] in "kv":
                pool[slots] = poison(self.case.poison, (len(slots), *pool.shape[1:]), pool.dtype)

    def _poison_state(self, row: int) -> None:
        for name, pool in self.memory.items():
            if name[0] in "cs":
                pool[row] = fill_poison(self.case.poison, torch.empty_like(pool[row], memory_format=torch.contiguous_format))
