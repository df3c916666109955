"""What a kernel prints stands beside the verdict of its replayed case: the print that its author has put there to see why."""

from pathlib import Path

import pytest

from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

KERNEL = """
import ctypes, os, signal, sys
from kernelpair.providers.provider import adapts

C = ctypes.CDLL(None)


@adapts("rms_norm")
def rms_norm(x, weight, eps=1e-6, **rest):
    {does}
    return x * weight * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
"""


def replayed(capsys: Capture, does: str, *options: str) -> list[str]:
    """The lines of the replay of a kernel that does this before it returns the right result."""
    Path("printing.py").write_text(KERNEL.format(does=does))
    status = kernelpair("replay", '{"pair":"rms_norm","v":1}', "--provider", "printing.py", *options)
    said = capsys.readouterr()
    assert status < 2, said.err
    return said.out.splitlines()


def test_from_python_and_from_c(capsys: Capture) -> None:
    lines = replayed(capsys, 'print("shape", *x.shape); C.printf(b"from C\\n"); print("a\\x1b[2Jb", file=sys.stderr)')
    assert lines[:2] == ["rms_norm[printing.py] pass", "  printed:"]
    assert lines[2:5] == ["    shape 1 1", "    from C", "    a\\x1b[2Jb"]


@pytest.mark.parametrize("says", ['print("so far")', 'C.printf(b"so far\\n")'])
def test_what_was_printed_before_a_crash(capsys: Capture, says: str) -> None:
    lines = replayed(capsys, f"{says}; os.kill(os.getpid(), signal.SIGSEGV)")
    assert lines[0] == "rms_norm[printing.py] fail" and "crash: SIGSEGV" in lines[1]
    assert lines[-3:-1] == ["  printed:", "    so far"]


def test_of_many_lines_the_last(capsys: Capture) -> None:
    many = 'print(*range(1000), sep="\\n")'
    lines = replayed(capsys, many)
    assert "(the last 10 of " in lines[1] and lines[2:] == [f"    {i}" for i in range(990, 1000)]
    assert "(the last 200 of " in "".join(replayed(capsys, many, "-v"))


def test_a_kernel_that_prints_nothing(capsys: Capture) -> None:
    assert replayed(capsys, "pass") == ["rms_norm[printing.py] pass"]
