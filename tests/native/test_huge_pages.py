"""Packed weights lie in huge pages where the system has them, and are the same weights where it has none."""

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import optimized.fused_moe
import reference.fused_moe
from optimized import huge_pages, operator
from properties import ROOT
from reference.pack_linear_weight import pack_linear_weight

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
N, K = 2048, 1040  # more than one huge page in bytes, and not a whole number of them


def in_mebibytes(what: str) -> int:
    """A line of what the system says about this process's memory."""
    said = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert said
    return int(said[1]) >> 10


def codes(*sizes: int) -> Tensor:
    return torch.randint(0, 16, sizes, dtype=torch.uint8)


PACKERS: dict[str, Callable[[], Tensor]] = {
    "floats": lambda: operator("pack_linear_weight")(torch.ones(N, K, dtype=torch.bfloat16)),
    "int8": lambda: operator("pack_int8_weight")(torch.ones(N, K, dtype=torch.int8))[0],
    "fp8": lambda: operator("pack_fp8_weight")(torch.ones(N, K).to(torch.float8_e4m3fn), torch.ones(16, 9), 128, 128)[0],
    "int4": lambda: operator("pack_int4_weight")(codes(2 * N, 2 * K), torch.ones(2 * N, 65), None, 32)[0],
    "int4 scales": lambda: operator("pack_int4_weight")(codes(4 * N, 4 * K), torch.ones(4 * N, 130), None, 32)[1],
    "int4 zeros": lambda: operator("pack_int4_weight")(codes(4 * N, 8 * K), torch.ones(4 * N, 260), None, 32)[2],
    "experts": lambda: optimized.fused_moe.PackedExperts.pack(torch.ones(16, 256, 512)).data,
    "int8 experts": lambda: optimized.fused_moe.PackedInt8Experts.pack(torch.ones(16, 256, 520).to(torch.int8),
                                                                       torch.ones(16, 256)).data,
    "fp8 experts": lambda: optimized.fused_moe.PackedFp8Experts.pack(torch.ones(16, 256, 520).to(torch.float8_e4m3fn),
                                                                     torch.ones(16, 1, 1), (256, 520)).data,
}  # fmt: skip


@pytest.mark.parametrize("kind", PACKERS)
def test_a_large_packed_weight_begins_with_a_huge_page(kind: str) -> None:
    assert huge_pages.begins_with_one(PACKERS[kind]())


def gives_some() -> bool:
    """Whether the system has huge pages for 64 MiB that ask for them in another way."""
    before = in_mebibytes("AnonHugePages")
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as control:
        control.madvise(mmap.MADV_HUGEPAGE)
        control.write(b"1" * len(control))
        return in_mebibytes("AnonHugePages") >= before + 32


def test_the_system_gives_huge_pages_and_takes_them_back() -> None:
    if not ENABLED.exists() or not gives_some():
        pytest.skip("this system gives no transparent huge pages to who asks")
    before = in_mebibytes("AnonHugePages"), in_mebibytes("Rss")
    memory = huge_pages.empty((64 << 20,), torch.int8).fill_(1)
    assert in_mebibytes("AnonHugePages") >= before[0] + 32
    del memory
    assert in_mebibytes("Rss") < before[1] + 32


def test_memory_is_of_the_asked_shape_and_writable_to_its_end() -> None:
    for sizes in ((3, 700_001), (1 << 20,), (0, 4 << 20), (5,), ()):
        made = huge_pages.empty(sizes, torch.bfloat16)
        assert made.shape == sizes and made.dtype == torch.bfloat16 and made.is_contiguous()
        made.fill_(2)
        assert bool((made == 2).all())


def test_what_cannot_be_made_is_told() -> None:
    with pytest.raises(ValueError, match="sizes must not be negative, got -1"):
        huge_pages.empty((4, -1), torch.float32)
    with pytest.raises(TypeError, match=r"dtype must be one that a kernel knows, got torch\.complex64"):
        huge_pages.empty((4,), torch.complex64)
    with pytest.raises(RuntimeError, match=r"not enough memory|alloc"):
        huge_pages.empty((1 << 46,), torch.float32)


def test_large_experts_are_the_reference_s_bit_for_bit() -> None:
    weight = torch.randn(4, 1000, 600, generator=torch.Generator().manual_seed(0))
    ours = optimized.fused_moe.PackedExperts.pack(weight)
    assert torch.equal(ours.data, reference.fused_moe.PackedExperts.pack(weight).data)
    assert torch.equal(ours.unpack(), weight)


def test_experts_are_packed_without_data_too() -> None:
    with FakeTensorMode():
        assert optimized.fused_moe.PackedExperts.pack(torch.empty(16, 256, 512)).data.shape == (16, 8, 16, 2, 32, 16)


REFUSED = """
import ctypes, torch
PR_SET_THP_DISABLE = 41
assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
from optimized import operator
weight = torch.arange(1024 * 1024 * 2).to(torch.float32).view(2048, 1024)
packed = operator("pack_linear_weight")(weight)
assert torch.equal(operator("unpack_linear_weight")(packed, 2048, 1024), weight)
print(open("/proc/self/smaps_rollup").read())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told to give no huge pages")
def test_a_system_without_huge_pages_gives_small_ones() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0 and re.search(r"^AnonHugePages:\s+0 kB", done.stdout, re.MULTILINE), done.stderr


def test_a_packed_weight_can_be_saved_and_loaded(tmp_path: Path) -> None:
    weight = torch.randn(1024, 1040)
    packed = operator("pack_linear_weight")(weight)
    torch.save(packed, tmp_path / "weight.pt")
    assert (tmp_path / "weight.pt").stat().st_size < packed.nbytes + (64 << 10)
    assert torch.equal(torch.load(tmp_path / "weight.pt"), pack_linear_weight(weight))
