"""The operators of zentorch, AMD's plug-in for torch (`make peers`); nothing of the package is imported, only its library.

Limits are those of the operators' own checks, and of the passes of its compiler that put the operators into a model.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import READ_ONLY
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.int4_linear.cases import Int4Case
from properties.int8_linear.cases import Int8Case
from properties.packed_linear.cases import LinearCase
from properties.providers.installed import version_of
from properties.rms_norm.bound import TWO_SUMS
from properties.rms_norm.cases import NormCase
from reference.pack_int4_weight import unpack_int4_weight
from reference.pack_int8_weight import unpack_int8_weight
from reference.pack_linear_weight import unpack_linear_weight

NAME = "zentorch"
OPS = torch.ops.zentorch
FLOATS = ("float32", "bfloat16")
LINEAR_LAYOUTS = {"x": (*READ_ONLY, "strided", "transposed"), "packed_weight": ("offset",), "bias": ("offset",)}
BYTE_LAYOUTS = {"x": READ_ONLY, "data": ("offset",), "sums": ("offset",), "w_scale": ("offset",), "bias": ("offset",)}
NIBBLE_LAYOUTS = {"x": ("offset",), "data": ("offset",), "scales": ("offset",), "zeros": ("offset",), "bias": ("offset",)}
NORM_LAYOUTS = {name: ("offset",) for name in ("x", "residual", "gate", "weight")}
SYMMETRIC = "zero points of 8, symmetric codes (its compiler passes no others on)"
IN_PLACE = "in place with a residual alone (not offered otherwise)"
NOT_OFFERED = "a weight; no groups, not Gemma's form (not arguments of it)"
SCRIPT = """# pip install --no-deps zentorch==2.13.0.2
import importlib.util
import os
import pathlib

os.environ["ZENDNNL_MATMUL_WEIGHT_CACHE"] = "0"
folder = importlib.util.find_spec("zentorch").submodule_search_locations[0]
torch.ops.load_library(str(pathlib.Path(folder) / "libzentorch.so"))"""


def version() -> str:
    """Of the wheel that is installed; empty if none is."""
    return version_of(NAME)


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    found, built_for = version(), version().split(".")[:2]
    if not found:
        return f"{NAME} is not installed: make peers"
    if torch.__version__.split(".")[:2] != built_for:
        return f"{NAME} {found} is built for torch {'.'.join(built_for)}, this is {torch.__version__}: make peers"
    return "" if torch.cpu._is_avx512_supported() else "this CPU lacks AVX-512, for which its kernels are written"


def load() -> None:
    """Load the library."""
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.submodule_search_locations
    torch.ops.load_library(str(Path(spec.submodule_search_locations[0]) / "libzentorch.so"))


def prepare() -> None:
    """Load the library without its cache of packed weights, which knows a weight by its address: on trial each case has another
    weight, often where an older one lay, while a model's stay where they are."""
    os.environ["ZENDNNL_MATMUL_WEIGHT_CACHE"] = "0"
    load()


def _fit_linear(case: LinearCase) -> LinearCase:
    wanted: LinearCase = fitted(case, FLOATS, LINEAR_LAYOUTS, outer=tuple(max(size, 1) for size in case.outer) or (1,))
    return replace(wanted, bias=case.bias and wanted.dtype)


@adapts(
    "packed_linear",
    limits={
        "dtype float32 or bfloat16 (float16 where the CPU has AVX512-FP16; checked)": lambda case: case.dtype not in FLOATS,
        "bias of x's dtype (checked)": lambda case: case.bias not in ("", case.dtype),
        "at least one row (checked)": lambda case: 0 in case.outer,
        "the bias is contiguous (so does the compiler hold it)": other_layouts(LINEAR_LAYOUTS),
    },
    fit=_fit_linear,
    timed=lambda given: timed_linear(given),
)
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """zentorch_linear_unary behind zentorch_weight_prepack_for_linear"""
    if bias is not None and bias.dtype != x.dtype:
        raise Unsupported("bias of x's dtype")
    return _linear_call(packed_weight, N, K)(x, bias)


def _linear_call(packed_weight: Tensor, N: int, K: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    packed = OPS.zentorch_weight_prepack_for_linear(unpack_linear_weight(packed_weight, N, K).contiguous())
    return lambda x, bias: OPS.zentorch_linear_unary(x, packed, bias, is_weight_prepacked=True)


def timed_linear(given: Mapping[str, Any]) -> Calls:
    """The product alone: the compiler packs once."""
    x, bias = given["x"], given["bias"]
    if x.dtype == torch.float16:
        raise Unsupported("dtype float32 or bfloat16")
    call = _linear_call(given["packed_weight"], given["N"], given["K"])
    return {"linear_unary": lambda: call(x, bias)}


def _fit_bytes(case: Int8Case) -> Int8Case:
    outer = tuple(max(size, 1) for size in case.outer) or (1,)
    wanted: Int8Case = fitted(case, FLOATS, BYTE_LAYOUTS, form="linear", outer=outer, symmetric=True)
    return replace(wanted, bias=case.bias and wanted.dtype)


@adapts(
    "int8_linear",
    limits={
        "dtype float32 or bfloat16 (checked)": lambda case: case.dtype not in FLOATS,
        "symmetric rows of floats (it quantizes them itself)": lambda case: case.form != "linear" or not case.symmetric,
        "bias of x's dtype (checked)": lambda case: case.bias not in ("", case.dtype),
        "at least one row (checked)": lambda case: 0 in case.outer,
        "scales and bias are contiguous (so does the compiler hold them)": other_layouts(BYTE_LAYOUTS),
    },
    fit=_fit_bytes,
    timed=lambda given: timed_bytes(given),
    silent={"two_steps": "the operator quantizes rows itself; it takes no rows of bytes"},
)
def int8_linear(
    form: str, data: Tensor, sums: Tensor, N: int, K: int, w_scale: Tensor, bias: Tensor | None = None, x: Tensor | None = None,
    symmetric: bool = True, q: Tensor | None = None, scale: Tensor | None = None, azp: Tensor | None = None, out_dtype: str = "",
) -> Tensor:
    """zentorch_dynamic_qlinear on a plain weight, which it packs at its first use

    Behind zentorch_weight_prepack_for_dynamic_qlinear of 2.13.0.2 it gives other sums from 4,096 columns on.
    """
    if form != "linear" or not symmetric:
        raise Unsupported("symmetric rows of floats")
    assert x is not None
    if bias is not None and bias.dtype != x.dtype:
        raise Unsupported("bias of x's dtype")
    return _bytes_call(data, N, K, w_scale)(x, bias)


def _bytes_call(data: Tensor, N: int, K: int, w_scale: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    weight = unpack_int8_weight(data, N, K)
    return lambda x, bias: OPS.zentorch_dynamic_qlinear(x, weight, w_scale, bias)


def timed_bytes(given: Mapping[str, Any]) -> Calls:
    """Rows quantized and multiplied by one operator."""
    call = _bytes_call(given["data"], given["N"], given["K"], given["w_scale"])
    return {"dynamic_qlinear": lambda: call(given["x"], given["bias"])}


def _fit_nibbles(case: Int4Case) -> Int4Case:
    group = case.group if case.group in (32, 64, 128, -1) else 128
    step = 8 if group == -1 else group
    wanted: Int4Case = fitted(
        case, ["bfloat16"], NIBBLE_LAYOUTS, outer=tuple(max(size, 1) for size in case.outer) or (1,), activation="x", points="",
        group=group, N=-(-case.N // 8) * 8, K=-(-case.K // step) * step, bias=case.bias and "bfloat16",
        scale="bfloat16" if case.scale == "float16" else case.scale,
    )
    return wanted


@adapts(
    "int4_linear",
    limits={
        "dtype bfloat16 (checked)": lambda case: case.dtype != "bfloat16",
        "rows as they are (not an argument of it)": lambda case: case.activation != "x",
        SYMMETRIC: lambda case: case.points != "",
        "scales float32 or bfloat16 (checked)": lambda case: case.scale == "float16",
        "whole groups, N and K multiples of 8 (checked)":
            lambda case: bool(case.N % 8 or case.K % 8 or (case.group > 0 and case.K % case.group)),
        "groups of 32, 64, 128 or all columns (of models for it)": lambda case: case.group not in (32, 64, 128, -1),
        "bias of x's dtype (checked)": lambda case: case.bias not in ("", case.dtype),
        "at least one row (checked)": lambda case: 0 in case.outer,
        "all tensors are contiguous (so does the compiler hold them)": other_layouts(NIBBLE_LAYOUTS),
    },
    fit=_fit_nibbles,
    timed=lambda given: timed_nibbles(given),
)
def int4_linear(
    x: Tensor, data: Tensor, scales: Tensor, zeros: Tensor, N: int, K: int, group_size: int, bias: Tensor | None = None,
    activation: str = "x",
) -> Tensor:
    """zentorch_woq_linear behind zentorch_woq_repack_weight"""
    call = _nibbles_call(data, scales, zeros, N, K, group_size, activation)
    return call(x.reshape(-1, K), bias).reshape(*x.shape[:-1], N)


def _nibbles_call(
    data: Tensor, scales: Tensor, zeros: Tensor, N: int, K: int, group_size: int, activation: str
) -> Callable[[Tensor, Tensor | None], Tensor]:
    codes, by_output, points = unpack_int4_weight(data, scales, zeros, N, K, group_size)
    if activation != "x" or not bool((points == 8).all()):
        raise Unsupported(SYMMETRIC)
    words, by_group = OPS.zentorch_woq_repack_weight(codes.to(torch.int8) - 8).T, by_output.T.contiguous()
    return lambda x, bias: OPS.zentorch_woq_linear(x, words, by_group, None, bias)


def timed_nibbles(given: Mapping[str, Any]) -> Calls:
    """The product alone: the compiler packs once."""
    call = _nibbles_call(*(given[name] for name in ("data", "scales", "zeros", "N", "K", "group_size", "activation")))
    return {"woq_linear": lambda: call(given["x"], given["bias"])}


def _fit_norm(case: NormCase) -> NormCase:
    wanted: NormCase = fitted(
        case, FLOATS, NORM_LAYOUTS, width=max(case.width, 1), groups=0, gemma=False, weight="call",
        outer=tuple(max(size, 1) for size in case.outer) or (1,), in_place=case.in_place and case.form == "residual",
    )
    return wanted


@adapts(
    "rms_norm",
    limits={
        "dtype float32 or bfloat16 (float16 where the CPU has AVX512-FP16)": lambda case: case.dtype not in FLOATS,
        NOT_OFFERED: lambda case: case.groups > 0 or case.gemma or case.weight == "none",
        IN_PLACE: lambda case: case.in_place and case.form != "residual",
        "the weight has x's dtype (so do its models)": lambda case: case.weight == "float32" and case.dtype != "float32",
        "at least one element": lambda case: 0 in case.outer or case.width == 0,
        "contiguous tensors (so does the compiler hold them)": other_layouts(NORM_LAYOUTS),
    },
    fit=_fit_norm,
    silent={"apart": "rows of a norm follow one another (a limit of the operator)"},
    rounding=TWO_SUMS,
    timed=lambda given: timed_norm(given),
)
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False, in_place: bool = False,
) -> Tensor | None:
    """zentorch_rms_norm, zentorch_add_rms_norm_ with a residual, gdn_rms_norm_gated with a gate"""
    if weight is None or group_size is not None or gemma:
        raise Unsupported(NOT_OFFERED)
    if in_place and residual is None:
        raise Unsupported(IN_PLACE)
    rows = x.view(-1, x.shape[-1])
    if gate is not None:
        return OPS.gdn_rms_norm_gated(rows, weight, gate.view_as(rows), eps, "silu").view_as(x)
    if residual is None:
        return OPS.zentorch_rms_norm(rows, weight, eps).view_as(x)
    out = rows if in_place else rows.clone()
    OPS.zentorch_add_rms_norm_(out, weight, residual.view_as(rows), eps)
    return None if in_place else out.view_as(x)


def timed_norm(given: Mapping[str, Any]) -> Calls:
    """The operators on rows. That with a residual writes over x: over a copy where x is to stay."""
    x, weight, eps = given["x"].flatten(0, -2), given["weight"], given.get("eps", 1e-6)
    if given.get("gate") is not None:
        gate = given["gate"].view_as(x)
        return {"gdn_rms_norm_gated": lambda: OPS.gdn_rms_norm_gated(x, weight, gate, eps, "silu")}
    if given.get("residual") is None:
        return {"rms_norm": lambda: OPS.zentorch_rms_norm(x, weight, eps)}
    residual = given["residual"].view_as(x)
    if given.get("in_place"):
        return {"add_rms_norm": lambda: OPS.zentorch_add_rms_norm_(x, weight, residual, eps)}
    return {"add_rms_norm": lambda: OPS.zentorch_add_rms_norm_(x.clone(), weight, residual, eps)}
