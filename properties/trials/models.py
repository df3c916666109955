"""Layers of real models on trial against the `transformers` package: small random models of five families, no downloads.

The library runs each request alone. Each of its linear modules and attention layers is then judged alone, fed with the library's
own activations at that layer: attention is served in chunks of the prompts and decodes of a changing batch, over slots or pages,
and compared with the library's own function evaluated in float64 on what it was given. See docs/contracts/backend.md.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernelpair import judge
from kernelpair.pair import Inputs, Outputs, Pair
from kernelpair.verdict import Failure, Judged, Row, Table, Tightness
from properties.attention_bound import UNIT_ROUNDOFF, accumulation_error, attention_bound, flush_error
from properties.trials._models_cases import FAMILIES, LATENT, WINDOW, ModelCase, absorbed, cases, encoder_lens, totals
from properties.trials._models_oracle import Recorded, record
from properties.trials._models_runner import serve_optimized, serve_reference
from properties.trials._models_whole import end_to_end
from properties.trials._serving_bounds import gdn_layer_bound

KINDS = {"full": "self attention", "window": f"self attention, sliding window {WINDOW}", "cross": "cross attention",
         "gdn": "gated delta rule"}  # fmt: skip
BEHIND = "head"  # the place of what follows the layers
SOFTMAX = 1 + 2.0**-6  # the library's softmax is fp32 also on float64 scores: 2^-22 of A, where the bound has 2^-15 A


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
            found |= dict(zip((f"q{n}", f"k{n}"), _absorbed(layer)))
        elif kind == "cross":
            found |= _cross(case, n, layer)
        else:
            assert layer is not None
            found |= {f"{name}{n}": torch.cat(layer[name]) for name in "qkv"}
            if layer["sinks"] is not None:
                found[f"sinks{n}"] = layer["sinks"]
    for i, module in enumerate(recorded.linear.values()):
        found |= {f"w{i}": module["weight"].detach(), f"x{i}": torch.cat(module["x"])}
        if module["bias"] is not None:
            found[f"bias{i}"] = module["bias"].detach()
    return found


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


# --- judgement ---


def verdict(case: ModelCase, given: Inputs, outputs: Outputs) -> Judged:
    """Layer by layer in the order of the model, in each its linear modules and its attention, against the library's function."""
    recorded = record(case)
    failures: list[Failure] = []
    tightness: dict[str, Tightness] = {}
    parts: dict[int | str, list[tuple[str, float, bool]]] = {}
    for layer, output, part in _places(case, recorded):
        truth, bound, got = (
            _attention(case, given, recorded, int(layer), outputs[output]) if part == "attention"
            else _linear(case, recorded.linear[part], outputs[output])
        )  # fmt: skip
        found, tight = judge.values(output, got, truth, bound)
        name = f"layer {layer}, {FAMILIES[case.family].kinds[int(layer)]}" if part == "attention" else part
        failures += [Failure(one.kind, output, f"{name}: {one.detail}", one.differences) for one in found]
        parts.setdefault(layer, []).append((part, _ratio(found, tight), not found))
        if tight is not None and not found:
            group = name if part == "attention" else "linear modules"
            known = tightness.get(group, tight)
            largest, looseness = max(known.largest, tight.largest), min(known.looseness, tight.looseness)
            tightness[group] = Tightness(largest, looseness)
    rows = tuple(Row(str(layer), _says(case, recorded, layer), *_ratios(layer, several)) for layer, several in parts.items())
    served = ", expanded" if case.expanded else ""
    return Judged(failures, tightness, Table(f"{case.family} {case.dtype}{served}", rows))


def _places(case: ModelCase, recorded: Recorded) -> list[tuple[int | str, str, str]]:
    """Every layer's number (or `head`), an output, and the linear module that it comes from or `attention`, as the library runs
    through them; a layer that no request came to is at its place too."""
    kinds = FAMILIES[case.family].kinds
    places: list[tuple[int | str, str, str]] = [(n, f"out{n}", "attention") for n in range(len(kinds))]
    places += [(_layer_of(name), f"linear{i}", name) for i, name in enumerate(recorded.linear)]

    def order(place: tuple[int | str, str, str]) -> tuple[float, int]:
        layer, _, part = place
        at = recorded.order.get(layer if part == "attention" else part, 0)
        return math.inf if layer == BEHIND else float(layer), at

    return sorted(places, key=order)


def _layer_of(name: str) -> int | str:
    """The layer that a module belongs to."""
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else BEHIND


def _says(case: ModelCase, recorded: Recorded, layer: int | str) -> str:
    """What lies in a layer."""
    if not isinstance(layer, int):
        return "what follows the layers"
    kind, found = FAMILIES[case.family].kinds[layer], recorded.attention.get(layer, {})
    if kind == "latent":
        return f"MLA, {'absorbed' if absorbed(case) else 'expanded'}"
    more = [", soft cap"] if found.get("logit_cap") else []
    more += [", sinks"] if found.get("sinks") is not None else []
    return KINDS[kind] + "".join(more)


def _ratio(found: Sequence[Failure], tight: Tightness | None) -> float:
    if any(one.kind != "value" for one in found) or (found and tight is None):
        return math.inf  # nothing there to measure it by
    return 0.0 if tight is None else tight.largest


def _ratios(layer: int | str, parts: Sequence[tuple[str, float, bool]]) -> tuple[dict[str, float], str]:
    """The largest ratios of a layer's attention and of its linear modules, and the first part that is beyond its bound."""
    kinds = [("attention" if part == "attention" else "linear modules", ratio) for part, ratio, _ in parts]
    largest = {kind: max(ratio for of, ratio in kinds if of == kind) for kind, _ in sorted(kinds)}
    wrong = [(part.removeprefix("model.").removeprefix(f"layers.{layer}."), ratio) for part, ratio, passed in parts if not passed]
    beyond = f"{wrong[0][0]} {wrong[0][1]:.3g}" if wrong else ""
    return largest, beyond


def _linear(case: ModelCase, module: dict[str, Any], got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The library's linear function in float64, and the bound of packed_linear."""
    x, weight = torch.cat(module["x"]).double(), module["weight"].double()
    bias = None if module["bias"] is None else module["bias"].double()
    truth = torch.nn.functional.linear(x, weight, bias)
    dtype, K = getattr(torch, case.dtype), weight.shape[1]
    size = x.abs() @ weight.abs().T + (0.0 if bias is None else bias.abs())
    terms = K + x.abs().sum(-1, keepdim=True) + weight.abs().sum(-1)
    rounding = UNIT_ROUNDOFF[dtype] * truth.abs()
    return truth, rounding + accumulation_error(K + 2) * size + flush_error(terms, dtype), got


def _attention(
    case: ModelCase, given: Inputs, recorded: Recorded, n: int, got: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    kind, layer = FAMILIES[case.family].kinds[n], recorded.attention.get(n)
    if kind == "gdn":
        assert layer is not None
        truth = torch.cat(layer["truth"])
        bound = gdn_layer_bound(case.dtype, given, n, totals(case), truth)
        return truth, 2 * bound, got  # the library rounds as much as the contract allows: each side within one bound
    if kind == "cross":
        truth = _of_all(case, [] if layer is None else layer["truth"], got)
    else:
        assert layer is not None
        truth = torch.cat(layer["absorbed" if kind == "latent" and absorbed(case) else "truth"])
    bound = _bound(case, given, n, kind)
    if kind == "latent" and absorbed(case):
        assert layer is not None
        up = layer["up_v"]
        got = torch.einsum("thl,hvl->thv", got.double(), up)
        bound = torch.einsum("thl,hvl->thv", bound, up.abs())
    return truth, SOFTMAX * bound, got


def _of_all(case: ModelCase, parts: list[Tensor], got: Tensor) -> Tensor:
    """The truth of all requests: 0 for those without an image."""
    found, given = torch.zeros(got.shape, dtype=torch.float64), iter(parts)
    start = 0
    for length, total in zip(encoder_lens(case), totals(case)):
        if length:
            found[start : start + total] = next(given)
        start += total
    return found


def _bound(case: ModelCase, given: Inputs, n: int, kind: str) -> Tensor:
    """Numerics (A), request by request."""
    q, k = given[f"q{n}"].double(), given[f"k{n}"].double()
    latent = kind == "latent" and absorbed(case)
    v = k[..., :LATENT] if latent else given[f"v{n}"].double()
    sm_scale, cap = given["scales"][n]
    sinks = given.get(f"sinks{n}")
    found, start, first = [], 0, 0
    for length, total in zip(encoder_lens(case), totals(case)):
        rows = slice(start, start + total)
        keys, visible = rows, None
        if kind == "cross":
            keys, first = slice(first, first + length), first + length
        else:
            p, j = torch.arange(total)[:, None], torch.arange(total)
            visible = (j <= p) & (j > p - WINDOW) if kind == "window" else j <= p
        found.append(attention_bound(
            q[rows], k[keys], v[keys], visible, dtype=getattr(torch, case.dtype), sm_scale=sm_scale, logit_cap=cap,
            sinks=None if sinks is None else sinks.double(), splits=8, query_error=_query_error(case) if latent else 0.0,
        ))  # fmt: skip
        start += total
    return torch.cat(found)


def _query_error(case: ModelCase) -> float:
    """Of an absorbed query, which is rounded by way of float32."""
    return UNIT_ROUNDOFF[getattr(torch, case.dtype)] + UNIT_ROUNDOFF[torch.float32]


PAIR = None if find_spec("transformers") is None else Pair(
    name="models",
    version=2,
    case=ModelCase,
    cases=cases(),
    inputs=inputs,
    reference=serve_reference,
    optimized=serve_optimized,
    judge=verdict,
    picture=picture,
    remark="properties.trials.models:remark",
    dtypes=("float32", "bfloat16"),
    results=(),
    sharp=lambda case: case.dtype == "float32",
    emulated=lambda case: case.dtype == "float32" and case.decodes <= 4,
    edges={
        **{f"family {name}": lambda case, name=name: case.family == name for name in FAMILIES},  # type: ignore[misc]
        "thirty-two decodes": lambda case: case.decodes == 32,
        "prompts in chunks": lambda case: case.chunk < max(case.prompts),
        "requests with and without an image": lambda case: 0 in encoder_lens(case) and any(encoder_lens(case)),
        "images of different length": lambda case: len({*encoder_lens(case)} - {0}) > 1,
        "pages": lambda case: case.paged and case.page > 1,
        "latents": absorbed,
        "latents in pages": lambda case: absorbed(case) and case.paged,
    },
)  # fmt: skip
