"""Decode steps that are recorded once and replayed: one graph of operator calls for each size of batch."""

import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import graph_module
from torch.fx.experimental.proxy_tensor import make_fx

from serving import DECODE_MODES, AttentionLayer, ForwardBatch, GdnLayer

RECORDING = Lock()  # tracing patches torch.nn.Module for the time that it lasts, in all threads
Activations = Sequence[Tensor | None]
Key = tuple[str, int, int, bool, bool, tuple[tuple[int, tuple[bool, ...]], ...]]
"""Mode, size and draft step, whether slots and the encoder's lengths are given, and each layer with which of its activations
are: all that decides which tensors a graph reads."""


class RecordedDecode:
    """All layers of a decode, over the static buffers of backends: a graph is recorded when a size first comes, from a batch
    in which every request is a pad, so that recording stores nothing. A replay refreshes the buffers and runs the graph;
    nothing of the backends' Python runs, and what it found out while it was recorded must hold for every batch of that size.

        recorded = RecordedDecode({0: backend, 1: backend}, {0: layer_0, 1: layer_1})
        outs = recorded.decode({0: (q, k, v), 1: (q, k, v)}, batch)  # the batch has a padded_size

    `compiler`, such as torch.compile, compiles the graph that is run.
    """

    def __init__(
        self, backends: Mapping[int, Any], layers: Mapping[int, AttentionLayer | GdnLayer],
        compiler: Callable[[fx.GraphModule], Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        self.backends, self.layers, self.compiler = backends, layers, compiler
        self.graphs: dict[Key, Callable[..., Any]] = {}
        self._inputs: dict[Key, list[Tensor]] = {}

    def decode(self, activations: Mapping[int, Activations], batch: ForwardBatch) -> dict[int, Tensor]:
        """Outputs of the layers that have activations, in their order; rows of padded requests are 0. ValueError for a mode
        or a batch without static buffers, for a wrongly long location, or for activations of another shape than those that were
        recorded."""
        if batch.padded_size is None or batch.mode not in DECODE_MODES:
            raise ValueError(f"mode {batch.mode!r}, padded_size {batch.padded_size}: only decodes of a padded size are recorded")
        loc = batch.out_cache_loc  # a layer refuses a wrong one, but in a replay no layer's Python runs
        if loc is not None and list(loc.shape) != [batch.size]:
            raise ValueError(f"out_cache_loc must have shape {[batch.size]}, got {list(loc.shape)}")
        given = tuple((n, tuple(value is not None for value in values)) for n, values in activations.items())
        step, has = batch.speculative_step_id, (loc is not None, batch.encoder_lens is not None)
        key = batch.mode, batch.padded_size, step, *has, given
        if key not in self.graphs:
            self._record(key, activations, batch)
        self._check(key, activations)
        self._prepare(activations, batch)
        for held, value in zip(self._inputs[key], _present(activations), strict=True):
            held.copy_(value)
        return dict(zip(activations, self.graphs[key](*self._inputs[key]), strict=True))

    def _check(self, key: Key, activations: Mapping[int, Activations]) -> None:
        """Before a backend is prepared: a draft would go on with the metadata of what is refused."""
        for held, value in zip(self._inputs[key], _present(activations), strict=True):
            if held.shape != value.shape or held.dtype != value.dtype:
                recorded = f"{list(held.shape)} of {held.dtype}"
                raise ValueError(f"activations: {list(value.shape)} of {value.dtype} for what was recorded as {recorded}")

    def _prepare(self, activations: Mapping[int, Activations], batch: ForwardBatch) -> None:
        for backend in {id(self.backends[n]): self.backends[n] for n in activations}.values():
            backend.prepare(batch)

    def _record(self, key: Key, activations: Mapping[int, Activations], batch: ForwardBatch) -> None:
        empty = _without_requests(batch)
        self._prepare(activations, empty)
        inputs = [torch.zeros(value.shape, dtype=value.dtype) for value in _present(activations)]

        def step(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            outs = []
            for n, values in activations.items():
                q, k, v = (None if value is None else next(rest) for value in values)
                outs.append(self.backends[n].forward_decode(q, k, v, self.layers[n], empty))
            return outs

        with RECORDING:
            graph = make_fx(step)(*inputs)
        weakref.finalize(graph, _forget_source, graph.forward.__code__.co_filename)
        self.graphs[key] = graph if self.compiler is None else self.compiler(graph)
        self._inputs[key] = inputs


def _forget_source(name: str) -> None:
    """Forget the source of a graph that is gone: torch.fx would keep it, for tracebacks, as long as the process lives."""
    linecache.cache.pop(name, None)
    graph_module._loader.eval_cache.pop(name, None)


def _present(activations: Mapping[int, Activations]) -> list[Tensor]:
    return [value for values in activations.values() for value in values if value is not None]


def _without_requests(batch: ForwardBatch) -> ForwardBatch:
    """A batch of the same size and kind in which every request is a pad."""
    none = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(
        batch.mode, none, none, none if batch.out_cache_loc is not None else None,
        encoder_lens=none if batch.encoder_lens is not None else None,
        state_indices=none if batch.state_indices is not None else None,
        speculative_step_id=batch.speculative_step_id, num_draft_tokens=batch.num_draft_tokens, padded_size=batch.padded_size,
    )  # fmt: skip
