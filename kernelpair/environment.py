"""The machine that a result was obtained on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

SHOWN_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")


def cpu_model() -> str:
    """The CPU's name as the system gives it."""
    return cpu("model name") or platform.processor() or platform.machine()


def cpu_kind() -> str:
    """Family and model, which a name may hide: "family 26 model 2"; empty where the system does not tell."""
    known = {"family": cpu("cpu family"), "model": cpu("model")}
    return " ".join(f"{what} {number}" for what, number in known.items() if number)


def cpu_flags() -> list[str]:
    """Those instruction sets out of the interesting ones that the system reports."""
    flags = set(cpu("flags").split())
    return [flag for flag in SHOWN_FLAGS if flag in flags]


def cpu(key: str) -> str:
    """What the system says of the first CPU under this key; empty where it says nothing."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return ""


def environment() -> dict[str, Any]:
    """CPU, cores, versions: what `--json` and `doctor` say about the machine."""
    import torch

    return {
        "cpu": cpu_model(),
        "cpu_kind": cpu_kind(),
        "cpu_flags": cpu_flags(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "hypothesis": metadata.version("hypothesis"),
        "system": platform.platform(),
    }
