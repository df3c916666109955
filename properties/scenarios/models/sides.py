"""models: the arguments of a case, both sides that carry it out, and its edges."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs
from properties.scenarios.models.cases import (
    FAMILIES,
    MLA_PAGE,
    ROUTINGS,
    VISION_TOKENS,
    WINDOW,
    ModelCase,
    absorbed,
    by_mode,
    encoder_lens,
    expanded_tokens,
    page_of,
    schedule,
    totals,
    windowed,
)
from properties.scenarios.models.experts import experts_inputs
from properties.scenarios.models.oracle import Recorded, record
from properties.scenarios.models.whole import end_to_end


def inputs(case: ModelCase) -> Inputs:
    """Every layer's activations, and every linear module's weight and input, as the library has them."""
    recorded, kinds = record(case), FAMILIES[case.family].kinds
    found: Inputs = {"case": case, "scales": [_scales(recorded, n) for n in range(len(kinds))]}
    for n, kind in enumerate(kinds):
        layer = recorded.attention.get(n)
        if kind == "gdn":
            assert layer is not None
            found |= {f"{name}{n}": torch.cat(layer[name]) for name in ("mixed_qkv", "a", "b")}
            found |= {f"{name}{n}": layer[name].detach() for name in ("conv", "A_log", "dt_bias")}
        elif kind == "latent" and absorbed(case):
            assert layer is not None
            q, rows = _absorbed(layer)
            found |= {f"q{n}": torch.cat(layer["q"]) if by_mode(case) else q, f"k{n}": rows}
            if by_mode(case):
                found |= {f"{name}{n}": layer[name].to(rows.dtype).contiguous() for name in ("up_k", "up_v")}
        elif kind == "cross":
            found |= _cross(case, n, layer)
        else:
            assert layer is not None
            found |= {f"{name}{n}": torch.cat(layer[name]) for name in "qkv"}
            if layer["sinks"] is not None:
                found[f"sinks{n}"] = layer["sinks"]
    for i, module in enumerate(recorded.linear.values()):
        found |= {f"w{i}": module["weight"].detach(), f"x{i}": torch.cat(module["x"])}
        if module["quantized"] is not None:
            found |= dict(zip((f"w{i}", f"scale{i}"), module["quantized"]))
        if module["bias"] is not None:
            found[f"bias{i}"] = module["bias"].detach()
    return found | experts_inputs(recorded)


def _scales(recorded: Recorded, n: int) -> tuple[float, float]:
    layer = recorded.attention.get(n, {})
    return layer.get("sm_scale", 1.0), layer.get("logit_cap", 0.0)


def _absorbed(layer: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Queries [T, H, latent + rope] with the keys' projection in them, and rows [latent | rope] of the tokens."""
    q, k, nope = torch.cat(layer["q"]), torch.cat(layer["k"]), layer["up_k"].shape[1]
    up = torch.einsum("thd,hdl->thl", q[..., :nope].double(), layer["up_k"])
    rows = torch.cat([torch.cat(layer["latents"])[:, None], k[:, :1, nope:]], dim=-1)
    return torch.cat([up, q[..., nope:].double()], dim=-1).to(q.dtype), rows


def _cross(case: ModelCase, n: int, layer: dict[str, Any] | None) -> Inputs:
    """Queries of all requests, 0 of those that have no image, and the keys of all images."""
    lens, dtype = encoder_lens(case), getattr(torch, case.dtype)
    shape = (2, 8) if layer is None else tuple(layer["q"][0].shape[1:])
    given = iter([] if layer is None else layer["q"])
    parts = [next(given) if length else torch.zeros(total, *shape, dtype=dtype) for length, total in zip(lens, totals(case))]
    none = torch.zeros(0, 1, shape[1], dtype=dtype)
    keys = {f"{name}{n}": none if layer is None else torch.cat(layer[name]) for name in "kv"}
    return {f"q{n}": torch.cat(parts), **keys}


def picture(case: ModelCase) -> str:
    """The family's layers, and the requests."""
    lines = [f"{case.family}, {', '.join(FAMILIES[case.family].kinds)}"]
    lines += [f"{r:>3}  {prompt} prompt tokens, {total - prompt} decoded, {encoder} encoder tokens"
              for r, (prompt, total, encoder) in enumerate(zip(case.prompts, totals(case), encoder_lens(case)))]  # fmt: skip
    return "\n".join(lines)


def remark(case: ModelCase) -> str:
    """How near a whole run of the model over our backends comes to the library's, which is reported and not judged."""
    case = replace(case, expanded=True)  # the library's attention function is given expanded keys
    given = inputs(case)
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    return str(end_to_end(case, given["scales"], tensors))


EDGES: dict[str, Callable[[Any], bool]] = {
    **{f"family {name}": lambda case, name=name: case.family == name for name in FAMILIES},  # type: ignore[misc]
    "thirty-two decodes": lambda case: case.decodes == 32,
    "prompts in chunks": lambda case: case.chunk < max(case.prompts),
    "requests with and without an image": lambda case: 0 in encoder_lens(case) and any(encoder_lens(case)),
    "images of different length": lambda case: len({*encoder_lens(case)} - {0}) > 1,
    "pictures at their real size": lambda case: VISION_TOKENS in encoder_lens(case),
    "quantized linear modules": lambda case: case.weights != "",
    "experts of float8 codes": lambda case: case.weights == "fp8" and case.family in ROUTINGS,
    "pages": lambda case: case.paged and case.page > 1,
    "a backend of the pages that are its default": lambda case: case.paged and page_of(case) in (1, MLA_PAGE),
    "latents": absorbed,
    "latents in pages": lambda case: absorbed(case) and case.paged and not case.pages_alone,
    "latents prefilled in pages": lambda case: absorbed(case) and case.paged and case.pages_alone,
    "both forms of latent attention in one prompt": lambda case: by_mode(case) and len({*expanded_tokens(case)}) == 2
    and not all(expanded_tokens(case)[: case.prompts[0]]),
    "a window over latents, expanded": lambda case: windowed(case) and any(
        expanded and position > WINDOW
        for r, total in enumerate(totals(case))
        for position, expanded in enumerate(expanded_tokens(case)[sum(totals(case)[:r]) :][:total])
    ),
    "a prompt begins in a step that continues another": lambda case: by_mode(case) and any(
        mode == "extend" and 0 < sum(start == 0 for _, start, _ in spans) < len(spans) for mode, spans in schedule(case)
    ),
}
