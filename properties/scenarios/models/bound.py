"""models: how far a result may be from the truth."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, Outputs
from kernelpair.contract.verdict import Failure, Judged, PlaceRow, PlaceTable, Tightness
from kernelpair.trial import judge
from properties.scenarios.models import experts
from properties.scenarios.models.cases import (
    FAMILIES,
    LATENT,
    LIBRARY_EPS,
    WINDOW,
    ModelCase,
    absorbed,
    by_mode,
    encoder_lens,
    totals,
    windowed,
)
from properties.scenarios.models.latent_bound import projected_bound
from properties.scenarios.models.oracle import Recorded, record
from properties.scenarios.models.runner import UNASKED
from properties.scenarios.serving.bounds import gdn_layer_bound
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, attention_bound, flush_error
from reference.quantize_rows_int8 import quantize_rows_int8

KINDS = {"full": "self attention", "window": f"self attention, sliding window {WINDOW}", "cross": "cross attention",
         "gdn": "gated delta rule"}  # fmt: skip
BEHIND = "head"  # the place of what follows the layers
SOFTMAX = 1 + 2.0**-6  # the library's softmax is fp32 also on float64 scores: 2^-22 of A, where the bound has 2^-15 A


# --- judgement ---


def verdict(case: ModelCase, given: Inputs, outputs: Outputs) -> Judged:
    """Layer by layer in the order of the model, in each its linear modules and its attention, against the library's function."""
    recorded = record(case)
    failures: list[Failure] = []
    tightness: dict[str, Tightness] = {}
    parts: dict[int | str, list[tuple[str, str, float, bool]]] = {}
    for layer, output, part in _places(case, recorded):
        kind = _kind(output, part)
        if kind == "experts":
            found, tight = experts.judged(case, given, recorded, int(output.removeprefix("experts")), outputs)
        else:
            truth, bound, got = (
                _attention(case, given, recorded, int(layer), outputs[output]) if part == "attention"
                else _linear(case, recorded.linear[part], outputs[output])
            )  # fmt: skip
            found, tight = judge.values(output, got, truth, bound)
        name = f"layer {layer}, {FAMILIES[case.family].kinds[int(layer)]}" if part == "attention" else part
        failures += [Failure(one.kind, output, f"{name}: {one.detail}", one.differences) for one in found]
        parts.setdefault(layer, []).append((kind, part, _ratio(found, tight), not found))
        if tight is not None and not found:
            group = name if part == "attention" else kind
            known = tightness.get(group, tight)
            largest, looseness = max(known.largest, tight.largest), min(known.looseness, tight.looseness)
            tightness[group] = Tightness(largest, looseness)
    changed = {name: int(outputs[name]) for name in outputs if name.startswith(UNASKED)}
    failures += [Failure("value", name, f"calls changed {n} bytes of the pool or of activations that they were not to")
                 for name, n in changed.items() if n]  # fmt: skip
    rows = tuple(PlaceRow(str(layer), _says(case, recorded, layer), *_ratios(layer, several)) for layer, several in parts.items())
    served = f", {form_of(case)}" if case.expanded or by_mode(case) else ""
    return Judged(failures, tightness, PlaceTable(f"{case.family} {case.dtype}{served}", rows))


def _places(case: ModelCase, recorded: Recorded) -> list[tuple[int | str, str, str]]:
    """Every layer's number (or `head`), an output, and the linear module that it comes from or `attention`, as the library runs
    through them; a layer that no request came to is at its place too."""
    kinds = FAMILIES[case.family].kinds
    places: list[tuple[int | str, str, str]] = [(n, f"out{n}", "attention") for n in range(len(kinds))]
    places += [(_layer_of(name), f"linear{i}", name) for i, name in enumerate(recorded.linear)]
    places += [(_layer_of(name), f"experts{i}", name) for i, name in enumerate(recorded.experts)]

    def order(place: tuple[int | str, str, str]) -> tuple[float, int]:
        layer, _, part = place
        at = recorded.order.get(layer if part == "attention" else part, 0)
        return math.inf if layer == BEHIND else float(layer), at

    return sorted(places, key=order)


def _kind(output: str, part: str) -> str:
    """What the table counts a part among."""
    return part if part == "attention" else "experts" if output.startswith("experts") else "linear modules"


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
        return f"MLA, {form_of(case)}" + (f", sliding window {WINDOW}" if windowed(case) else "")
    more = [", soft cap"] if found.get("logit_cap") else []
    more += [", sinks"] if found.get("sinks") is not None else []
    return KINDS[kind] + "".join(more)


def form_of(case: ModelCase) -> str:
    """In which form latent layers are served."""
    return "expanded" if case.expanded else "by mode" if by_mode(case) else "absorbed"


def _ratio(found: Sequence[Failure], tight: Tightness | None) -> float:
    if any(one.kind != "value" for one in found) or (found and tight is None):
        return math.inf  # nothing there to measure it by
    return 0.0 if tight is None else tight.largest


def _ratios(layer: int | str, parts: Sequence[tuple[str, str, float, bool]]) -> tuple[dict[str, float], str]:
    """The largest ratios of a layer's attention, linear modules and experts, and the first part that is beyond its bound."""
    largest = {kind: max(ratio for of, _, ratio, _ in parts if of == kind) for kind in sorted({part[0] for part in parts})}
    beyond_it = [(part, ratio) for _, part, ratio, passed in parts if not passed]
    wrong = [(part.removeprefix("model.").removeprefix(f"layers.{layer}."), ratio) for part, ratio in beyond_it]
    beyond = f"{wrong[0][0]} {wrong[0][1]:.3g}" if wrong else ""
    return largest, beyond


def _linear(case: ModelCase, module: dict[str, Any], got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The library's linear function in float64, and the bound of packed_linear, or of fp8_linear with powers of 2 as scales."""
    x, weight = torch.cat(module["x"]), module["weight"].double()
    if case.weights == "int8":
        return _of_bytes(case, x, module, got)
    x = x.double()
    bias = None if module["bias"] is None else module["bias"].double()
    truth = torch.nn.functional.linear(x, weight, bias)
    dtype, K = getattr(torch, case.dtype), weight.shape[1]
    size = x.abs() @ weight.abs().T + (0.0 if bias is None else bias.abs())
    terms = K + x.abs().sum(-1, keepdim=True) + weight.abs().sum(-1)
    rounding = UNIT_ROUNDOFF[dtype] * truth.abs()
    return truth, rounding + accumulation_error(K + (4 if case.weights else 2)) * size + flush_error(terms, dtype), got


def _of_bytes(case: ModelCase, x: Tensor, module: dict[str, Any], got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The library's linear function in float64 on rows as the quantizer's bits leave them, and the bound of int8_linear."""
    q, scale, _ = quantize_rows_int8(x)
    rows, weight = q.double() * scale.double()[:, None], module["weight"].double()
    products, bias = rows @ weight.T, 0.0 if module["bias"] is None else module["bias"].double()
    truth, dtype = products + bias, getattr(torch, case.dtype)
    size = products.abs() + torch.as_tensor(bias).abs()
    return truth, UNIT_ROUNDOFF[dtype] * truth.abs() + accumulation_error(2) * size + flush_error(torch.zeros(()), dtype), got


def _attention(
    case: ModelCase, given: Inputs, recorded: Recorded, n: int, got: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    kind, layer = FAMILIES[case.family].kinds[n], recorded.attention.get(n)
    if kind == "gdn":
        assert layer is not None
        truth = torch.cat(layer["truth"])
        bound = gdn_layer_bound(case.dtype, given, n, totals(case), truth, LIBRARY_EPS)
        return truth, 2 * bound, got  # the library rounds as much as the contract allows: each side within one bound
    if kind == "cross":
        truth = _of_all(case, [] if layer is None else layer["truth"], got)
    else:
        assert layer is not None
        over_latents = "windowed" if windowed(case) else "absorbed"
        truth = torch.cat(layer[over_latents if kind == "latent" and absorbed(case) else "truth"])
    if kind == "latent" and by_mode(case):
        return truth, SOFTMAX * projected_bound(case, given, n, truth), got
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
