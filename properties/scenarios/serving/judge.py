"""What a server left, step by step, against the reference, which takes over the server's pools and its table at each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import poison
from kernelpair.contract.pair import Inputs, Outputs
from kernelpair.contract.verdict import Failure, Judged, Tightness
from kernelpair.trial import judge
from kernelpair.trial.truth import widen
from properties.scenarios.serving.bounds import LayerRows, gdn_bounds, judge_rows
from properties.scenarios.serving.cases import ServingCase, columns_of, page_of, slots_of, source
from properties.scenarios.serving.plan import LayerPass, Planned, ServedRequest, Work, plan
from properties.scenarios.serving.server import Backends, Side, batch_of
from properties.scenarios.serving.wrong import WRONG, names
from reference.backends.gdn import GdnBackend
from reference.backends.latent import LatentAttention
from reference.backends.mla import MlaBackend
from reference.backends.paged import PagedBackend
from reference.backends.slot import SlotBackend
from reference.causal_conv1d import PackedConvWeight
from serving import AttentionLayer, GdnLayer

REFERENCE = Side(SlotBackend, PagedBackend, MlaBackend, GdnBackend, LatentAttention, None, PackedConvWeight)
INTEGERS = {2: torch.int16, 4: torch.int32}


class RunAbandoned(Exception):
    """What follows means nothing any more; the failure is recorded."""


class ServerTable:
    """Where requests are, read off a server's table and its rows (`server.Slots`)."""

    def __init__(self, table: Tensor, rows: Mapping[int, int], page: int) -> None:
        self.table, self.rows, self.page = table, rows, page

    def row(self, request: ServedRequest) -> int:
        return self.rows[request.number]

    def tokens(self, request: ServedRequest, start: int, count: int) -> Tensor:
        base = -(-request.encoder // self.page) * self.page + start
        return self.table[self.row(request), base : base + count].long()

    def encoder(self, request: ServedRequest) -> Tensor:
        return self.table[self.row(request), : request.encoder].long()


class Judge:
    """One run. `verdict()` goes through it; failures are those of the earliest step first."""

    def __init__(self, case: ServingCase, inputs: Inputs, outputs: Outputs) -> None:
        self.case, self.outputs, self.page = case, outputs, page_of(case)
        self.before = {name: value for name, value in inputs.items() if name not in ("case", "table")}
        self.wide = {name: widen(value) if value.element_size() > 1 else value.clone() for name, value in self.before.items()}
        self.table = torch.zeros(inputs["table"].shape, dtype=torch.int64)
        self.reference = Backends(case, REFERENCE, self.wide, self.table, wide=True)
        self.places: dict[int, int] = {}  # page of the plan -> page of the pools
        self.failures: list[tuple[int, Failure]] = []
        self.tightness: dict[str, Tightness] = {}
        self.rows: dict[int, list[LayerRows]] = {layer.layer_id: [] for layer in self.reference.layers}
        self.taken = dict.fromkeys(self.rows, 0)  # rows of each layer's outputs that were judged
        self.history: dict[tuple[ServedRequest, int], list[Tensor]] = {}

    def verdict(self) -> Judged:
        steps = plan(self.case)
        try:
            for planned in steps:
                self._step(planned)
            self._whole_requests(len(steps))
            self._left(len(steps))
        except RunAbandoned:
            pass
        for layer in self.reference.layers:
            if isinstance(layer, AttentionLayer):
                failures, tightness = judge_rows(self.case, layer, self.rows[layer.layer_id])
                self.failures += failures
                for one in tightness:
                    self._note_tightness("attention", one)
        return Judged([failure for _, failure in sorted(self.failures, key=lambda found: found[0])], self.tightness)

    # --- one step ---

    def _step(self, planned: Planned) -> None:
        self.index, self.note = planned.index, f"step {planned.index} ({planned.step[0]})"
        log = self.outputs["log"]
        if planned.index >= len(log):
            self._fail("layout", "log", "the server stopped before it")
        classes, message, rows, same_table, unasked, made = log[planned.index]
        self._answer(planned, classes, message, made)
        if planned.refused and not same_table:
            self._fail("untouched", "req_to_token", "it was refused, and the request table has changed")
        for name, says in unasked:
            self._record("untouched", name, says)
        self.table.copy_(self.outputs["tables"][planned.index])
        slots = ServerTable(self.table, dict(rows), self.page)
        self._ownership(planned, slots)
        for name, pool in self.before.items():
            self.wide[name].copy_(pool)
        self.bounds: dict[str, Tensor] = {}
        for call in planned.calls:
            self._call(call, slots)
        self._pools(planned, slots)

    def _answer(self, planned: Planned, classes: Sequence[str], message: str, made: int | None) -> None:
        """An error exactly where the plan expects one, and of that class, naming what is wrong: of wrong calls the last that was
        made, which is the last of all unless it was not refused as it must be."""
        expected, says = (planned.refused, "") if made is None else (WRONG[made].error, f"wrong call {made}: ")
        if classes and not expected:
            self._fail("exception", "", f"{classes[0]}: {message}")
        if expected and not classes:
            self._fail("missing_error", "", f"{says}a result instead of {expected}")
        if expected and expected not in classes:
            self._fail("exception", "", f"{says}{classes[0]}: {message}, instead of {expected}")
        if made is not None and not names(made, message):
            self._fail("exception", WRONG[made].names, f"{says}{message!r} does not name {WRONG[made].names}")

    def _ownership(self, planned: Planned, slots: ServerTable) -> None:
        """Every living request has a row of its own, and each page of the plan one place that no other page has."""
        numbers = {request.number for request in planned.held}
        if set(slots.rows) != numbers or len(set(slots.rows.values())) != len(numbers):
            self._fail("value", "rows", f"rows {slots.rows} for the requests {sorted(numbers)}")
        for request, (encoder_pages, pages, room) in planned.held.items():
            for held, at in ((encoder_pages, slots.encoder(request)), (pages, slots.tokens(request, 0, room))):
                self._places(request, held, at)
        if len({*self.places.values()}) != len(self.places):
            self._fail("value", "req_to_token", f"one page is given out twice: {sorted(self.places.values())}")

    def _places(self, request: ServedRequest, pages: Sequence[int], slots: Tensor) -> None:
        first, inside = slots[:: self.page] // self.page, torch.arange(len(slots)) % self.page
        wrong = (slots != first.repeat_interleave(self.page)[: len(slots)] * self.page + inside).nonzero().flatten()
        if len(wrong):
            j = int(wrong[0]) // self.page
            part = slots[j * self.page : (j + 1) * self.page]
            self._fail("value", "req_to_token", f"request {request.number}: page {j} is {part.tolist()}")
        for j, (page, place) in enumerate(zip(pages, first.tolist(), strict=True)):
            if self.places.setdefault(page, place) != place:
                self._fail("value", "req_to_token", f"request {request.number}: page {j} has moved to {place}")

    def _call(self, call: LayerPass, slots: ServerTable) -> None:
        states = {name: pool.clone() for name, pool in self.wide.items() if name[0] in "cs"}
        batch = batch_of(self.case, call, slots)
        truths = self.reference.run(call, batch)
        for n, truth in truths.items():
            got = self._next_rows(n, truth)
            live = sum(len(one.rows) for one in call.work)
            if not bool((got[live:] == 0).all()):
                self._record("value", f"out{n}", "rows of padded requests are not 0")
            layer = self.reference.layers[n]
            if isinstance(layer, GdnLayer):
                self._judge_gdn(call, layer, slots, states, got[:live], truth[:live])
            done = 0
            for i, one in enumerate(call.work):
                part = slice(done, done + len(one.rows))
                done += len(one.rows)
                if isinstance(layer, AttentionLayer):
                    self._add_rows(call, layer, slots, one, got[part], truth[part])
                kept = len(one.rows) if call.finals is None else call.finals[i]
                if kept:
                    self.history.setdefault((one.request, n), []).append(got[part][:kept])

    def _next_rows(self, n: int, truth: Tensor) -> Tensor:
        """The server's output of this call, out of all outputs of the layer."""
        start, every = self.taken[n], self.outputs.get(f"out{n}")
        self.taken[n] = end = start + len(truth)
        if every is None or len(every) < end or every.shape[1:] != truth.shape[1:]:
            had = None if every is None else list(every.shape)
            self._fail("layout", f"out{n}", f"rows {start} to {end} of {list(truth.shape[1:])} are not in {had}")
        assert every is not None
        return every[start:end]

    def _add_rows(
        self, call: LayerPass, layer: AttentionLayer, slots: ServerTable, one: Work, got: Tensor, truth: Tensor
    ) -> None:
        n = layer.layer_id
        q, *new = (value[torch.tensor(one.rows)] for value in self.reference.activations[n])
        stored = one.end if call.save else one.start
        at = slots.encoder(one.request) if layer.is_cross else slots.tokens(one.request, 0, stored)
        k, v = self._keys(layer, self.wide, at)
        if not call.save and not layer.is_cross:
            k, v = torch.cat([k, new[0]]), torch.cat([v, new[1]])
        says = f"{self.note}, {call.mode}, request {one.request.number}"
        self.rows[n].append(LayerRows(self.index, says, one.start, q, k, v, got, truth))

    def _keys(self, layer: AttentionLayer, memory: Mapping[str, Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values in these slots, descaled, in float64."""
        n = source(self.case, layer.layer_id)
        k = memory[f"k{n}"][at]
        v = k[..., : layer.v_head_dim] if layer.latent else memory[f"v{n}"][at]
        scales = [1.0 if scale is None else float(torch.tensor(scale)) for scale in (layer.k_scale, layer.v_scale)]
        return k.double() * scales[0], v.double() * scales[1]

    def _judge_gdn(
        self, call: LayerPass, layer: GdnLayer, slots: ServerTable, states: Mapping[str, Tensor], got: Tensor, truth: Tensor
    ) -> None:
        n = layer.layer_id
        decodes = len(call.work) if call.mode == "decode" else call.num_decodes
        after = self.wide[f"ssm{n}"]
        if not call.work:
            return
        out, ssm = gdn_bounds(
            self.case, layer, call.work, decodes, self._gdn_inputs(n, call.work), (states[f"conv{n}"], states[f"ssm{n}"]),
            [slots.row(one.request) for one in call.work], (truth, after),
        )
        if call.save:
            self.bounds[f"ssm{n}"] = ssm
        self._compare(f"out{n}", got, truth, out, "delta rule")

    def _gdn_inputs(self, n: int, work: Sequence[Work]) -> dict[str, Tensor]:
        rows = torch.tensor([row for one in work for row in one.rows])
        return dict(zip(("mixed_qkv", "a", "b"), (value[rows] for value in self.reference.activations[n])))

    # --- pools ---

    def _pools(self, planned: Planned, slots: ServerTable) -> None:
        """What was written is what the reference wrote, what was freed is poison, and nothing else has changed."""
        freed = [self.places.pop(page) for page in planned.freed]
        gone = (torch.tensor(freed, dtype=torch.int64)[:, None] * self.page + torch.arange(self.page)).flatten()
        states = torch.tensor([slots.row(request) for request in planned.frees], dtype=torch.int64)
        for name, before in self.before.items():
            got = self.outputs[f"after_{name}"][planned.index]
            rows = gone if name[0] in "kv" else states
            expected = self.wide[name].to(before.dtype)
            expected[rows] = poison(self.case.poison, (len(rows), *before.shape[1:]), before.dtype)
            if name in self.bounds:
                truth, bound = self.wide[name], self.bounds[name]
                touched = (truth != before.double()).flatten(1).any(1) & ~before.double().isnan().flatten(1).any(1)
                touched |= (expected.isfinite() & before.isnan()).flatten(1).any(1)
                self._compare(name, got[touched], truth[touched], bound[touched], "delta rule")
                expected[touched] = got[touched]
            if not _same(got, expected):
                where = (~_equal(got, expected)).flatten(1).any(1).nonzero().flatten().tolist()
                self._record("untouched", name, f"slots {where[:8]} hold something else than they must after it")
            self.before[name] = got

    # --- whole requests ---

    def _whole_requests(self, index: int) -> None:
        """Each request's outputs, over all its steps, against one prefill of its tokens, alone and in fresh pools."""
        self.index = index
        requests = list(dict.fromkeys(request for request, _ in self.history))
        for request in requests:
            self.note = f"request {request.number} as a whole"
            memory = {name: self._fresh(name, pool) for name, pool in self.wide.items()}
            table = torch.arange(columns_of(self.case))[None]
            alone = Backends(self.case, REFERENCE, memory, table, wide=True)
            slots = ServerTable(table, {request.number: 0}, self.page)
            seen = max(request.shared + sum(map(len, self.history[key])) for key in self.history if key[0] is request)
            work = Work(request, 0, request.rows[:seen])
            encoding = [request] if request.encoder else []
            layers = [n for n in range(len(alone.layers)) if (request, n) in self.history]
            call = LayerPass("extend", [work], layers, encoding=encoding)
            before = {name: pool.clone() for name, pool in memory.items() if name[0] in "cs"}
            truths = alone.run(call, batch_of(self.case, call, slots))
            for n, truth in truths.items():
                got, layer = torch.cat(self.history[request, n]), alone.layers[n]
                if len(got) != seen - request.shared:
                    self._fail("layout", f"out{n}", f"{len(got)} outputs for {seen - request.shared} tokens")
                if isinstance(layer, AttentionLayer):
                    at = slots.encoder(request) if layer.is_cross else slots.tokens(request, 0, seen)
                    q = alone.activations[n][0][torch.tensor(work.rows[request.shared :])]
                    keys = self._keys(layer, memory, at)
                    self.rows[n].append(LayerRows(index, self.note, request.shared, q, *keys, got, truth[request.shared :]))
                elif self.case.state == "float32":
                    pools = before[f"conv{n}"], before[f"ssm{n}"]
                    given = self._gdn_inputs(n, [work])
                    bound, _ = gdn_bounds(self.case, layer, [work], 0, given, pools, [0], (truth, memory[f"ssm{n}"]))
                    self._compare(f"out{n}", got, truth, bound, "delta rule")

    def _left(self, index: int) -> None:
        """When everybody has gone, nothing is held any more: whatever was refused in between has kept nothing."""
        self.index, self.note = index, "all gone"
        pages, rows = self.outputs["left"]
        if (pages, rows) != (slots_of(self.case) // self.page, len(self.table)):
            self._fail("value", "req_to_token", f"{pages} pages are free, and {rows} rows")

    def _fresh(self, name: str, pool: Tensor) -> Tensor:
        return pool.new_zeros(columns_of(self.case) if name[0] in "kv" else 1, *pool.shape[1:])

    # --- failures ---

    def _compare(self, name: str, got: Tensor, truth: Tensor, bound: Tensor, kind: str) -> None:
        failures, tightness = judge.values(name, got, truth, bound)
        for failure in failures:
            self._record(failure.kind, name, failure.detail, failure.differences)
        if tightness is not None and not failures:
            self._note_tightness(kind, tightness)

    def _note_tightness(self, kind: str, one: Tightness) -> None:
        known = self.tightness.get(kind, one)
        self.tightness[kind] = Tightness(max(known.largest, one.largest), max(known.looseness, one.looseness))

    def _record(self, kind: str, tensor: str, detail: str, differences: Any = ()) -> None:
        self.failures.append((self.index, Failure(kind, tensor, f"{self.note}: {detail}", differences)))

    def _fail(self, kind: str, tensor: str, detail: str) -> None:
        self._record(kind, tensor, detail)
        raise RunAbandoned


def _equal(got: Tensor, expected: Tensor) -> Tensor:
    """Element by element the same bits, or NaN of any payload: what went through float64 has lost it."""
    if got.element_size() == 1:
        return got.view(torch.uint8) == expected.view(torch.uint8)
    integer = INTEGERS[got.element_size()]
    return (got.view(integer) == expected.view(integer)) | (got.isnan() & expected.isnan())


def _same(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and bool(_equal(got, expected).all())


def verdict(case: ServingCase, inputs: Inputs, outputs: Outputs) -> Judged:
    """Failures of a run, the earliest step's first, and how tight its bounds were."""
    return Judge(case, inputs, outputs).verdict()
