"""What the outside library computes: its activations at every layer of a run of each request alone, and its own functions
evaluated on those in float64. The library is imported when the first case is built."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import generator
from properties.scenarios.models.cases import (
    FAMILIES,
    HIDDEN,
    ROUTINGS,
    SHARED,
    VISION_TOKENS,
    VOCABULARY,
    WINDOW,
    ModelCase,
    encoder_lens,
    totals,
)
from properties.scenarios.models.quantized import quantize_modules
from properties.scenarios.models.vision import vision_states

RECORDER = "kernelpair_recorder"


@dataclass
class Recorded:
    """Of each layer, and of each linear module: what went in and what the library's function gives in float64."""

    attention: dict[int, dict[str, Any]] = field(default_factory=dict)
    """q [T, H, D], k, v of all requests, `truth` [T, H, Dv] in float64, scale, cap, sinks; of latent layers also their `latents`,
    `up_k`, `up_v`, the `absorbed` truth, and the `windowed` one, where each query sees WINDOW keys; of recurrent ones mixed_qkv,
    a, b, `truth` in the library's precision, and parameters."""
    linear: dict[str, dict[str, Any]] = field(default_factory=dict)
    """weight, bias, x, and what it is packed of where it is quantized."""
    experts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The library's block of experts, `block`, and x."""
    order: dict[int | str, int] = field(default_factory=dict)
    """Attention layers by number and linear modules by name -> when they first came to run."""
    logits: list[Tensor] = field(default_factory=list)
    """Of each request."""

    def note(self, place: int | str) -> None:
        self.order.setdefault(place, len(self.order))


@lru_cache(maxsize=8)
def _model(family: str, seed: int, dtype_name: str, weights: str) -> Any:
    about = FAMILIES[family]
    module = import_module(f"transformers.models.{about.module}")
    package = about.module.partition(".")[0]
    config_module = import_module(f"transformers.models.{package}.configuration_{package}")
    _register()
    options = {**SHARED, **about.options, "num_hidden_layers": len(about.kinds)}
    config = getattr(config_module, about.config)(**options)
    config._attn_implementation, config._experts_implementation = RECORDER, "eager"  # which float64 can run
    model = getattr(module, about.model)(config).eval()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.5 if name.endswith(("sinks", "gate", "norm.weight", "layernorm.weight", "bias")) else HIDDEN**-0.5
            if name.endswith("A_log"):
                parameter.copy_(torch.rand(parameter.shape, generator=rng))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * spread)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=rng) * 0.2)
        if weights:
            quantize_modules(model, weights, rng)
    model.to(getattr(torch, dtype_name))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def _register() -> None:
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils")
    if RECORDER not in functions.valid_keys():
        import_module("transformers.utils.logging").set_verbosity_error()  # it advises on training and on faster kernels
        functions.register(RECORDER, _record_attention)
        masks.ALL_MASK_ATTENTION_FUNCTIONS.register(RECORDER, masks.eager_mask)


_into: list[Recorded] = []  # where a run records


def _record_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """The library's own attention function, as it is, and again in float64 for the record."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    result = eager(module, query, key, value, mask, **options)
    wide = eager(module, query.double(), key.double(), value.double(), None if mask is None else mask.double(), **options)[0]
    found = _into[-1].attention.setdefault(module.layer_idx, {"q": [], "k": [], "v": [], "truth": []})
    _into[-1].note(module.layer_idx)
    for name, tensor in (("q", query), ("k", key), ("v", value)):
        found[name].append(tensor[0].transpose(0, 1))
    found["truth"].append(wide[0])
    sinks = options.get("s_aux")
    found |= {"sm_scale": float(options["scaling"]), "logit_cap": float(options.get("softcap") or 0.0)}
    found["sinks"] = None if sinks is None else sinks.detach()
    if "latents" in found:
        found["absorbed"].append(_from_latents(eager, module, query, key, mask, found, options))
        narrow = _narrow(query.shape[2], mask)
        found["windowed"].append(_from_latents(eager, module, query, key, narrow, found, options))
    return result


def _narrow(total: int, mask: Tensor | None) -> Tensor:
    """A causal mask, added to scores, that also hides what lies WINDOW keys and more before a query."""
    hidden = torch.ones(total, total, dtype=torch.bool).tril(-WINDOW)[None, None]
    wide = torch.zeros(1, 1, total, total, dtype=torch.float64) if mask is None else mask.double()
    return wide.masked_fill(hidden, -torch.inf)


def _from_latents(
    eager: Any, module: Any, query: Tensor, key: Tensor, mask: Tensor | None, layer: dict[str, Any], options: dict[str, Any]
) -> Tensor:
    """The library's attention function in float64 on keys and values that are expanded from the latents in float64 too."""
    latents, wide = layer["latents"][-1].double(), key.double()
    wide[0, ..., : layer["up_k"].shape[1]] = torch.einsum("tl,hdl->htd", latents, layer["up_k"])
    value = torch.einsum("tl,hvl->htv", latents, layer["up_v"])[None]
    truth: Tensor = eager(module, query.double(), wide, value, None if mask is None else mask.double(), **options)[0][0]
    return truth


@contextmanager
def _hooks(model: Any, recorded: Recorded, of_experts: bool) -> Iterator[None]:
    """Record what every linear module and every recurrent layer is given and makes."""
    handles = []
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear:
            handles.append(module.register_forward_hook(_linear_hook(recorded, name)))
        if hasattr(module, "in_proj_qkvz"):
            handles += _recurrent_hooks(recorded, module)
        if of_experts and hasattr(module, "experts"):
            handles.append(module.register_forward_hook(_experts_hook(recorded, name)))
        if hasattr(module, "kv_b_proj"):
            handles.append(module.kv_a_layernorm.register_forward_hook(_latent_hook(recorded, module)))
    _into.append(recorded)
    try:
        yield
    finally:
        _into.pop()
        for handle in handles:
            handle.remove()


def _linear_hook(recorded: Recorded, name: str) -> Any:
    def hook(module: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        found = recorded.linear.setdefault(name, {"weight": module.weight, "bias": module.bias, "x": []})
        found["quantized"] = getattr(module, "quantized", None)
        recorded.note(name)
        found["x"].append(given[0].reshape(-1, given[0].shape[-1]))

    return hook


def _experts_hook(recorded: Recorded, name: str) -> Any:
    def hook(block: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        recorded.note(name)
        recorded.experts.setdefault(name, {"block": block, "x": []})["x"].append(given[0].reshape(-1, given[0].shape[-1]))

    return hook


def _recurrent_hooks(recorded: Recorded, module: Any) -> list[Any]:
    found = recorded.attention.setdefault(module.layer_idx, {"mixed_qkv": [], "a": [], "b": [], "truth": [], "qkvz": None})
    found |= {"conv": module.conv1d.weight, "A_log": module.A_log, "dt_bias": module.dt_bias}

    def projected(_: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        found["qkvz"] = out

    def gates(_: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        q, k, v, _z, b, a = module.fix_query_key_value_ordering(found["qkvz"], out)
        found["mixed_qkv"].append(torch.cat([x.flatten(2) for x in (q, k, v)], dim=-1)[0])
        found["a"].append(a[0])
        found["b"].append(b[0])

    def core(norm: Any, given: tuple[Tensor, ...]) -> None:
        recorded.note(module.layer_idx)
        found["truth"].append(given[0].reshape(-1, module.num_v_heads, module.head_v_dim).double())

    return [
        module.in_proj_qkvz.register_forward_hook(projected),
        module.in_proj_ba.register_forward_hook(gates),
        module.norm.register_forward_pre_hook(core),
    ]


def _latent_hook(recorded: Recorded, module: Any) -> Any:
    """The latents of a layer, as its cache would hold them: the keys' rotary part is that of the recorded keys."""

    def hook(_: Any, given: tuple[Tensor, ...], out: Tensor) -> None:
        found = recorded.attention.setdefault(module.layer_idx, {"q": [], "k": [], "v": [], "truth": []})
        found.setdefault("latents", []).append(out[0])
        found.setdefault("absorbed", [])
        found.setdefault("windowed", [])
        weight = module.kv_b_proj.weight.double().view(module.num_heads, -1, module.kv_lora_rank)
        found["up_k"], found["up_v"] = weight.split([module.qk_nope_head_dim, module.v_head_dim], dim=1)

    return hook


def tokens(case: ModelCase) -> list[Tensor]:
    """Token ids of each request."""
    rng = generator(case.seed, "tokens")
    return [torch.from_numpy(rng.integers(1, VOCABULARY, size=total)) for total in totals(case)]


def images(case: ModelCase) -> list[Tensor]:
    """Encoder states [n, hidden] of each request."""
    rng, dtype = generator(case.seed, "images"), getattr(torch, case.dtype)
    return [
        vision_states(case.seed % 3, r, case.dtype) if n == VISION_TOKENS
        else torch.from_numpy(rng.standard_normal((n, HIDDEN))).to(dtype)
        for r, n in enumerate(encoder_lens(case))
    ]  # fmt: skip


def model_of(case: ModelCase) -> Any:
    """The case's model, with random weights."""
    return _model(case.family, case.seed % 3, case.dtype, case.weights)


def run_alone(case: ModelCase, model: Any) -> Recorded:
    """The library's run of each request alone, with a model of the case's weights."""
    recorded, dtype = Recorded(), next(model.parameters()).dtype
    with torch.no_grad(), _hooks(model, recorded, case.family in ROUTINGS):
        for ids, image in zip(tokens(case), images(case)):
            more: dict[str, Any] = {}
            if len(image):
                shown = torch.zeros(1, 1, len(ids), len(image), dtype=dtype)  # added to scores: every token sees all
                more = {"cross_attention_states": image[None].to(dtype), "cross_attention_mask": shown}
            recorded.logits.append(model(input_ids=ids[None], use_cache=False, **more).logits[0])
    return recorded


@lru_cache(maxsize=4)
def _recorded(
    family: str, dtype: str, seed: int, prompts: tuple[int, ...], decodes: int, chunk: int, shown: tuple[int, ...], weights: str
) -> Recorded:
    case = ModelCase(  # what the library's run does not depend on is left out, so that one record serves many cases
        family=family, dtype=dtype, seed=seed, prompts=prompts, decodes=decodes, chunk=chunk, images=shown,  # type: ignore[arg-type]
        weights=weights,  # type: ignore[arg-type]
    )  # fmt: skip
    return run_alone(case, model_of(case))


def record(case: ModelCase) -> Recorded:
    """Everything of the library's run of each request alone."""
    return _recorded(case.family, case.dtype, case.seed, case.prompts, case.decodes, case.chunk, case.images, case.weights)
