"""Rows quantized to bytes, and linear layers of bytes and of float8. Limits are those of the operators' own checks and of the
layers that call them, W8A8Int8LinearMethod and Fp8LinearMethod; `_amx_process_weight_after_loading` packs their weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.fp8_linear.cases import Fp8LinearCase
from properties.int8_linear.cases import Int8Case
from properties.providers.quantized_rows import unsigned
from properties.providers.sgl_kernel.calling import call
from properties.quantize_rows_int8.cases import QuantizeCase
from reference.pack_fp8_weight import unpack_fp8_weight
from reference.pack_int8_weight import unpack_int8_weight

APART = ("offset", "padded", "apart", "sliced")  # rows: the last dimension is dense (checked), the others are anywhere
PANEL = 32  # outputs that are multiplied at a time ("Unexpected block size"), and columns ("invalid weight input features")
SIZES = "N and K are multiples of 32 (checked)"
SYMMETRIC = "symmetric (no zero points among its results and arguments)"
ZERO = 128  # of a row's bytes, which the operators hold without a sign

# --- rows ---


def _fit_rows(case: QuantizeCase) -> QuantizeCase:
    width = -(-case.width // PANEL) * PANEL
    layouts = {"x": (*APART, "expanded")} if width else {}
    wanted: QuantizeCase = fitted(case, ["bfloat16", "bfloat16", "float16"], layouts, width=width, symmetric=True)
    return wanted


@adapts(
    "quantize_rows_int8",
    limits={
        "dtype bfloat16 or float16 (checked)": lambda case: case.dtype == "float32",
        "columns a multiple of 32 (the comment at its kernel)": lambda case: bool(case.width % PANEL),
        SYMMETRIC: lambda case: not case.symmetric,
        "rows of x dense and apart (checked; the last stride is 1 without columns too)":
            lambda case: other_layouts({"x": (*APART, "expanded")})(case) or ("x" in case.layout and not case.width),
    },
    fit=_fit_rows,
    timed=lambda given: {"per_token_quant_int8_cpu": lambda: call("per_token_quant_int8_cpu", A=given["x"])},
)
def quantize_rows_int8(x: Tensor, symmetric: bool = True) -> dict[str, Tensor]:
    """per_token_quant_int8_cpu, whose bytes are 128 more"""
    if not symmetric or x.shape[1] % PANEL:
        raise Unsupported("symmetric rows of a multiple of 32 columns")
    q, scale = call("per_token_quant_int8_cpu", A=x)
    return {"q": (q.to(torch.int16) - ZERO).to(torch.int8), "scale": scale}


# --- bytes ---

INT8_LAYOUTS = {"x": APART, "data": ("offset",)}


def _fit_int8(case: Int8Case) -> Int8Case:
    wanted: Int8Case = fitted(case, ["bfloat16"], INT8_LAYOUTS)
    N, K = -(-case.N // PANEL) * PANEL, -(-case.K // PANEL) * PANEL
    return replace(wanted, N=N, K=K, symmetric=True, bias=case.bias and "float32")


@adapts(
    "int8_linear",
    limits={
        "dtype bfloat16 (its one kernel)": lambda case: case.dtype != "bfloat16",
        "bias float32 (read as such; the layer converts it)": lambda case: case.bias not in ("", "float32"),
        SIZES: lambda case: bool(case.N % PANEL or case.K % PANEL),
        SYMMETRIC: lambda case: not case.symmetric,
        "rows of x dense and apart, all others contiguous (checked)": other_layouts(INT8_LAYOUTS),
    },
    fit=_fit_int8,
    timed=lambda given: {"int8_scaled_mm_with_quant": _int8_call(given)},
)
def int8_linear(**given: Any) -> Tensor:
    """int8_scaled_mm_with_quant for rows of floats, int8_scaled_mm_cpu for rows of bytes, behind convert_weight_packed"""
    if given["N"] % PANEL or given["K"] % PANEL:
        raise Unsupported(SIZES)
    if not given.get("symmetric", True) or given.get("azp") is not None:
        raise Unsupported(SYMMETRIC)
    return _int8_call(given)()


def _int8_call(given: Mapping[str, Any]) -> Callable[[], Tensor]:
    """The product with a weight that is packed once."""
    N, K = given["N"], given["K"]
    packed = call("convert_weight_packed", weight=unpack_int8_weight(given["data"], N, K))
    common = {"mat2": packed, "scales2": given["w_scale"], "bias": given.get("bias"), "is_vnni": True}
    if given["form"] == "linear":
        x = given["x"]
        return lambda: call(
            "int8_scaled_mm_with_quant", mat1=x.reshape(-1, K), out_dtype=x.dtype, **common
        ).reshape(*x.shape[:-1], N)
    rows = unsigned(given["q"])
    dtype: torch.dtype = getattr(torch, given["out_dtype"])
    return lambda: call("int8_scaled_mm_cpu", mat1=rows, scales1=given["scale"], out_dtype=dtype, **common)


# --- float8 ---

FP8_LAYOUTS = {"x": APART, "data": ("offset",), "scales": ("offset",), "bias": ("offset",)}
BLOCKS = ("128x128", "64x128")


def _fit_fp8(case: Fp8LinearCase) -> Fp8LinearCase:
    block = case.block if case.block in BLOCKS else BLOCKS[case.seed % len(BLOCKS)]
    wanted: Fp8LinearCase = fitted(case, ["bfloat16"], FP8_LAYOUTS, block=block, bias=case.bias and "float32")
    return replace(wanted, N=-(-case.N // PANEL) * PANEL, K=-(-case.K // PANEL) * PANEL)


@adapts(
    "fp8_linear",
    limits={
        "dtype bfloat16 (its one kernel)": lambda case: case.dtype != "bfloat16",
        "bias float32 (read as such; the layer converts it)": lambda case: case.bias not in ("", "float32"),
        SIZES: lambda case: bool(case.N % PANEL or case.K % PANEL),
        "blocks of a multiple of 32 outputs and of 128 columns (checked)": lambda case: case.block not in BLOCKS,
        "rows of x dense and apart, all others contiguous (checked)": other_layouts(FP8_LAYOUTS),
    },
    fit=_fit_fp8,
    timed=lambda given: {"fp8_scaled_mm_cpu": _fp8_call(given)},
)
def fp8_linear(**given: Any) -> Tensor:
    """fp8_scaled_mm_cpu behind convert_weight_packed"""
    if given["N"] % PANEL or given["K"] % PANEL:
        raise Unsupported(SIZES)
    return _fp8_call(given)()


def _fp8_call(given: Mapping[str, Any]) -> Callable[[], Tensor]:
    """The product with a weight that is packed once."""
    x, N, K, block = given["x"], given["N"], given["K"], [given["block_n"], given["block_k"]]
    if block[0] % PANEL or block[1] != 128:
        raise Unsupported("blocks of a multiple of 32 outputs and of 128 columns (checked)")
    packed = call("convert_weight_packed", weight=unpack_fp8_weight(given["data"], N, K))
    weight = {"mat2": packed, "scales2": given["scales"], "block_size": block, "bias": given.get("bias"), "is_vnni": True}
    return lambda: call("fp8_scaled_mm_cpu", mat1=x.reshape(-1, K), out_dtype=x.dtype, **weight).reshape(*x.shape[:-1], N)
