"""The CPU operators of SGLang's sgl-kernel: of the installed package, or of the library that KERNELPAIR_SGL_KERNEL names.

Written from the published schemas, which grow from version to version: each argument is handed over by its name, and a case that
needs one that the loaded version lacks is unsupported. Paths in limits are those of the package sglang, below `srt`.
"""

import importlib
import importlib.util
import os
from pathlib import Path

import torch

from properties.providers.sgl_kernel.attention import decode_attention, extend_attention, store_cache
from properties.providers.sgl_kernel.calling import call
from properties.providers.sgl_kernel.experts import fused_moe
from properties.providers.sgl_kernel.four_bits import int4_linear
from properties.providers.sgl_kernel.layers import (
    causal_conv1d,
    chunk_gated_delta_rule,
    gated_delta_rule_update,
    gdn_gating,
    packed_linear,
)
from properties.providers.sgl_kernel.norms import act_and_mul, rms_norm, rotary_embedding
from properties.providers.sgl_kernel.quantized import fp8_linear, int8_linear, quantize_rows_int8
from properties.providers.sgl_kernel.routing import topk_gating
from properties.providers.sgl_kernel.varlen import flash_attn_varlen

NAME = "sgl_kernel"
LIBRARY = "KERNELPAIR_SGL_KERNEL"


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    path = os.environ.get(LIBRARY)
    if path:
        return "" if Path(path).is_file() else f"{LIBRARY} names {path}, which is no file"
    found = importlib.util.find_spec(NAME) is not None
    return "" if found else f"the package {NAME} is not installed; name its library with {LIBRARY}"


def prepare() -> None:
    """Load the library."""
    path = os.environ.get(LIBRARY)
    if path:
        torch.ops.load_library(path)
    else:
        importlib.import_module(NAME)


__all__ = [
    "act_and_mul", "call", "causal_conv1d", "chunk_gated_delta_rule", "decode_attention", "extend_attention", "flash_attn_varlen",
    "fp8_linear", "fused_moe", "gated_delta_rule_update", "gdn_gating", "int4_linear", "int8_linear", "packed_linear",
    "quantize_rows_int8", "rms_norm", "rotary_embedding", "store_cache", "topk_gating",
]
