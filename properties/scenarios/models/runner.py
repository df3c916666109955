"""Serves the layers of a model, each alone on the activations that it is given: prompts in chunks, then decodes."""

from typing import Any

import torch
from torch import Tensor

import optimized.backends.experts
import optimized.backends.linear
import optimized.fused_moe
import reference.backends.experts
import reference.backends.linear
import reference.fused_moe
from properties.scenarios.models.cases import (
    FAMILIES,
    LATENT,
    LIBRARY_EPS,
    LONGEST,
    MLA_PAGE,
    WINDOW,
    ModelCase,
    Span,
    absorbed,
    by_mode,
    columns,
    encoder_lens,
    page_of,
    schedule,
    totals,
    windowed,
)
from properties.scenarios.models.experts import run_experts
from properties.scenarios.models.quantized import BLOCK
from properties.scenarios.serving.judge import REFERENCE
from properties.scenarios.serving.server import Side
from properties.scenarios.serving.sides import OPTIMIZED
from serving import AttentionLayer, ForwardBatch, GdnLayer, KVPool, MlaProjections, RequestPool, StatePool

UNASKED = "unasked"  # an output of each latent layer: how many bytes of its pool and its activations changed that were not to
ASKED_EACH = 3  # steps, of which one is also made without storing


class ModelRunner:
    """One model's layers on one side."""

    def __init__(self, case: ModelCase, side: Side, scales: list[tuple[float, float]], tensors: dict[str, Tensor]) -> None:
        self.case, self.side, self.scales, self.tensors = case, side, scales, tensors
        latent = self.latent = absorbed(case)
        self.page = page_of(case)
        requests = len(case.prompts)
        width = columns(case, self.page)
        self.table = torch.zeros(requests, width, dtype=torch.int32)
        self.slots = requests * -(-width // self.page) * self.page
        self.pool = RequestPool(self.table, self.slots // self.page, self.page)
        self.encoder = encoder_lens(case)
        self.rows = [self.pool.arrive(length) for length in self.encoder]
        self.starts = torch.tensor([0, *totals(case)]).cumsum(0).tolist()
        self.layers = [self._layer(n, kind) for n, kind in enumerate(FAMILIES[case.family].kinds)]
        attention = [layer for layer in self.layers if isinstance(layer, AttentionLayer)]
        self.prefill, self.decode = self._backends(attention, latent)
        self.recurrent = side.gdn(
            [layer for layer in self.layers if isinstance(layer, GdnLayer)],
            {layer.layer_id: self._state(layer) for layer in self.layers if isinstance(layer, GdnLayer)},
        )
        ups = {n: (layer, MlaProjections(tensors[f"up_k{n}"], tensors[f"up_v{n}"]))
               for n, layer in enumerate(self.layers) if by_mode(case) and isinstance(layer, AttentionLayer)}  # fmt: skip
        self.latents = side.latent(self.prefill, self.decode, ups)
        self.outputs: dict[int, Tensor] = {}
        self.unasked: dict[int, int] = {}

    def _layer(self, n: int, kind: str) -> AttentionLayer | GdnLayer:
        if kind == "gdn":
            return self._recurrent(n)
        q, k = self.tensors[f"q{n}"], self.tensors[f"k{n}"]
        latent = kind == "latent" and self.latent
        width = LATENT if latent else self.tensors[f"v{n}"].shape[2]
        return AttentionLayer(
            n, q.shape[1], k.shape[1], k.shape[2], width, self.scales[n][0], self.scales[n][1],
            sliding_window=WINDOW - 1 if kind == "window" or (latent and windowed(self.case)) else -1, is_cross=kind == "cross",
            latent=latent, sinks=self.tensors.get(f"sinks{n}"),
        )

    def _recurrent(self, n: int) -> GdnLayer:
        weight, heads = self.tensors[f"conv{n}"], self.tensors[f"a{n}"].shape[1]
        width = weight.shape[0] // (2 + heads)  # one key head, and widths that are all equal
        A_log, dt_bias = self.tensors[f"A_log{n}"], self.tensors[f"dt_bias{n}"]
        return GdnLayer(n, 1, width, heads, width, self.side.conv_weight.pack(weight), None, A_log, dt_bias, eps=LIBRARY_EPS)

    def _state(self, layer: GdnLayer) -> StatePool:
        """States that hold NaN: a request starts from zeros whatever it finds."""
        weight = self.tensors[f"conv{layer.layer_id}"]
        conv = torch.full((len(self.rows), weight.shape[-1] - 1, weight.shape[0]), torch.nan, dtype=weight.dtype)
        return StatePool(conv, torch.full((len(self.rows), layer.num_v_heads, layer.head_v_dim, layer.head_k_dim), torch.nan))

    def _backends(self, layers: list[AttentionLayer], latent: bool) -> tuple[Any, Any]:
        pools = {}
        for layer in layers:
            dtype = self.tensors[f"q{layer.layer_id}"].dtype
            k = torch.full((self.slots, layer.kv_heads, layer.head_dim), torch.nan, dtype=dtype)
            v = torch.full((self.slots, layer.kv_heads, layer.v_head_dim), torch.nan, dtype=dtype)
            pools[layer.layer_id] = KVPool(k, k[..., : layer.v_head_dim] if layer.latent else v)
        if self.case.paged and (not latent or self.case.pages_alone):
            paged = self.side.paged(layers, pools, self.table, **({} if self.page == 1 else {"page_size": self.page}))
            return paged, paged
        slot = self.side.slot(layers, pools, self.table)
        if not self.case.paged:
            return slot, slot
        sizes = {} if self.page == MLA_PAGE else {"page_size": self.page}
        return slot, self.side.mla(layers, pools, self.table, **sizes, max_context_len=LONGEST)

    def run(self) -> dict[str, Tensor]:
        """Every step of the schedule; `out<n>` is layer n's attention of all tokens, request by request."""
        for step, (mode, spans) in enumerate(schedule(self.case)):
            self.pool.grow([self.rows[r] for r, _, _ in spans], [start + count for _, start, count in spans])
            batch = self._batch(mode, spans)
            attention = self.decode if mode == "decode" else self.prefill
            if any(isinstance(layer, AttentionLayer) for layer in self.layers):
                attention.prepare(batch)
            if any(isinstance(layer, GdnLayer) for layer in self.layers):
                self.recurrent.prepare(batch)
            tokens = torch.cat([torch.arange(count) + self.starts[r] + start for r, start, count in spans])
            for layer in self.layers:
                if layer.layer_id in self.latents.layers:
                    q, rows = (self.tensors[f"{name}{layer.layer_id}"][tokens] for name in "qk")
                    assert isinstance(layer, AttentionLayer)
                    if (self.case.seed + step) % ASKED_EACH == 0:
                        self._without_storing(q, rows, layer, batch)
                    out = self.latents.forward(q, rows, layer, batch)
                    self._count_changes(layer, tokens, q, rows)
                else:
                    backend = attention if isinstance(layer, AttentionLayer) else self.recurrent
                    forward = backend.forward_decode if mode == "decode" else backend.forward_extend
                    out = forward(*self._inputs(layer, tokens, spans), layer, batch)
                every = self.outputs.setdefault(layer.layer_id, out.new_full((self.starts[-1], *out.shape[1:]), torch.nan))
                every[tokens] = out
        changed = {f"{UNASKED}{n}": torch.tensor(count) for n, count in self.unasked.items()}
        return {f"out{n}": out for n, out in self.outputs.items()} | changed

    def _without_storing(self, q: Tensor, rows: Tensor, layer: AttentionLayer, batch: ForwardBatch) -> None:
        """A latent layer's step that is asked not to store: count what the pool has changed in."""
        pool = self.latents.prefill.pools[layer.layer_id].k
        before = pool.view(torch.uint8).clone()
        self.latents.forward(q, rows, layer, batch, save_kv_cache=False)
        self._add_unasked(layer, int((pool.view(torch.uint8) != before).sum()))

    def _count_changes(self, layer: AttentionLayer, tokens: Tensor, q: Tensor, rows: Tensor) -> None:
        """What a step has changed of the activations that it was given."""
        for name, now in (("q", q), ("k", rows)):
            had = self.tensors[f"{name}{layer.layer_id}"][tokens]
            self._add_unasked(layer, int((now.contiguous().view(torch.uint8) != had.contiguous().view(torch.uint8)).sum()))

    def _add_unasked(self, layer: AttentionLayer, count: int) -> None:
        self.unasked[layer.layer_id] = self.unasked.get(layer.layer_id, 0) + count

    def _batch(self, mode: str, spans: tuple[Span, ...]) -> ForwardBatch:
        rows = torch.tensor([self.rows[r] for r, _, _ in spans])
        encoding = [r for r, start, _ in spans if start == 0 and self.encoder[r]]
        return ForwardBatch(
            mode, rows, torch.tensor([start + count for _, start, count in spans]),
            torch.cat([self.pool.locations(self.rows[r], start, count) for r, start, count in spans]),
            extend_seq_lens=torch.tensor([count for _, _, count in spans]) if mode == "extend" else None,
            encoder_lens=torch.tensor([self.encoder[r] for r, _, _ in spans]) if self.case.family == "mllama" else None,
            encoder_out_cache_loc=torch.cat([self.pool.encoder_locations(self.rows[r]) for r in encoding]) if encoding else None,
            state_indices=rows,
        )

    def _inputs(self, layer: AttentionLayer | GdnLayer, tokens: Tensor, spans: tuple[Span, ...]) -> list[Tensor | None]:
        n = layer.layer_id
        if isinstance(layer, GdnLayer):
            return [self.tensors[f"{name}{n}"][tokens] for name in ("mixed_qkv", "a", "b")]
        q, k = self.tensors[f"q{n}"], self.tensors[f"k{n}"]
        v = k[..., : layer.v_head_dim] if layer.latent else self.tensors[f"v{n}"]
        if not layer.is_cross:
            return [q[tokens], k[tokens], v[tokens]]
        ends = torch.tensor([0, *self.encoder]).cumsum(0).tolist()
        new = [torch.arange(ends[r], ends[r + 1]) for r, start, _ in spans if start == 0 and self.encoder[r]]
        return [q[tokens], k[torch.cat(new)], v[torch.cat(new)]] if new else [q[tokens], None, None]


def _linears(module: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every linear module on its own input; weight and scales are the caller's again before."""
    found = {}
    for i in range(sum(name[0] == "w" for name in tensors)):
        bias = tensors.get(f"bias{i}")
        lent = {name: tensors[f"{name}{i}"].clone() for name in ("w", "scale") if f"{name}{i}" in tensors}
        layer = linear_of(module, lent["w"], bias, lent.get("scale"))
        for tensor in lent.values():
            tensor.zero_()
        found[f"linear{i}"] = layer(tensors[f"x{i}"])
    return found


def linear_of(module: Any, weight: Tensor, bias: Tensor | None, scale: Tensor | None) -> Any:
    """A side's layer for a weight, or for codes and scales."""
    if scale is not None:
        kinds = {torch.int8: (module.Int8Linear, ()), torch.float8_e4m3fn: (module.Fp8Linear, (BLOCK,))}
        layer, more = kinds[weight.dtype]
        return layer(weight, scale, *more, bias)
    linear = module.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    linear.load(weight, bias)
    return linear


def serve_reference(case: ModelCase, scales: list[tuple[float, float]], **tensors: Tensor) -> dict[str, Tensor]:
    """Run each attention layer, linear module and block of experts of a model alone, with the reference backends."""
    experts = run_experts(case, reference.backends.experts, reference.fused_moe, tensors)
    return ModelRunner(case, REFERENCE, scales, tensors).run() | _linears(reference.backends.linear, tensors) | experts


def serve_optimized(case: ModelCase, scales: list[tuple[float, float]], **tensors: Tensor) -> dict[str, Tensor]:
    """The same with the optimized backends."""
    experts = run_experts(case, optimized.backends.experts, optimized.fused_moe, tensors)
    return ModelRunner(case, OPTIMIZED, scales, tensors).run() | _linears(optimized.backends.linear, tensors) | experts
