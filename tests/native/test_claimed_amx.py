"""A worker that is told it has AMX: what CPUID and the kernel answer, where a library asks, and what libraries then do."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import optimized
from kernelpair.cli import main
from optimized import trapped
from properties.cpuid_sites import NotFound, cpuid_offsets

AMX = next(tier for tier in optimized.tiers() if tier.products == "tile_registers")
TRAPPED_HERE = pytest.mark.skipif(not AMX.run_as, reason="this machine has what the tier needs, or lacks more than tiles")
REAL = (7, 0x10, 0x20, 0x40)
BF16, FP16, TILE, INT8 = (1 << bit for bit in (22, 23, 24, 25))
AVX_VNNI = 1 << 4

ASKING = r"""
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void ask(unsigned leaf, unsigned subleaf, unsigned* out) { __cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]); }

// Its constant has the bytes of CPUID.
unsigned decoy(void) { return 0x77a20f77; }

// What a CPU raises that faults on CPUID: SIGSEGV from the kernel at the instruction, with 0 in EAX.
unsigned faulting(void) {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = SIGSEGV;
  info.si_code = SI_KERNEL;
  unsigned long answer = SYS_rt_tgsigqueueinfo, rdi = getpid(), rsi = gettid(), rdx = SIGSEGV;
  register siginfo_t* r10 asm("r10") = &info;
  asm volatile("syscall\n\tcpuid" : "+a"(answer), "+d"(rdx) : "D"(rdi), "S"(rsi), "r"(r10) : "rbx", "rcx", "r11", "memory");
  return answer;
}
"""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that asks CPUID at two places."""
    folder = tmp_path_factory.mktemp("asking")
    source, library = folder / "asking.c", folder / "libasking.so"
    source.write_text(ASKING)
    command = ["cc", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-s", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.mark.parametrize(
    ("leaf", "subleaf", "half", "answer"),
    [
        (0, 0, False, (0x1E, 0x10, 0x20, 0x40)),
        (7, 0, False, (7, 0x10, 0x20, 0x40 | BF16 | TILE | INT8)),
        (7, 0, True, (7, 0x10, 0x20, 0x40 | BF16 | FP16 | TILE | INT8)),
        (7, 1, False, REAL),
        (7, 1, True, (7 | AVX_VNNI, 0x10, 0x20, 0x40)),
        (0xD, 0, False, (7 | 1 << 17 | 1 << 18, 0x10, 11008, 0x40)),
        (0xD, 1, False, REAL),
        (0xD, 17, False, (64, 2752, 2, 0)),
        (0xD, 18, False, (8192, 2816, 6, 0)),
        (0x1D, 0, False, (1, 0, 0, 0)),
        (0x1D, 1, False, (1024 << 16 | 8192, 8 << 16 | 64, 16, 0)),
        (0x1D, 2, False, (0, 0, 0, 0)),
        (0x1E, 0, False, (0, 64 << 8 | 16, 0, 0)),
        (1, 0, True, REAL),
        (0x80000001, 0, True, REAL),
    ],
)
def test_cpuid_answers_as_a_cpu_with_amx(leaf: int, subleaf: int, half: bool, answer: tuple[int, ...]) -> None:
    assert trapped.cpuid(leaf, subleaf, REAL, half) == answer


def test_a_cpu_with_more_leaves_keeps_them() -> None:
    assert trapped.cpuid(0, 0, (0x23, 1, 2, 3))[0] == 0x23


def test_only_instructions_are_taken_for_cpuid(asking: Path) -> None:
    """Of a stripped library, whose constant has the same bytes."""
    assert asking.read_bytes().count(b"\x0f\xa2") >= 3
    assert len(cpuid_offsets(asking)) == 2


def test_what_is_no_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library at all, but long enough to be one")
    with pytest.raises(NotFound, match="no ELF file"):
        cpuid_offsets(tmp_path / "text.so")


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@TRAPPED_HERE
def test_a_library_is_told_that_there_is_amx(asking: Path) -> None:
    """In every thread; what is no CPUID, and every other leaf, is left alone."""
    done = run(f"""
import ctypes, threading
from optimized import trapped
from properties import amx_claimed
library = ctypes.CDLL({str(asking)!r})
def ask(leaf, subleaf=0):
    registers = (ctypes.c_uint32 * 4)()
    library.ask(leaf, subleaf, registers)
    return tuple(registers)
LEAVES = [(0, 0), (7, 0), (7, 1), (0x1d, 1), (0x1e, 0), (0x80000001, 0)]
before = {{leaf: ask(*leaf) for leaf in LEAVES}}
trapped.install()
assert library.faulting() >= 0x1e
amx_claimed.tell(True)
amx_claimed.tell(False)
after = {{leaf: ask(*leaf) for leaf in LEAVES}}
half = amx_claimed.lacks_half()
assert after == {{leaf: trapped.cpuid(*leaf, before[leaf], half) for leaf in LEAVES}}, (before, after)
changed = [leaf for leaf in LEAVES if after[leaf] != before[leaf]]
assert [leaf for leaf in changed if leaf != (7, 1)] == [(0, 0), (7, 0), (0x1d, 1), (0x1e, 0)]
assert after[7, 1][0] == before[7, 1][0] | (1 << 4 if half else 0) and after[7, 1][1:] == before[7, 1][1:]
seen = []
threads = [threading.Thread(target=lambda: seen.append(ask(0x1d, 1))) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert seen == [after[0x1d, 1]] * 4
assert library.decoy() == 0x77a20f77
""")
    assert done.returncode == 0, done.stderr


@TRAPPED_HERE
def test_the_kernel_seems_to_grant_the_tiles() -> None:
    """To libc's syscall and to an instruction of one's own; other calls of the same number pass."""
    done = run("""
import ctypes
from properties import amx_claimed
libc = ctypes.CDLL(None, use_errno=True)
amx_claimed.tell(True)
mask = ctypes.c_uint64()
assert libc.syscall(158, 0x1023, 18) == 0
assert libc.syscall(158, 0x1022, ctypes.byref(mask)) == 0 and mask.value >> 17 & 3 == 3, mask
assert libc.syscall(158, 0x1021, ctypes.byref(mask)) == 0 and mask.value >> 17 & 3 == 3, mask
assert libc.syscall(158, 0x1023, 9) == -1 and ctypes.get_errno() == 22
assert libc.syscall(158, 0x1003, ctypes.byref(mask)) == 0 and mask.value  # ARCH_GET_FS
""")
    assert done.returncode == 0, done.stderr


@TRAPPED_HERE
def test_torch_multiplies_with_tiles() -> None:
    """Code that oneDNN generates at run time is trapped too, and its result is right."""
    done = run("""
import torch
from optimized import trapped
from properties import amx_claimed
amx_claimed.tell(True)
assert torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()
a, b = torch.randn(64, 128).bfloat16(), torch.randn(32, 128).bfloat16()
trapped.reset()
out = torch.nn.functional.linear(a, b)
assert trapped.totals()["products"] >= 4 * 2 * 4, trapped.totals()
assert torch.allclose(out.double(), a.double() @ b.double().T, rtol=2**-7, atol=1e-3)
""")
    assert done.returncode == 0, done.stderr


@TRAPPED_HERE
def test_an_instruction_that_was_said_to_be_there_is_named() -> None:
    done = run("""
import ctypes, mmap
from optimized import trapped
trapped.install()
trapped.claim(False, True)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes([0x62, 0xf5, 0x7c, 0x48, 0x58, 0xc0, 0xc3]))  # vaddph zmm0, zmm0, zmm0; ret
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""")
    from properties.amx_claimed import lacks_half

    assert ("an instruction of AVX512-FP16, which this CPU lacks" in done.stderr) == lacks_half()
    assert (done.returncode < 0) == lacks_half()


LINEAR = '''"""torch's linear layer."""

from dataclasses import replace

import torch

from kernelpair.providers.provider import adapts
from reference.pack_linear_weight import unpack_linear_weight

NAME, CPU = "torch_linear", False


def fit(case):
    return replace(case, dtype="bfloat16", outer=(16,), N=32, K=64, layout={}, bias="")


LIMITS = {"sixteen rows in whole tiles: oneDNN takes no tiles for one": lambda case: case != fit(case)}


@adapts("packed_linear", claims="amx", limits=LIMITS, fit=fit, silent={"alone": "oneDNN takes no tiles for one row"})
def packed_linear(x, packed_weight, N, K, bias=None):
    if CPU and not torch.cpu._is_amx_tile_supported():
        raise RuntimeError("torch was not told of AMX before it looked")
    return torch.nn.functional.linear(x, unpack_linear_weight(packed_weight, N, K).contiguous())
'''


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_a_provider_is_tried_on_its_amx_path(capsys: pytest.CaptureFixture[str]) -> None:
    """It claims the path, and takes it only where the CPU is said to have it."""
    Path("linear.py").write_text(LINEAR)
    arguments = ["packed_linear", "--provider", "linear.py", "--examples", "40", "--seed", "3", "--json", "found.json"]
    assert main(["check", *arguments]) == 1
    assert "wrong_path" in capsys.readouterr().out
    Path("linear.py").write_text(LINEAR.replace("False", "True"))
    assert main(["check", *arguments, "--cpu", "amx"]) == 0, capsys.readouterr().out
    assert re.search(r"packed_linear +linear.py on amx \(trapped\) .* pass  [\d,]+ amx instructions", capsys.readouterr().out)
    result = json.loads(Path("found.json").read_text())["results"][0]
    assert result["run_as"] == "trapped" and result["executed"]["amx products"] > 0


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_a_failure_is_replayed_on_the_same_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    Path("linear.py").write_text(LINEAR.replace(".contiguous())", ".contiguous()) * 2"))
    assert main(["check", "packed_linear", "--provider", "linear.py", "--cpu", "amx", "--examples", "20", "--seed", "3"]) == 1
    found = re.search(r"kernelpair replay '(.*)' --provider linear.py --cpu amx$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    assert main(["replay", found[1], "--provider", "linear.py", "--cpu", "amx"]) == 1
    assert "packed_linear[linear.py on amx (trapped)] fail" in capsys.readouterr().out
    assert main(["replay", found[1], "--provider", "linear.py", "--cpu", "amx", "--script", "bug.py"]) == 2
    assert "--script does not go with --cpu" in capsys.readouterr().err


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_a_crash_says_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The signals are those of the handler of tile instructions; what is not its own it hands on to whom the worker has."""
    both_sides = "    import ctypes\n    [ctypes.string_at(x.data_ptr() + at, 1) for at in (-1, 2 * x.numel())]\n    if CPU"
    Path("linear.py").write_text(LINEAR.replace("    if CPU", both_sides))
    arguments = ["packed_linear", "--provider", "linear.py", "--cpu", "amx", "--examples", "1", "--seed", "3", "--trial", "value"]
    assert main(["check", *arguments]) == 1
    assert re.search(r"crash: SIGSEGV: reads .* the (start|end) of `", capsys.readouterr().out)


@pytest.mark.usefixtures("in_a_folder_of_its_own")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--cpu", "amx"), "--cpu needs --provider"),
        (("--cpu", "amy", "--provider", "linear.py"), "unknown CPU 'amy'"),
        (("--cpu", "amx", "--provider", "linear.py", "--in-process"), "it does not go with --in-process"),
    ],
)
def test_what_cannot_be_asked_for_is_said(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("linear.py").write_text(LINEAR)
    assert main(["check", "packed_linear", *arguments]) == 2
    assert says in capsys.readouterr().err


@TRAPPED_HERE
def test_the_doctor_says_how_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    how = "CPUID faults" if trapped.cpuid_faults() else "CPUID is replaced in memory"
    assert json.loads(capsys.readouterr().out)["amx_for_providers"] == f"told with --cpu amx: {how}"


@TRAPPED_HERE
@pytest.mark.skipif(trapped.cpuid_faults(), reason="this CPU can fault on CPUID: nothing has to be replaced")
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_where_it_cannot_be_told_the_command_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("linear.py").write_text(LINEAR)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *given, **more: None if name == "objdump" else which(name, *given, **more))
    assert main(["check", "packed_linear", "--provider", "linear.py", "--cpu", "amx"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "this CPU cannot fault on CPUID" in said and "objdump (binutils)" in said and "Without --cpu" in said
    assert not os.path.exists(".kernelpair/cpuid.json")
