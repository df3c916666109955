"""A whole model over our backends: the library's own modules, with their attention, recurrent layers, linear modules and experts
replaced by ours; of qwen3_moe our own decoder. How far its logits are from the library's is reported and not judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import optimized.backends.experts
import optimized.backends.linear
import optimized.fused_moe
from properties.scenarios.models.cases import ROUTINGS, ModelCase, Span, encoder_lens, schedule
from properties.scenarios.models.decoder import Decoder
from properties.scenarios.models.experts import block_parts, layer_of
from properties.scenarios.models.oracle import RECORDER, images, model_of, record, run_alone, tokens
from properties.scenarios.models.runner import ModelRunner, linear_of
from properties.scenarios.serving.sides import OPTIMIZED
from serving import AttentionLayer

SERVER = "kernelpair_server"


@dataclass(frozen=True)
class Whole:
    """Largest difference of a logit over the largest logit, and the share of tokens whose likeliest successor is the same."""

    distance: float
    agreement: float
    rounding: float | None = None
    """With 16 bits: how far our logits are from a float32 run of the same weights, over how far the library's are; both as root
    mean squares."""

    def __str__(self) -> str:
        says = f"logits differ by {self.distance:.2g} of the largest, {self.agreement:.1%} of greedy tokens agree"
        if self.rounding is not None:
            says += f", {self.rounding:.3g} times as far from float32 as the library"
        return f"end to end (reported, not judged): {says}"


class _Served(ModelRunner):
    """The runner's slots and backends for a whole model: each step goes through all layers, on their own activations."""

    def __init__(self, case: ModelCase, scales: list[tuple[float, float]], tensors: dict[str, Tensor]) -> None:
        super().__init__(case, OPTIMIZED, scales, tensors)
        self.mode, self.spans = "extend", ()  # type: tuple[str, tuple[Span, ...]]

    def begin(self, mode: str, spans: tuple[Span, ...]) -> None:
        """Make room for a step, and prepare its batch."""
        self.pool.grow([self.rows[r] for r, _, _ in spans], [start + count for _, start, count in spans])
        self.mode, self.spans, self.batch = mode, spans, self._batch(mode, spans)
        self.attention = self.decode if mode == "decode" else self.prefill
        self.attention.prepare(self.batch)
        if any(not isinstance(layer, AttentionLayer) for layer in self.layers):
            self.recurrent.prepare(self.batch)

    def attend(self, n: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        layer = self.layers[n]
        backend = self.attention if isinstance(layer, AttentionLayer) else self.recurrent
        forward = backend.forward_decode if self.mode == "decode" else backend.forward_extend
        return forward(q, k, v, layer, self.batch)


_server: list[_Served] = []


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> tuple[Tensor, None]:
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    layer = _server[-1].layers[module.layer_idx]
    if isinstance(layer, AttentionLayer) and layer.is_cross and _server[-1].batch.encoder_out_cache_loc is None:
        return _server[-1].attend(module.layer_idx, q, None, None)[None], None
    return _server[-1].attend(module.layer_idx, q, k, v)[None], None


def _recurrent(module: Any) -> Any:
    """The library's gated delta net around our core."""

    def forward(hidden_states: Tensor, **_: Any) -> Tensor:
        projected = module.in_proj_qkvz(hidden_states), module.in_proj_ba(hidden_states)
        q, k, v, z, b, a = module.fix_query_key_value_ordering(*projected)
        mixed = torch.cat([x.flatten(2) for x in (q, k, v)], dim=-1)[0]
        out = _server[-1].attend(module.layer_idx, mixed, a[0].contiguous(), b[0].contiguous())
        normed = module.norm(out.reshape(-1, out.shape[-1]), z.reshape(-1, z.shape[-1]))
        return module.out_proj(normed.reshape(1, len(out), -1))

    return forward


@contextmanager
def _replaced(case: ModelCase, model: Any) -> Iterator[None]:
    """The model with our attention, recurrent layers, linear modules and experts."""
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    if SERVER not in functions.valid_keys():
        functions.register(SERVER, _attention)
        masks.register(SERVER, lambda *_, **__: None)
    changed = []
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            codes, scale = getattr(module, "quantized", (module.weight, None))
            module.forward = linear_of(optimized.backends.linear, codes, module.bias, scale).__call__  # type: ignore[method-assign]
            changed.append(module)
        elif case.family in ROUTINGS and hasattr(module, "experts"):
            layer = layer_of(case, optimized.backends.experts, optimized.fused_moe, block_parts(module))
            module.forward = layer.__call__
            changed.append(module)
        elif hasattr(module, "in_proj_qkvz"):
            module.forward = _recurrent(module)
            changed.append(module)
    model.config._attn_implementation = SERVER
    try:
        yield
    finally:
        model.config._attn_implementation = RECORDER
        for module in changed:
            del module.forward


def end_to_end(case: ModelCase, scales: list[tuple[float, float]], tensors: dict[str, Tensor]) -> Whole:
    """Serve the requests of a case through the whole model, and compare with the library's run of each alone."""
    theirs, model, ids, shown = record(case).logits, model_of(case), tokens(case), images(case)
    served, ours = _Served(case, scales, tensors), [[] for _ in ids]  # type: _Served, list[list[Tensor]]
    with torch.no_grad():
        _server.append(served)
        try:
            with _replaced(case, model):
                whole = Decoder(case, model, served.attend) if case.family == "qwen3_moe" else model
                for mode, spans in schedule(case):
                    served.begin(mode, spans)
                    logits = _step(case, whole, ids, shown, spans)
                    for (r, _, _), part in zip(spans, logits.split([count for _, _, count in spans])):
                        ours[r].append(part)
        finally:
            _server.pop()
    got, expected = torch.cat([part for one in ours for part in one]).double(), torch.cat(theirs).double()
    agreement = float((got.argmax(-1) == expected.argmax(-1)).double().mean())
    return Whole(float((got - expected).abs().max() / expected.abs().max()), agreement, _rounding(case, got, expected))


def _rounding(case: ModelCase, got: Tensor, expected: Tensor) -> float | None:
    if case.dtype == "float32":
        return None
    exact = torch.cat(run_alone(case, deepcopy(model_of(case)).float()).logits).double()
    ours, theirs = (float((logits - exact).square().mean().sqrt()) for logits in (got, expected))
    return ours / theirs


def _step(case: ModelCase, model: Any, ids: list[Tensor], shown: list[Tensor], spans: tuple[Span, ...]) -> Tensor:
    given = torch.cat([ids[r][start : start + count] for r, start, count in spans])
    positions = torch.cat([torch.arange(start, start + count) for _, start, count in spans])
    if isinstance(model, Decoder):
        return model(given, positions)
    more: dict[str, Any] = {}
    if case.family == "mllama":
        new = [shown[r] for r, start, _ in spans if start == 0 and len(shown[r])]
        states = torch.cat(new) if new else shown[0].new_zeros(1, model.config.hidden_size)
        has = torch.tensor([float(encoder_lens(case)[r] > 0) for r, _, count in spans for _ in range(count)])
        more = {"cross_attention_states": states[None],
                "full_text_row_masked_out_mask": has[None, None, :, None].to(states.dtype)}  # fmt: skip
    return model(input_ids=given[None], position_ids=positions[None], use_cache=False, **more).logits[0]
