"""Linear layers by zentorch: plain, of bytes, of four bits. Limits are those of the operators' own checks, and of the passes of
its compiler that put the operators into a model."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.layout import READ_ONLY
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.int4_linear.cases import Int4Case
from properties.int8_linear.cases import Int8Case
from properties.packed_linear.cases import LinearCase
from properties.providers.zentorch.library import FLOATS, OPS, Given
from reference.pack_int4_weight import unpack_int4_weight
from reference.pack_int8_weight import unpack_int8_weight
from reference.pack_linear_weight import unpack_linear_weight

LINEAR_LAYOUTS = {"x": (*READ_ONLY, "strided", "transposed"), "packed_weight": ("offset",), "bias": ("offset",)}
BYTE_LAYOUTS = {"x": READ_ONLY, "data": ("offset",), "sums": ("offset",), "w_scale": ("offset",), "bias": ("offset",)}
NIBBLE_LAYOUTS = {"x": ("offset",), "data": ("offset",), "scales": ("offset",), "zeros": ("offset",), "bias": ("offset",)}
SYMMETRIC = "zero points of 8, symmetric codes (its compiler passes no others on)"


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


def timed_linear(given: Given) -> Calls:
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


def timed_bytes(given: Given) -> Calls:
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


def timed_nibbles(given: Given) -> Calls:
    """The product alone: the compiler packs once."""
    call = _nibbles_call(*(given[name] for name in ("data", "scales", "zeros", "N", "K", "group_size", "activation")))
    return {"woq_linear": lambda: call(given["x"], given["bias"])}
