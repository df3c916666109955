"""The operators of zentorch, AMD's plug-in for torch (`make peers`); nothing of the package is imported, only its library."""

import importlib.util
import os
from pathlib import Path

import torch

from properties.providers.installed import version_of
from properties.providers.zentorch.attention import flash_attn_varlen
from properties.providers.zentorch.experts import fused_moe
from properties.providers.zentorch.linear import int4_linear, int8_linear, packed_linear
from properties.providers.zentorch.norms import rms_norm
from properties.providers.zentorch.recurrent import (
    causal_conv1d,
    chunk_gated_delta_rule,
    gated_delta_rule_update,
    gated_delta_rule_update_spec,
    gdn_gating,
)

NAME = "zentorch"
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


__all__ = [
    "causal_conv1d", "chunk_gated_delta_rule", "flash_attn_varlen", "fused_moe", "gated_delta_rule_update",
    "gated_delta_rule_update_spec", "gdn_gating", "int4_linear", "int8_linear", "packed_linear", "rms_norm",
]
