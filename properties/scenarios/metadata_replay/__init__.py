"""Static metadata under trial: a sequence of captures and replays, carried out step by step, with every invariant checked.

A graph records addresses once. So after each replay: the live part equals what the eager builder says (I1), no field has
moved (I2), the rest is padding (I3), the request table is as it was (I4), and nothing remembers earlier replays (I5).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from serving import AttentionMetadata, LocalAttentionMetadata
from serving.static_metadata import DraftMetadata, StaticMetadata

Buffers = StaticMetadata | DraftMetadata
Step = tuple[str, int, int, bool]
"""Mode, live requests, bs (0: the eager builder), whether encoder lengths are given."""


def fields_of(meta: AttentionMetadata | LocalAttentionMetadata, prefix: str = "") -> dict[str, Any]:
    """Every field by name, those of the local metadata as `local.<field>`."""
    found: dict[str, Any] = {}
    for field in fields(meta):
        value = getattr(meta, field.name)
        nested = isinstance(value, LocalAttentionMetadata)
        found |= fields_of(value, f"{prefix}{field.name}.") if nested else {prefix + field.name: value}
    return found


def form_faults(meta: AttentionMetadata) -> list[str]:
    """Fields that share memory, and scalars that are no Python ints."""
    found = fields_of(meta)
    faults = [f"{name} is a {type(v).__name__}" for name, v in found.items() if type(v) not in (int, Tensor, type(None))]
    return faults + _overlaps({name: value for name, value in found.items() if isinstance(value, Tensor)})


def _overlaps(tensors: Mapping[str, Tensor]) -> list[str]:
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, name) for name, t in tensors.items() if t.numel())
    return [f"{b[2]} shares memory with {a[2]}" for a, b in pairwise(spans) if b[0] < a[1]]


def batches(steps: tuple[Step, ...], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each step: its part of the tensors that hold all steps' requests one after another."""
    start = 0
    for _, live, _, with_encoder in steps:
        part = slice(start, start + live)
        encoder = given["encoder_lens"] if with_encoder else None
        yield {
            "seq_lens": given["seq_lens"][part],
            "req_pool_indices": given["req_pool_indices"][part],
            "req_to_token": given["req_to_token"],
            "encoder_lens": encoder if encoder is None else encoder[part],
        }
        start += live


class Replay:
    """Carries out the steps of one case on one implementation; `results` is what each replay left, `faults` what is wrong."""

    def __init__(self, module: Any, static: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.module, self.static, self.options = module, static, options
        self.buffers = self._make()
        self.captured: dict[tuple[str, int], list[AttentionMetadata]] = {}
        self.places: dict[tuple[str, int], list[Any]] = {}
        self.results: dict[str, Any] = {}
        self.faults: list[str] = []

    def _make(self) -> Buffers:
        limits = {name: self.static[name] for name in ("max_bs", "max_context_len", "max_encoder_len")}
        if self.static["draft_steps"]:
            options = {name: value for name, value in self.options.items() if name != "speculative_step_id"}
            return self.module.MultiStepMetadata(
                self.static["draft_steps"] + 1, **limits, topk=self.static["topk"], **options
            )
        return self.module.MetadataBuffers(**limits, **self.options)

    def _capture(self, buffers: Buffers, mode: str, bs: int) -> list[AttentionMetadata]:
        return buffers.capture(bs) if isinstance(buffers, DraftMetadata) else [buffers.capture(mode, bs)]

    def replay_only(self, mode: str, bs: int, batch: Mapping[str, Any]) -> list[AttentionMetadata]:
        """Replay without a look at anything."""
        return self._replay(self.buffers, mode, bs, batch)

    def _replay(self, buffers: Buffers, mode: str, bs: int, batch: Mapping[str, Any]) -> list[AttentionMetadata]:
        return buffers.replay(bs, **batch) if isinstance(buffers, DraftMetadata) else [buffers.replay(mode, bs, **batch)]

    def capture(self, mode: str, bs: int) -> None:
        """Capture, or capture again: the same views, in the state of a batch without requests."""
        metas = self._capture(self.buffers, mode, bs)
        before = self.captured.setdefault((mode, bs), metas)
        self._expect(all(a is b for a, b in zip(before, metas, strict=True)), f"capture({mode}, {bs}) made new buffers")
        places = self.places.setdefault((mode, bs), [_places(meta) for meta in metas])
        self._expect(places == [_places(meta) for meta in metas], f"capture({mode}, {bs}) moved a field")
        fresh = self._capture(self._make(), mode, bs)
        self._expect(_contents(metas) == _contents(fresh), f"capture({mode}, {bs}) again differs from the first time")
        tensors = {
            f"{key} {i} {name}": value
            for key, several in self.captured.items()
            for i, meta in enumerate(several)
            for name, value in fields_of(meta).items()
            if isinstance(value, Tensor)
        }
        self.faults += _overlaps(tensors)

    def replay(self, number: int, mode: str, bs: int, batch: Mapping[str, Any]) -> None:
        """Replay one step and check all that must hold after it."""
        eager = self._eager(mode, batch)
        self.refused(mode, bs, batch, eager)
        table = batch["req_to_token"].clone()
        others = {key: _contents(metas) for key, metas in self.captured.items() if key != (mode, bs)}
        metas = self._replay(self.buffers, mode, bs, batch)
        self._expect(all(a is b for a, b in zip(metas, self.captured[mode, bs], strict=True)), "I2: other objects returned")
        self._expect(self.places[mode, bs] == [_places(meta) for meta in metas], "I2: a field has moved")
        self._expect(torch.equal(table, batch["req_to_token"]), "I4: req_to_token was modified")
        fresh = self._make()
        self._capture(fresh, mode, bs)
        self._expect(_contents(metas) == _contents(self._replay(fresh, mode, bs, batch)), "I5: earlier replays are remembered")
        kept = {key: _contents(self.captured[key]) for key in others}
        self._expect(others == kept, "I5: the buffers of another mode or bs changed")
        for i, meta in enumerate(metas):
            self._compare_with_eager(meta, eager[i])
        self.keep(number, metas)

    def keep(self, number: int, metas: list[AttentionMetadata]) -> None:
        for i, meta in enumerate(metas):
            name = f"{number}.{i}" if self.static["draft_steps"] else str(number)
            self.results |= {
                f"{name}.{field}": value.clone() if isinstance(value, Tensor) else value
                for field, value in fields_of(meta).items()
            }

    def refused(self, mode: str, bs: int, batch: Mapping[str, Any], eager: list[AttentionMetadata]) -> None:
        """A replay that finds a fault in its last part only raises, and leaves the buffers as they were."""
        if not eager[-1].max_seq_len_k:
            return
        before = {key: _contents(metas) for key, metas in self.captured.items()}
        for says, spoilt in self._spoilt(batch, eager[-1]):
            try:
                self._replay(self.buffers, mode, bs, {**batch, **spoilt})
            except (IndexError, ValueError):
                pass
            else:
                self.faults.append(f"{says} was accepted")
            after = {key: _contents(metas) for key, metas in self.captured.items()}
            self._expect(before == after, f"a replay that was refused for {says} wrote to the buffers")

    def _spoilt(self, batch: Mapping[str, Any], eager: AttentionMetadata) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is wrong, and the arguments in its place; `eager` is the metadata of the longest step.

        Each fault is one that the fewest steps and requests meet: a draft's first step accepts most of them.
        """
        page, longest = self.options["page_size"], int(eager.cache_seqlens.argmax())
        table, empty = batch["req_to_token"], torch.zeros_like(batch["req_to_token"])  # a page at 0 is right for everybody
        row, encoder = int(batch["req_pool_indices"][longest]), batch["encoder_lens"]
        base = 0 if encoder is None else -(-int(encoder[longest]) // page) * page
        last = base + (eager.max_seq_len_k - 1) // page * page
        yield "a row without a page start", {"req_to_token": _with(table, row, -1)}
        yield "a last page start of -1", {"req_to_token": _with(table, (row, last), -1)}
        if page > 1:
            yield "a last page start inside a page", {"req_to_token": _with(table, (row, last), 1)}
        beyond = int(batch["seq_lens"][longest]) + self.static["max_context_len"] + 1 - eager.max_seq_len_k
        yield "a length beyond max_context_len", {"seq_lens": _with(batch["seq_lens"], longest, beyond), "req_to_token": empty}
        yield "a last length of -1", {"seq_lens": _with(batch["seq_lens"], -1, -1)}
        yield "a last row behind the table", {"req_pool_indices": _with(batch["req_pool_indices"], -1, len(table))}
        if encoder is None or not int(encoder.max()):
            return
        most = int(encoder.argmax())
        start = int(batch["req_pool_indices"][most]), (int(encoder[most]) - 1) // page * page
        yield "an encoder's page start of -1", {"req_to_token": _with(table, start, -1)}
        more = _with(encoder, most, self.static["max_encoder_len"] + 1)
        yield "an encoder length beyond max_encoder_len", {"encoder_lens": more, "req_to_token": empty}

    def _eager(self, mode: str, batch: Mapping[str, Any]) -> list[AttentionMetadata]:
        ids = range(self.static["draft_steps"]) if self.static["draft_steps"] else [self.options["speculative_step_id"]]
        return [
            self.module.build_attention_metadata(mode, **batch, **{**self.options, "speculative_step_id": i}) for i in ids
        ]

    def _compare_with_eager(self, meta: AttentionMetadata, eager: AttentionMetadata) -> None:
        said = fields_of(eager)
        for name, value in fields_of(meta).items():
            expected = said.get(name)
            if isinstance(value, int):
                self._expect(value == (expected or 0), f"I1: {name} is {value}, the eager builder says {expected}")
            elif isinstance(value, Tensor):
                live = value.new_zeros([0] * value.dim()) if expected is None else expected
                part = tuple(slice(size) for size in live.shape)
                self._expect(torch.equal(value[part], live), f"I1: the live part of {name} is not what the eager builder says")
                self._expect(_is_padding(name, value, live, meta), f"I3: {name} is not padded beyond {list(live.shape)}")

    def _expect(self, holds: bool, says: str) -> None:
        if not holds and says not in self.faults:
            self.faults.append(says)


def _with(tensor: Tensor, where: Any, value: int) -> Tensor:
    """A copy with one entry, or row, of another value."""
    wrong = tensor.clone()
    wrong[where] = value
    return wrong


def _is_padding(name: str, value: Tensor, live: Tensor, meta: AttentionMetadata) -> bool:
    """Zero beyond the live part; offsets stay flat, but for the queries, whose offsets go on to the full bs."""
    rest = value.clone()
    rest[tuple(slice(size) for size in live.shape)] = 0
    if name == "cu_seqlens_q":
        steps = value.diff()
        return bool((steps == steps[:1]).all())
    if "cu_seqlens" in name:
        return bool((value[max(len(live) - 1, 0) :] == (live[-1] if len(live) else 0)).all())
    return not rest.any()


def _places(meta: AttentionMetadata) -> dict[str, Any]:
    return {
        name: (value.data_ptr(), value.shape, value.stride()) if isinstance(value, Tensor) else type(value)
        for name, value in fields_of(meta).items()
    }


def _contents(metas: list[AttentionMetadata]) -> list[dict[str, Any]]:
    return [
        {name: value.tolist() if isinstance(value, Tensor) else value for name, value in fields_of(meta).items()}
        for meta in metas
    ]


def carry_out(
    module: Any, steps: tuple[Step, ...], static: Mapping[str, Any], given: Mapping[str, Any], checked: bool = True
) -> dict[str, Any]:
    """Results of all steps, and `faults`, which must be empty. `static["capture"]`: first, late, again or never.

    With `checked=False` the buffers are only captured and replayed.
    """
    options = {
        name: given[name] for name in ("page_size", "num_draft_tokens", "speculative_step_id", "attn_chunk_size")
    }
    trial = Replay(module, static, options)
    if static["capture"] == "first":
        for mode, bs in dict.fromkeys((mode, bs) for mode, _, bs, _ in steps):
            trial.capture(mode, bs)
    for number, ((mode, _, bs, _), batch) in enumerate(zip(steps, batches(steps, given), strict=True)):
        if static["capture"] != "never" and (static["capture"] == "again" or (mode, bs) not in trial.captured):
            trial.capture(mode, bs)
        if checked:
            trial.replay(number, mode, bs, batch)
        else:
            trial.keep(number, trial.replay_only(mode, bs, batch))
    return {**trial.results, "faults": trial.faults}
