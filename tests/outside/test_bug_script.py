"""A script that shows a failure without the harness; one that would not show it is not written."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import properties
from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Difference, Failure, Verdict
from kernelpair.providers.bug_script import NoScript, write_script
from kernelpair.trial.check import check
from properties.store_cache.cases import StoreCacheCase
from properties.suite import SUITE, candidate
from tests.command_line import kernelpair
from tests.selftest.toy import PAIR, ToyCase

STORE = properties.pairs()["store_cache"]
ROWS = ToyCase(rows=3, width=5, spare=1)


def verdict_of(name: str, **fields: str) -> tuple[Candidate, Verdict]:
    ours = Subject(PAIR, Candidate(name, f"tests.selftest.toy:{name}"))
    with Isolated(ours.candidate) as runner:
        return ours.candidate, check(ours, replace(ROWS, **fields), runner)


def run(script: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=script.parent)


@pytest.mark.parametrize(
    ("kernel", "guard", "status", "says"),
    [
        ("reads_past", "end", -11, ""),
        ("segfault", "end", -11, ""),
        ("small_error", "end", 1, "wrong: out["),
        ("nan_output", "end", 1, "wrong: out["),
        ("unwritten", "end", 1, "wrong: out["),
        ("writes_left", "end", 1, "bytes beside buffer"),
        ("clobbers_neighbour", "end", 1, "bytes changed that must not"),
        ("changes_input", "end", 1, "wrong: x: "),
        ("exception_instead_of_result", "end", 1, ""),
    ],
)
def test_a_kernel_called_through_ctypes(kernel: str, guard: str, status: int, says: str, tmp_path: Path) -> None:
    bad, verdict = verdict_of(kernel, guard=guard)
    write_script(tmp_path / "bug.py", PAIR, bad, verdict, "")
    done = run(tmp_path / "bug.py")
    assert done.returncode == status, done.stderr
    assert says in done.stdout
    assert "import kernelpair" not in (tmp_path / "bug.py").read_text()


def test_a_missing_error(tmp_path: Path) -> None:
    bad, verdict = verdict_of("result_instead_of_error", trial="wrong_call:slot_too_large")
    assert verdict.failures[0].kind == "missing_error"
    write_script(tmp_path / "bug.py", PAIR, bad, verdict, "")
    assert "wrong: a result where the contract demands an error" in run(tmp_path / "bug.py").stdout


def test_an_operator_in_its_tier(tmp_path: Path) -> None:
    """A verdict that expects what the kernel does not do: the operator itself is called, in each tier by another script."""
    case = StoreCacheCase(rows=2, dtype="float32", width_k=3, width_v=2)
    wrong = Difference((0, 0, 1), 7.5, 0.0, 0.125, 60.0)
    verdict = Verdict(case, STORE.line(case), [Failure("value", "k_cache", "1 of 6 elements differ", (wrong,))])
    texts = []
    for tier in ("scalar", "amx_emulated"):
        script = tmp_path / f"{tier}.py"
        write_script(script, STORE, candidate(STORE, tier), verdict, SUITE.script)
        texts.append(script.read_text())
        done = run(script)
        assert done.returncode == 1 and "wrong: k_cache[0, 0, 1] is " in done.stdout
        assert "torch.ops.kernelpair.store_cache(" in texts[-1] and f'"{tier}"' in texts[-1]
        assert "import kernelpair" not in texts[-1] and "properties" not in texts[-1].replace(str(tmp_path), "")
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict(ROWS, PAIR.line(ROWS)), "the case passes on good: there is nothing to show"),
        (Verdict(ROWS, PAIR.line(ROWS), [Failure("crash", "", "SIGSEGV")]), "does not show `crash`: it ends with status 0"),
        (Verdict(ROWS, PAIR.line(ROWS), [Failure("relation", "out", "x")]), "a single call does not show `relation`"),
    ],
)
def test_what_no_script_shows_is_not_written(verdict: Verdict, says: str, tmp_path: Path) -> None:
    with pytest.raises(NoScript, match=says):
        write_script(tmp_path / "bug.py", PAIR, Candidate("good", "tests.selftest.toy:good"), verdict, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("entry", ["tests.selftest.toy:loops_forever", "tests.kernels:closes_all_and_sleeps"])
def test_a_kernel_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """Writing its script makes the call, and does not wait for ever."""
    monkeypatch.setattr("kernelpair.providers.bug_script.SECONDS", 8)
    verdict = Verdict(ROWS, PAIR.line(ROWS), [Failure("hang", "", "no answer within 20 s")])
    write_script(tmp_path / "bug.py", PAIR, Candidate("hangs", entry), verdict, "")
    assert "kernel(" in (tmp_path / "bug.py").read_text()


def test_what_a_call_starts_is_not_waited_for_and_may_print_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.providers.bug_script.SECONDS", 40)  # what it starts sleeps for a minute
    bad = Candidate("leaves", "tests.kernels:errs_and_leaves_a_process_that_prints")
    wrong = Difference((0, 0), 1.0, 0.0, 2.0**-24, 60.0)
    verdict = Verdict(ROWS, PAIR.line(ROWS), [Failure("value", "out", "1 of 15 elements differ", (wrong,))])
    write_script(tmp_path / "bug.py", PAIR, bad, verdict, "")
    assert "kernel(" in (tmp_path / "bug.py").read_text()


def test_openmp_s_threads_are_not_waited_for(tmp_path: Path) -> None:
    """They are not in the process that records the call."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.ones(1 << 20).sum()
        bad, verdict = verdict_of("small_error")
        write_script(tmp_path / "bug.py", PAIR, bad, verdict, "")
    finally:
        torch.set_num_threads(threads)
    assert "wrong: out[" in run(tmp_path / "bug.py").stdout


PREPARED = """
from kernelpair.providers.provider import adapts

FACTOR = []


def prepare():
    FACTOR.append(2)


@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    k_cache[indices], v_cache[indices] = FACTOR[0] * k, v
"""


def test_the_kernel_of_a_provider_s_file_that_prepares_runs_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "mine.py").write_text(PREPARED)
    monkeypatch.chdir(tmp_path / "a b")
    line = '{"pair":"store_cache","v":1,"rows":2}'
    assert kernelpair("replay", line, "--provider", "mine.py", "--script", "../bug.py") == 1
    assert "wrong: k_cache[" in run(tmp_path / "bug.py").stdout


HANDLES = """
import os
import torch

library = torch.library.Library("kernelpair_handles", "DEF")
library.define("make(Tensor x) -> int")
library.define("use(Tensor handle) -> ()")


def use(handle):
    raise RuntimeError("used" if int(handle) == (1 << 40) + os.getpid() else "of another process")


library.impl("make", lambda x: (1 << 40) + os.getpid(), "CompositeImplicitAutograd")
library.impl("use", use, "CompositeExplicitAutograd")


def kernel(x, slots, out, scale):
    torch.ops.kernelpair_handles.use(torch.tensor(torch.ops.kernelpair_handles.make(x)))
"""


ODD = """
import math
from kernelpair.providers.bug_script import NoScript

def quotes(x, slots, out, scale):
    raise RuntimeError('of \\"\\"\\" and a \\\\ at its end \\\\')

def infinite(x, slots, out, scale):
    assert scale == math.inf

def talks(x, slots, out, scale):
    raise NoScript("much " * 100_000)
"""


def odd(name: str, folder: Path, failure: Failure, case: ToyCase = ROWS) -> subprocess.CompletedProcess[str]:
    """The script of a failure of one of these kernels, run."""
    (folder / "odd.py").write_text(ODD)
    verdict = Verdict(case, PAIR.line(case), [failure])
    write_script(folder / "bug.py", PAIR, Candidate("odd", f"{folder}/odd.py:{name}"), verdict, "")
    return run(folder / "bug.py")


def test_a_message_may_hold_quotation_marks(tmp_path: Path) -> None:
    says = 'of """ and a \\ at its end \\'
    assert says in odd("quotes", tmp_path, Failure("exception", "", f"RuntimeError: {says}")).stderr


def test_a_number_that_is_not_finite_is_written_as_one(tmp_path: Path) -> None:
    pair = replace(PAIR, cases=replace(PAIR.cases, inputs=lambda case: PAIR.cases.inputs(case) | {"scale": math.inf}))
    (tmp_path / "odd.py").write_text(ODD)
    verdict = Verdict(ROWS, PAIR.line(ROWS), [Failure("missing_error", "scale", "a result")])
    write_script(tmp_path / "bug.py", pair, Candidate("odd", f"{tmp_path}/odd.py:infinite"), verdict, "")
    assert "scale=float('inf')" in (tmp_path / "bug.py").read_text()


def test_what_takes_more_than_a_pipe_to_say_is_said_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(NoScript, match=r"much much .* characters"):
        odd("talks", tmp_path, Failure("exception", "", "NoScript: much"))
    assert time.monotonic() < begun + 50


def test_an_operator_that_is_made_of_others_is_called_too(tmp_path: Path) -> None:
    """With autograd the recorder would not see it, and the script would use a handle of another process."""
    (tmp_path / "handles.py").write_text(HANDLES)
    verdict = Verdict(ROWS, PAIR.line(ROWS), [Failure("exception", "", "RuntimeError: used")])
    load = f"sys.path.insert(0, {str(tmp_path)!r})\nimport handles\n"
    write_script(tmp_path / "bug.py", PAIR, Candidate("handles", f"{tmp_path}/handles.py:kernel"), verdict, load)
    assert "RuntimeError: used" in run(tmp_path / "bug.py").stderr
