"""gdn_core: what is drawn, and the arguments of a case."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.values import permutation, poison, uniform
from kernelpair.contract.pair import Inputs
from properties.gdn_attention_core import cases as layer
from properties.shared.strategies import choices, common

SLOTS = 4  # fewer than requests, so that slots are used again
LONGEST = 160  # tokens of a request
DECODE, FINISH = 0, -1
Action = tuple[int, int]
"""A request, and what it does in a step: prefill so many tokens, DECODE one, or FINISH. What is impossible (decoding before a
prefill, a fifth request) is left out, so that any list of actions is a trial."""


@dataclass(frozen=True, kw_only=True)
class GdnServingCase(layer.GdnCase):
    """A layer and the steps of its serving; the batch fields of GdnCase follow from the steps."""

    steps: tuple[tuple[Action, ...], ...] = (((0, 1),),)


@dataclass
class _Request:
    """What one life of a request has seen: how much of its token stream, and the outputs for it."""

    number: int
    slot: int
    seen: int = 0
    outputs: list[Tensor] = field(default_factory=list)
    allowed: list[Tensor] = field(default_factory=list)
    """How far each of them may be from the truth of the whole,"""
    error: Tensor | None = None
    """and columns [HV, V] of the state."""


@dataclass
class _Step:
    """One call: decodes first, then prefills with their lengths; requests that finish after it."""

    decodes: list[_Request]
    prefills: list[tuple[_Request, int]]
    finished: list[_Request]

    @property
    def work(self) -> list[tuple[_Request, int]]:
        return [(request, 1) for request in self.decodes] + self.prefills


def _schedule(case: GdnServingCase) -> Iterator[_Step]:
    """The possible actions of each step, with slots given to new requests. `seen` is the caller's to advance."""
    free = permutation(case.seed, "serving slots", SLOTS).tolist()
    alive: dict[int, _Request] = {}
    for actions in case.steps:
        step = _Step([], [], [])
        for number, what in {number: what for number, what in reversed(actions)}.items():
            request = alive.get(number)
            if what == FINISH and request is not None:
                step.finished.append(alive.pop(number))
            elif what > 0 and (request is not None or free) and (request.seen if request else 0) + what <= LONGEST:
                request = alive.setdefault(number, request or _Request(number, free.pop()))
                step.prefills.append((request, what))
            elif what == DECODE and request is not None and request.seen < LONGEST:
                step.decodes.append(request)
        free += [request.slot for request in step.finished]
        yield step


def _stream(case: GdnServingCase, number: int) -> Inputs:
    """All tokens that a request may ever have."""
    one = replace(case, seed=case.seed + 1 + number)
    dtype = getattr(torch, case.dtype)
    return {
        "mixed_qkv": layer.mixed(one, "mixed", LONGEST)[:, 0],
        "a": uniform(one.seed, "a", (LONGEST, case.heads), dtype, 3.0),
        "b": uniform(one.seed, "b", (LONGEST, case.heads), dtype, 4.0),
    }


def _batch_of(case: GdnServingCase, step: _Step) -> layer.GdnCase:
    """The step as a case of the layer."""
    values = {spec.name: getattr(case, spec.name) for spec in fields(layer.GdnCase)}
    values |= {
        "decodes": len(step.decodes),
        "prefills": tuple(length for _, length in step.prefills),
        "cold": tuple(n for n, (request, _) in enumerate(step.prefills) if request.seen == 0),
    }
    return layer.GdnCase(**values)


def _call_of(case: GdnServingCase, step: _Step) -> tuple[layer.GdnCase, Inputs]:
    """The step as a case of the layer, and its arguments but the pools."""
    batch = _batch_of(case, step)
    given = layer.batch(batch)
    given["state_indices"] = torch.tensor([request.slot for request, _ in step.work], dtype=torch.long)
    streams = [_stream(case, request.number) for request, _ in step.work]
    rows = [slice(request.seen, request.seen + length) for request, length in step.work]
    dtype = getattr(torch, case.dtype)
    for name, width in (("mixed_qkv", case.dim), ("a", case.heads), ("b", case.heads)):
        given[name] = torch.cat([torch.empty(0, width, dtype=dtype), *(s[name][part] for s, part in zip(streams, rows))])
    given["core_attn_out"] = poison(case.poison, (sum(length for _, length in step.work), case.heads, case.V), dtype)
    return batch, given | layer.parameters(case) | layer.scalars(case)


def _poisoned_pools(case: GdnServingCase) -> tuple[Tensor, Tensor]:
    conv, ssm = layer.pools(case, SLOTS)
    return poison(case.poison, tuple(conv.shape), conv.dtype), poison(case.poison, tuple(ssm.shape), ssm.dtype)


def _one_token(case: GdnServingCase) -> _Step:
    return _Step([], [(_Request(0, 0), 1)], [])


def first_call(case: GdnServingCase) -> Inputs:
    """Arguments of the trial's own call, a prefill of one token."""
    _, given = _call_of(case, _one_token(case))
    given["conv_state"], given["ssm_state"] = _poisoned_pools(case)
    return given


OPTIONS = {
    "dtype": ("float32", "bfloat16", "float16"),
    "key_heads": (1, 2),
    "group": (1, 2),
    "K": (16, 20, 32),
    "V": (16, 32, 24),
    "width": (4, 2),
    "conv_layout": ("SD", "DS"),
    "state_layout": ("vk", "kv"),
    "state": ("float32", "float32", "bfloat16"),
    "bias": ("none", "float32", "call"),
    "parameters_float32": (True, False),
    "silu": (True, False),
    "l2norm": (True, False),
    "size": (1.0, 30.0),
}
ACTIONS = (1, DECODE, DECODE, DECODE, 2, 3, 17, 64, FINISH)


@st.composite
def strategy(draw: st.DrawFn) -> GdnServingCase:
    """A layer and up to eight steps of up to four actions."""
    step = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(ACTIONS)), min_size=1, max_size=4).map(tuple)
    steps = draw(st.lists(step, min_size=1, max_size=8).map(tuple), label="steps")
    return GdnServingCase(steps=steps, **draw(choices(OPTIONS)), **draw(st.fixed_dictionaries(common({}, ()))))


def layer_case(case: layer.GdnCase) -> layer.GdnCase:
    """The layer's case of the trial's own call; the calls of the steps pass theirs themselves."""
    return _batch_of(case, _one_token(case)) if isinstance(case, GdnServingCase) else case


def _possible(case: GdnServingCase) -> tuple[int, int, int]:
    """Decodes, continued prefills and finishes in the case's steps."""
    decodes = continued = finished = 0
    for step in _schedule(case):
        decodes, finished = decodes + len(step.decodes), finished + len(step.finished)
        continued += sum(request.seen > 0 for request, _ in step.prefills)
        for request, length in step.work:
            request.seen += length
    return decodes, continued, finished


EDGES: dict[str, Callable[[Any], bool]] = {
    "decodes": lambda case: _possible(case)[0] > 0,
    "continued prefills": lambda case: _possible(case)[1] > 0,
    "finished requests": lambda case: _possible(case)[2] > 0,
    "float32 states": lambda case: case.state == "float32",
}
