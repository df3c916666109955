"""Linear layers of four bits. Limits are those of the operators' own checks and of the layers that call them,
AWQIntelAMXLinearKernel and GPTQIntelAMXLinearKernel."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import lcm
from typing import Any

from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.int4_linear.cases import Int4Case
from properties.providers.sgl_kernel.calling import call
from properties.providers.sgl_kernel.quantized import APART
from properties.providers.vllm_cpu.four_bits import AWQ, words
from reference.int4_codes import AWQ_ORDER
from reference.pack_int4_weight import unpack_int4_weight

LAYOUTS = {"x": APART, "data": ("offset",), "scales": ("offset",), "zeros": ("offset",), "bias": ("offset",)}
PANEL = 32  # outputs of a block
GROUPS = (32, 64, 128)
GROUPED = "whole groups of 32, 64 or a multiple of 128 columns (get_4bit_block_k_size, and a switch over its block sizes)"


def _takes(K: int, group: int) -> bool:
    return K % group == 0 and (group in GROUPS or group % 128 == 0)


def _fit(case: Int4Case) -> Int4Case:
    wanted: Int4Case = fitted(case, ["bfloat16", "float16"], LAYOUTS)
    group = case.group if case.group in (*GROUPS, -1) else GROUPS[case.seed % len(GROUPS)]
    step = lcm(128 if group == -1 else group, 32)
    return replace(
        wanted, N=-(-case.N // PANEL) * PANEL, K=-(-case.K // step) * step, group=group, activation="int8", scale=wanted.dtype,
        points="nibble" if case.points == "any" else case.points, bias=case.bias and "float32",
    )


@adapts(
    "int4_linear",
    limits={
        "rows in int8 (its only form)": lambda case: case.activation != "int8",
        "dtype bfloat16 or float16 (checked)": lambda case: case.dtype == "float32",
        "scales in x's dtype (so does the layer load them)": lambda case: case.scale != case.dtype,
        "zero points of four bits (as published weights store them)": lambda case: case.points == "any",
        "N a multiple of 32 (checked)": lambda case: bool(case.N % PANEL),
        GROUPED: lambda case: not _takes(case.K, case.K if case.group == -1 else case.group),
        "bias float32 (read as such; the layer converts it)": lambda case: case.bias not in ("", "float32"),
        "rows of x dense and apart, all others contiguous (so does the layer hold them)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    silent={"activations": "rows in int8 are its only form"},
    timed=lambda given: {"int4_scaled_mm_cpu": _call(given)},
)
def int4_linear(**given: Any) -> Tensor:
    """int4_scaled_mm_cpu behind convert_weight_packed_scale_zp, whose weight is an AWQ one"""
    return _call(given)()


def _call(given: Mapping[str, Any]) -> Callable[[], Tensor]:
    """The product with a weight that is packed once."""
    x, N, K, size = given["x"], given["N"], given["K"], given["group_size"]
    if given.get("activation", "x") != "int8" or N % PANEL or not _takes(K, K if size == -1 else size):
        raise Unsupported("rows in int8, whole panels and groups")
    codes, scales, points = unpack_int4_weight(given["data"], given["scales"], given["zeros"], N, K, size)
    if int(points.max()) > 15:
        raise Unsupported("zero points of four bits")
    weight, zeros = (words(values.T.contiguous(), AWQ_ORDER) for values in (codes, points))
    by_group = scales.to(x.dtype).T.contiguous()
    w, w_zeros, w_scales = call(
        "convert_weight_packed_scale_zp", weight=weight, qzeros=zeros, scales=by_group, quant_method_4bit=AWQ
    )
    packed = {"w": w, "w_zeros": w_zeros, "w_scales": w_scales, "bias": given.get("bias")}
    return lambda: call("int4_scaled_mm_cpu", x=x.reshape(-1, K), **packed).reshape(*x.shape[:-1], N)
