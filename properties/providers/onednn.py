"""oneDNN on packed weights, through the operators that torch's own compiler calls; nothing to install.

Limits are what the operators check, and what oneDNN documents. Of the primitives that torch holds, those for linear layers do the
work of a contract: floats, and bytes with one scale for each output.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.int8_linear import cases as int8
from properties.packed_linear import cases as linear
from properties.providers.quantized_rows import in_either_form, unsigned
from reference.pack_int8_weight import unpack_int8_weight
from reference.pack_linear_weight import unpack_linear_weight

NAME = "onednn"
OPS, QUANTIZED = torch.ops.mkldnn, torch.ops.onednn
LINEAR_LAYOUTS = linear.LAYOUTS | {"bias": ("offset",)}
BYTE_LAYOUTS = int8.LAYOUTS | {"w_scale": ("offset",)}
NO_VNNI = "a CPU without VNNI (oneDNN documents that sums of two products saturate there)"
NO_POINTS = "symmetric rows (the operator has one zero point for all of them)"


def version() -> str:
    """Of the oneDNN that torch was built with."""
    found = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", torch.__config__.show())
    return found[1] if found else ""


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    return "" if torch.backends.mkldnn.is_available() else "this torch was built without oneDNN (mkldnn)"


def _dtypes() -> list[str]:
    """What oneDNN multiplies on this CPU, by its own word."""
    known = {"float32": True, "bfloat16": OPS._is_mkldnn_bf16_supported(), "float16": OPS._is_mkldnn_fp16_supported()}
    return [dtype for dtype, runs in known.items() if runs]


def _fit_linear(case: linear.LinearCase) -> linear.LinearCase:
    wanted: linear.LinearCase = fitted(case, _dtypes(), LINEAR_LAYOUTS)
    return replace(wanted, bias=case.bias if case.bias in ("", "float32") else wanted.dtype)


@adapts(
    "packed_linear",
    limits={
        "dtype float32, and 16 bits where the CPU has instructions for them (checked)": lambda case: case.dtype not in _dtypes(),
        "bias float32 or of x's dtype (there is no other primitive)": lambda case: case.bias not in ("", "float32", case.dtype),
        "the bias is contiguous (so does the compiler hold it)": other_layouts(LINEAR_LAYOUTS),
    },
    fit=_fit_linear,
    timed=lambda given: timed_linear(given),
)
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """mkldnn::_linear_pointwise behind mkldnn::_reorder_linear_weight"""
    if bias is not None and bias.dtype not in (x.dtype, torch.float32):
        raise Unsupported("bias float32 or of x's dtype")
    packed = _packed(unpack_linear_weight(packed_weight, N, K), prod(x.shape[:-1]))
    return _linear(x.reshape(-1, K), packed, bias).reshape(*x.shape[:-1], N)


def _packed(weight: Tensor, rows: int) -> Tensor:
    """In the blocks that oneDNN chooses for so many rows."""
    packed: Tensor = OPS._reorder_linear_weight(weight.contiguous(), rows or None)
    return packed


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = OPS._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def timed_linear(given: Mapping[str, Any]) -> Calls:
    """The product alone, with the weight in the blocks for the row's own number of rows."""
    x, bias = given["x"], given["bias"]
    if str(x.dtype).removeprefix("torch.") not in _dtypes():
        raise Unsupported(f"no instructions for {str(x.dtype).removeprefix('torch.')} on this CPU")
    packed = _packed(unpack_linear_weight(given["packed_weight"], given["N"], given["K"]), len(x))
    return {"linear_pointwise": lambda: _linear(x, packed, bias)}


def _fit_bytes(case: int8.Int8Case) -> int8.Int8Case:
    wanted: int8.Int8Case = fitted(case, (), BYTE_LAYOUTS, symmetric=True)
    return wanted


@adapts(
    "int8_linear",
    limits={
        NO_POINTS: lambda case: not case.symmetric,
        "the outputs' scales are contiguous (so does the compiler hold them)": other_layouts(BYTE_LAYOUTS),
    },
    fit=_fit_bytes,
    absent=lambda: "" if torch.cpu._is_vnni_supported() else NO_VNNI,
    timed=lambda given: timed_bytes(given),
)
def int8_linear(**given: Any) -> Tensor:
    """onednn::qlinear_pointwise behind onednn::qlinear_prepack; torch quantizes the rows, and applies their scales and the bias

    The operator has one scale for all rows, and one for each output.
    """
    if given.get("azp") is not None or not given.get("symmetric", True):
        raise Unsupported(NO_POINTS)
    return in_either_form(_bytes_call(given), given)


def _bytes_call(given: Mapping[str, Any]) -> Callable[[Tensor, Tensor, Tensor | None, torch.dtype], Tensor]:
    """The product with a weight that is packed once. Its sums times w_scale come in float32.

    Rows go in unsigned, with a zero point of 128: signed ones take oneDNN's plain loops, thousands of times as long.
    """
    N, w_scale = given["N"], given["w_scale"]
    packed = QUANTIZED.qlinear_prepack(unpack_int8_weight(given["data"], N, given["K"]), None)
    points = torch.zeros(N, dtype=torch.int32)

    def product(q: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        out: Tensor = QUANTIZED.qlinear_pointwise(
            unsigned(q), 1.0, 128, packed, w_scale, points, None, 1.0, 0, torch.float32, "none", [], ""
        )
        out = out.mul_(scale)
        return (out if bias is None else out.add_(bias)).to(dtype)

    return product


def timed_bytes(given: Mapping[str, Any]) -> Calls:
    """The rows quantized, the product, and their scales; the weight is packed once."""
    product = _bytes_call(given)
    return {"qlinear_pointwise": lambda: in_either_form(product, given)}
