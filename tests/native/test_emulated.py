"""AVX512's intrinsics without AVX512 (csrc/simd/emulated.h), against what Intel's documentation says of them."""

import ctypes
import mmap
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelpair.environment import cpu_flags

CSRC = Path(__file__).resolve().parents[2] / "csrc"
NAMES = CSRC / "simd" / "emulated_names.h"
INTRINSIC = re.compile(r"\b_mm512_\w+|\b_mm(?:256)?_maskz?_\w+")
FOR_THEIR_CPU = ("core/dot_rate.cpp", "tiles/soft_product.cpp")
"""Sources that are compiled once, and ask the CPU before they take such an instruction."""
AVX2 = ("avx2", "fma", "f16c")

PROGRAM = """
template <class To, class From> To read(const From* from) { To to; __builtin_memcpy(&to, from, 64); return to; }
template <class To, class From> void write(To* to, From a) { __builtin_memcpy(to, &a, sizeof a); }
using Floats = const float*;
using Bytes = const uint8_t*;

extern "C" void scalef(Floats a, Floats b, float* out) { write(out, _mm512_scalef_ps(read<__m512>(a), read<__m512>(b))); }
extern "C" void rcp14(Floats a, float* out) { write(out, _mm512_rcp14_ps(read<__m512>(a))); }
extern "C" void fraction(Floats a, float* out) {
  write(out, _mm512_reduce_ps(read<__m512>(a), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}
extern "C" void halves(Floats a, Floats b, uint8_t* out) { write(out, _mm512_cvtne2ps_pbh(read<__m512>(b), read<__m512>(a))); }
extern "C" void dots(Floats sum, Bytes a, Bytes b, float* out) {
  write(out, _mm512_dpbf16_ps(read<__m512>(sum), read<__m512bh>(a), read<__m512bh>(b)));
}
extern "C" void quads(Bytes sum, Bytes a, Bytes b, uint8_t* out) {
  write(out, _mm512_dpbusd_epi32(read<__m512i>(sum), read<__m512i>(a), read<__m512i>(b)));
}
extern "C" void choose(Bytes a, Bytes index, Bytes b, uint8_t* out) {
  write(out, _mm512_permutex2var_epi8(read<__m512i>(a), read<__m512i>(index), read<__m512i>(b)));
}
extern "C" void table(Bytes a, Bytes b, Bytes c, uint8_t* out) {
  write(out, _mm512_ternarylogic_epi32(read<__m512i>(a), read<__m512i>(b), read<__m512i>(c), 0xca));
}
extern "C" void pieces(Bytes a, Bytes b, uint8_t* out) {
  write(out, _mm512_shuffle_i32x4(read<__m512i>(a), read<__m512i>(b), 0x8d));
}
extern "C" int less(Floats a, Floats b) { return _mm512_cmp_ps_mask(read<__m512>(a), read<__m512>(b), _CMP_NLT_UQ); }
extern "C" float sum(Floats a) { return _mm512_reduce_add_ps(read<__m512>(a)); }
extern "C" void load(int mask, const void* from, float* out) { write(out, _mm512_maskz_loadu_ps(mask, from)); }
extern "C" void store(int mask, void* to, Floats a) { _mm512_mask_storeu_ps(to, mask, read<__m512>(a)); }
extern "C" void bytes(int mask, void* to, Bytes a) { _mm512_mask_cvtepi32_storeu_epi8(to, mask, read<__m512i>(a)); }
"""


def test_every_intrinsic_that_the_tiers_take_has_a_name() -> None:
    sources = [path for pattern in ("*/*.h", "*/*.cpp") for path in CSRC.glob(pattern)]
    ours = [path for path in sources if not path.name.startswith("emulated") and str(path.relative_to(CSRC)) not in FOR_THEIR_CPU]
    taken = {name for path in ours if path.parent.name != "trap" for name in INTRINSIC.findall(path.read_text())}
    named = set(re.findall(r"^#define (_mm\w+)", NAMES.read_text(), re.MULTILINE))
    assert len(taken) > 80 and taken == named, taken ^ named


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    missing = set(AVX2) - set(cpu_flags())
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}, with which AVX512 is emulated")
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "all.cpp").write_text(PROGRAM)
    flags = [f"-m{name}" for name in AVX2] + [f"-DKP_EMULATED_{name}" for name in ("AVX512F", "AVX512BF16", "AVX512VNNI")]
    options = ["-std=gnu++20", "-O1", "-shared", "-fPIC", "-Wno-psabi", "-ffp-contract=off", f"-I{CSRC}", "-include", str(NAMES)]
    command = [os.environ.get("CXX", "g++"), *options, *flags, "-o", "all.so", "all.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def told(function: Any, dtype: type, *given: Sequence[float] | np.ndarray) -> np.ndarray:
    """What 64 bytes it writes, given arrays of 64 bytes."""
    out = np.zeros(64 // np.dtype(dtype).itemsize, dtype)
    arrays = [np.ascontiguousarray(each) for each in given]
    assert all(array.nbytes == 64 for array in arrays)
    function(*(array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, out)))
    return out


def floats(*values: float) -> np.ndarray:
    """These, and zeros behind them."""
    return np.array([*values, *[0.0] * (16 - len(values))], np.float32)


def test_numbers(emulated: ctypes.CDLL) -> None:
    inf, nan = np.inf, np.nan
    base, power = floats(3, 3, 3, -3, 0, inf, nan, 1.5, 1, 1), floats(2.9, -1.5, -inf, inf, inf, -inf, 0, -149, 1e9, -1e9)
    wanted = floats(12, 0.75, 0, -inf, nan, nan, nan, 2**-148, inf, 0)  # 1.5 * 2**-149 is a tie, and goes to the even one
    np.testing.assert_array_equal(told(emulated.scalef, np.float32, base, power), wanted)
    taken = floats(1.75, -0.25, inf, -inf, 3)
    np.testing.assert_array_equal(told(emulated.fraction, np.float32, taken), floats(0.75, 0.75))
    some = np.random.default_rng(1).lognormal(size=16).astype(np.float32)
    close = told(emulated.rcp14, np.float32, some)
    assert (abs(close * some - 1) <= 2**-14).all() and (close != 1 / some).any()
    np.testing.assert_array_equal(told(emulated.rcp14, np.float32, floats(0, -0.0, inf, nan))[:4], [inf, -inf, 0, nan])
    emulated.sum.restype = ctypes.c_float
    data = floats(1e8, 1, *[0] * 6, -1e8).ctypes.data_as(ctypes.c_void_p)
    assert emulated.sum(data) == 1, "the halves are added first"
    given = [array.ctypes.data_as(ctypes.c_void_p) for array in (floats(1, 2, nan, 1), floats(2, 1, 1, nan))]
    assert emulated.less(*given) & 15 == 0b1110, "not less, or not ordered"


def test_products_of_bf16(emulated: ctypes.CDLL) -> None:
    rounded = told(emulated.halves, np.uint16, floats(1, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, np.inf), floats(-2))
    assert list(rounded[:5]) == [0x3F80, 0x3F80, 0x3F82, 0, 0x7F80] and rounded[16] == 0xC000
    assert told(emulated.halves, np.uint16, floats(np.nan), floats())[0] & 0x7FC0 == 0x7FC0
    pairs = np.zeros((16, 2), np.uint16)
    pairs[0], pairs[1] = (0x3F80, 0x4000), (0x0001, 0x3F80)  # 1 and 2; the smallest subnormal and 1
    sums = told(emulated.dots, np.float32, floats(0.5, 1e-40), pairs, pairs)
    assert list(sums[:3]) == [5.5, 1, 0], "subnormal numbers count as zero"
    values = np.random.default_rng(2).normal(size=(2, 16, 2)).astype(np.float32).view(np.uint32) >> 16
    wide = (values << 16).view(np.float32).astype(np.float64)
    sums = told(emulated.dots, np.float32, floats(), values[0].astype(np.uint16), values[1].astype(np.uint16))
    np.testing.assert_allclose(sums, (wide[0] * wide[1]).sum(-1), rtol=1e-6, atol=1e-6)


def test_bytes_and_bits(emulated: ctypes.CDLL) -> None:
    random = np.random.default_rng(3)
    a, b, c, index = random.integers(0, 256, (4, 64), dtype=np.uint8)
    sums = random.integers(-(2**31), 2**31, 16).astype(np.int32)
    products = (a.astype(np.int64) * b.view(np.int8)).reshape(16, 4).sum(-1)
    np.testing.assert_array_equal(told(emulated.quads, np.int32, sums, a, b), (sums + products).astype(np.int32))
    np.testing.assert_array_equal(told(emulated.choose, np.uint8, a, index, b), np.concatenate([a, b])[index & 127])
    np.testing.assert_array_equal(told(emulated.table, np.uint8, a, b, c), (a & b) | (~a & c))
    wanted = np.concatenate([a.reshape(4, 16)[[1, 3]], b.reshape(4, 16)[[0, 2]]]).ravel()
    np.testing.assert_array_equal(told(emulated.pieces, np.uint8, a, b), wanted)


def test_a_mask_touches_what_it_names(emulated: ctypes.CDLL) -> None:
    """Before a page that must not be touched, and in memory that holds something else."""
    two = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(two))
    forbid = ctypes.CDLL(None, use_errno=True).mprotect
    assert forbid(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    end = start + mmap.PAGESIZE
    tail = np.frombuffer(two, np.float32, 5, mmap.PAGESIZE - 20)
    given = np.arange(1, 17, dtype=np.float32)
    tail[:] = 9
    emulated.store(0b1101, ctypes.c_void_p(end - 16), given.ctypes.data_as(ctypes.c_void_p))
    assert list(tail) == [9, 1, 9, 3, 4]
    out = np.empty(16, np.float32)
    emulated.load(0b1101, ctypes.c_void_p(end - 16), out.ctypes.data_as(ctypes.c_void_p))
    assert list(out[:5]) == [1, 0, 3, 4, 0] and not out[5:].any()
    numbers = np.arange(256, 272, dtype=np.int32)
    emulated.bytes(0b11, ctypes.c_void_p(end - 2), numbers.ctypes.data_as(ctypes.c_void_p))
    assert two[mmap.PAGESIZE - 4 : mmap.PAGESIZE] == bytes([tail[4:].tobytes()[0], tail[4:].tobytes()[1], 0, 1])
