"""A whole decoder with experts of our own layers alone: norms that add the residual, rotary embedding, linear modules, attention
over our backends, and experts; of the library's model it takes the weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import optimized.backends.experts
import optimized.backends.linear
import optimized.fused_moe
from optimized.operators import operator
from properties.scenarios.models.cases import ModelCase
from properties.scenarios.models.experts import block_parts, layer_of
from properties.scenarios.models.runner import linear_of

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, queries [T, H, D], keys and values [T, Hkv, D] -> [T, H, D]."""


class Decoder:
    """qwen3_moe: norm, attention, norm, experts, each norm with the sum of what came before it."""

    def __init__(self, case: ModelCase, model: Any, attend: Attend) -> None:
        self.model, self.attend = model.model, attend
        self.norm, self.rotate = operator("rms_norm"), operator("rotary_embedding")
        self.linear = {module: _linear(module) for module in model.modules() if type(module) is torch.nn.Linear}
        sides = optimized.backends.experts, optimized.fused_moe
        self.experts = {layer: layer_of(case, *sides, block_parts(layer.mlp)) for layer in self.model.layers}
        self.head = model.lm_head
        positions = torch.arange(model.config.max_position_embeddings)[None]
        angles = self.model.rotary_emb(torch.zeros(1), positions)  # of each pair twice, in halves
        self.table = torch.cat([half[0].chunk(2, dim=-1)[0] for half in angles], dim=-1)

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [T, vocabulary] of tokens [T]."""
        x, residual = self.model.embed_tokens(ids), None
        for n, layer in enumerate(self.model.layers):
            x, residual = self._normed(layer.input_layernorm, x, residual)
            attended = self._attention(n, layer.self_attn, x, positions)
            x, residual = self._normed(layer.post_attention_layernorm, attended, residual)
            x = self.experts[layer](x)
        return self.linear[self.head](self._normed(self.model.norm, x, residual)[0])

    def _normed(self, norm: Any, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of x and of what runs past the layers, summed; and the sum, which runs on."""
        if residual is None:
            return self.norm(x, norm.weight, norm.variance_epsilon), x.clone()
        return self.norm(x, norm.weight, norm.variance_epsilon, residual), residual

    def _attention(self, n: int, about: Any, x: Tensor, positions: Tensor) -> Tensor:
        projections = about.q_proj, about.k_proj, about.v_proj
        q, k, v = (self.linear[part](x).unflatten(-1, (-1, about.head_dim)) for part in projections)
        q, k = (self.norm(heads, norm.weight, norm.variance_epsilon) for heads, norm in ((q, about.q_norm), (k, about.k_norm)))
        self.rotate(positions, q, k, self.table.to(q.dtype))
        return self.linear[about.o_proj](self.attend(n, q, k, v).flatten(1))


def _linear(module: Any) -> Any:
    codes, scale = getattr(module, "quantized", (module.weight, None))
    return linear_of(optimized.backends.linear, codes, module.bias, scale)
