"""What cross attention is given of a picture at its real size: the states of the library's vision tower, random and narrow, but
with every patch of one tile."""

from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor

from kernelpair.call.values import generator
from properties.scenarios.models.cases import HIDDEN, VISION_TOKENS

SIDE, PATCH = 560, 14  # pixels of a tile and of a patch: 40 x 40 patches and the class token
OPTIONS = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2, "intermediate_size": 32,
    "vision_output_dim": 64, "image_size": SIDE, "patch_size": PATCH, "max_num_tiles": 1, "intermediate_layers_indices": [0],
    "supported_aspect_ratios": [[1, 1]],
}  # fmt: skip


@lru_cache(maxsize=16)
def vision_states(seed: int, number: int, dtype_name: str) -> Tensor:
    """[1601, hidden]: the projected states of a picture of noise, of root mean square 1."""
    configuration = import_module("transformers.models.mllama.configuration_mllama")
    modeling = import_module("transformers.models.mllama.modeling_mllama")
    model = modeling.MllamaVisionModel(configuration.MllamaVisionConfig(**OPTIONS)).eval()
    rng, pixels = torch.Generator().manual_seed(seed), generator(seed, f"pixels{number}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat = name.endswith(("norm.weight", "layernorm_pre.weight", "layernorm_post.weight"))
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * (0.2 if flat else 0.1) + (1.0 if flat else 0.0))
        picture = torch.from_numpy(pixels.standard_normal((1, 1, 1, 3, SIDE, SIDE), dtype="float32"))
        one = torch.ones(1, 1, dtype=torch.int64)
        states = model(picture, one, one[..., None])[0][0, 0, 0]
        projected = states @ torch.randn(states.shape[1], HIDDEN, generator=rng)
    assert len(projected) == VISION_TOKENS, list(projected.shape)
    dtype: torch.dtype = getattr(torch, dtype_name)
    return (projected / projected.square().mean().sqrt()).to(dtype)
