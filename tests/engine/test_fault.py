"""A crash says what was read or written, of which argument, by which code."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelpair.call.fault import Extent, Fault, Frame, told, without_frames, without_parameters
from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check
from tests.selftest.toy import PAIR, ToyCase

ROWS = ToyCase(rows=3, width=5)
ARENA = 1 << 32
ILLEGAL = "an instruction that this CPU lacks, or a compiler's trap (ud2)"
EXTENTS = [Extent(8000, 8192, ["x"]), Extent(16384, 16400, ["k", "v"])]


def crash(name: str, guard: str = "end") -> str:
    ours = Subject(PAIR, Candidate(name, f"tests.selftest.toy:{name}"))
    with Isolated(ours.candidate) as runner:
        verdict = check(ours, replace(ROWS, guard=guard), runner)
    assert [failure.kind for failure in verdict.failures] == ["crash"]
    return verdict.failures[0].detail


@pytest.mark.parametrize(
    ("name", "guard", "says"),
    [
        ("reads_past", "end", "SIGSEGV: reads just past the end of `x` (guard at the end), in reads_past"),
        ("writes_right", "end", "SIGSEGV: writes just past the end of `out` (guard at the end), in writes_right"),
        ("writes_left", "start", "SIGSEGV: writes 4 bytes before the start of `out` (guard at the start), in writes_left"),
        ("segfault", "end", "SIGSEGV: writes address 0x10, a null pointer's, in segfault"),
        ("illegal_instruction", "end", f"SIGILL: {ILLEGAL}, in illegal_instruction"),
        ("aborts", "end", "SIGABRT: the process gave up (abort), in aborts"),
        ("division_by_zero", "end", "SIGFPE: a division by zero, or one whose result does not fit, in division_by_zero"),
    ],
)
def test_a_bad_kernel(name: str, guard: str, says: str) -> None:
    assert crash(name, guard) == says


def test_a_signal_from_outside_is_still_fatal() -> None:
    said = crash("kills_itself")
    assert said.startswith("SIGSEGV: sent by a process, not raised by an instruction") and said.endswith("kills_itself")


def test_a_stack_that_overflows_is_told() -> None:
    assert crash("recurses").startswith("SIGSEGV: writes address 0x")


def fault(offset: int, **fields: int) -> Fault:
    known = {"signal": signal.SIGSEGV, "code": 2, "address": ARENA + offset, "error": 4, "arena": ARENA}
    return Fault(**known | fields, frames=())


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (fault(8192), "reads just past the end of `x`"),
        (fault(8200), "reads 8 bytes past the end of `x`"),
        (fault(16380), "reads 4 bytes before the start of `k` and `v`"),
        (fault(16401), "reads 1 byte past the end of `k` and `v`"),
        (fault(8000, error=6), "writes 0 bytes into `x`, where no page is mapped"),
        (fault(-(1 << 31)), "reads address 0x80000000, which belongs to no argument"),
        (fault(0, code=0x80, address=0), "an address that is none, or an aligned access"),
        (fault(0, error=0x14), "jumps to"),
    ],
)
def test_where_it_was(what: Fault, says: str) -> None:
    assert says in told(what, EXTENTS, "end", 1 << 20)


def test_frames_that_only_lead_to_the_kernel_are_left_out() -> None:
    frames = tuple(Frame(f"/somewhere/{file}", "f", 1, 1) for file in ("libc.so.6", "mine.so", "libffi.so.8", "python3.11"))
    said = told(replace(fault(0), frames=frames), EXTENTS, "end", 1 << 20)
    assert said.endswith(", in f, called from f")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("kernelpair::(anonymous namespace)::Rows<unsigned short>::score<8>(Block const&, long)", "kernelpair::Rows::score"),
        ("void run<store(Call const&)::{lambda(long, long)#1}>(long, long)", "run"),
        ("reads_past", "reads_past"),
        ("decode::{lambda(long, float*)#1}::operator()(long, float*) const", "decode"),
    ],
)
def test_a_function_by_its_name(function: str, name: str) -> None:
    assert without_parameters(function) == name


def test_what_the_worker_printed_is_told_from_its_frames() -> None:
    log = "free(): invalid pointer\n/usr/lib/libc.so.6(abort+0x12)[0x7f00]\n[0x7fff]\n/x/y.so(+0x3) [0x7f01]\n/x/z[0x645]\n"
    assert without_frames(log) == "free(): invalid pointer"


def test_guards_fault_in_process_too(tmp_path: Path) -> None:
    """A debugger sees the access itself, where it happens."""
    script = tmp_path / "in_process.py"
    script.write_text(
        "from kernelpair.call.runner import InProcess\n"
        "from kernelpair.contract.candidate import Candidate\n"
        "from kernelpair.contract.subject import Subject\n"
        "from kernelpair.trial.check import check\n"
        "from tests.selftest.toy import PAIR, ToyCase\n"
        "import sys\n"
        "ours = Subject(PAIR, Candidate('bad', f'tests.selftest.toy:{sys.argv[1]}'))\n"
        "with InProcess(ours.candidate, guards=sys.argv[2] == 'guards') as runner:\n"
        "    for seed in range(3):\n"
        "        assert check(ours, ToyCase(rows=3, width=5, seed=seed, trial='repeat'), runner).passed\n"
    )
    root = Path(__file__).resolve().parents[2]

    def ended(name: str, guards: str) -> int:
        run = [sys.executable, "-P", str(script), name, guards]
        return subprocess.run(run, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.DEVNULL).returncode

    assert ended("good", "guards") == 0
    assert ended("reads_past", "guards") == -signal.SIGSEGV
    assert ended("reads_past", "none") == 0
