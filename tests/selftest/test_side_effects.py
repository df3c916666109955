"""The harness on trial: what a kernel leaves changed beside its result must be caught, with the right word for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.report.recorder import Recorder
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.trial import modes
from kernelpair.trial.check import check
from kernelpair.trial.modes import HEAP, SIDE_EFFECTS
from tests.selftest.side_effects import FAULTS, subject
from tests.selftest.toy import ToyCase, library

CASES = 200


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    library()


def _try(tried: Subject, cases: int = CASES) -> Tally:
    with Isolated(tried.candidate, preload=("properties.suite",), hang_seconds=20.0) as runner:
        return Search(tried, runner, shrink_seconds=0.1).run(cases, None, 1, None)


def test_a_kernel_that_leaves_nothing_passes() -> None:
    tally = _try(subject("good"))
    assert tally.passed, tally.failures
    assert tally.trials["aftermath"] > 0


def test_what_cycles_of_python_hold_is_no_leak() -> None:
    tally = _try(subject("cyclic_garbage"))
    assert tally.passed, tally.failures
    assert tally.trials["aftermath"] > 0


def test_a_leak_is_seen_too_where_pictures_are_drawn() -> None:
    tried = subject("leaks")
    with Isolated(tried.candidate, preload=("properties.suite",), hang_seconds=20.0) as runner:
        verdict = check(tried, ToyCase(rows=3, trial="aftermath"), runner, session_type=Recorder)
    assert {failure.kind for failure in verdict.failures} == {"leak"}, verdict.failures


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_left_is_caught(fault: str) -> None:
    tally = _try(subject(fault))
    assert FAULTS[fault] in tally.failures, f"{set(tally.failures)} after {tally.cases} cases"


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("rounds_down", "(rounds down)"),
        ("flushes_to_zero", "(flush-to-zero on)"),
        ("takes_denormals_for_zero", "(denormals-are-zero on)"),
        ("unmasks_exceptions", "(exceptions unmasked)"),
        ("unmasks_x87_exceptions", "(exceptions unmasked)"),
    ],
)
def test_how_numbers_are_computed_now_is_told_in_words(kernel: str, says: str) -> None:
    failures = [failure for verdict in _try(subject(kernel)).failures.values() for failure in verdict.failures]
    assert any(failure.kind == "fp_state" and failure.detail.endswith(says) for failure in failures), failures


def test_what_is_known_is_not_judged() -> None:
    why = "its library is compiled with -ffast-math"
    assert _try(subject("flushes_when_loaded", mxcsr=why, fp_of_pool=why), 60).passed


@pytest.mark.parametrize(("kernel", "kinds"), [("leaks_a_little", ["leak"]), ("leaves_thread", ["left_behind", "leak"])])
def test_a_series_tells_what_takes_the_memory_first(
    kernel: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "SERIES_CALLS", 300)
    monkeypatch.setattr(modes, "SERIES_SECONDS", 20.0)
    tried = subject(kernel)
    with Isolated(tried.candidate, preload=("properties.suite",), hang_seconds=60.0) as runner:
        verdict = check(tried, ToyCase(rows=3, trial="series"), runner)
    assert [failure.kind for failure in verdict.failures] == kinds, verdict.failures


@pytest.mark.parametrize("fault", ["static_buffer", "result_in_large_storage", "argument_requires_grad", "leaks_mapping"])
def test_what_is_known_of_tensors_and_memory_is_not_judged(fault: str) -> None:
    name = {"leak": HEAP}.get(FAULTS[fault], FAULTS[fault])
    assert name in SIDE_EFFECTS  # a provider may say it
    tally = _try(subject(fault, **{name: "documented"}), 60)
    assert tally.passed, tally.failures
    assert tally.trials["aftermath"] > 0


HOLDING = """
import ctypes
from kernelpair.call.heap import held_bytes

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def grown(freed):
    before = held_bytes()
    for _ in range(20):
        address = libc.malloc(300_000)
        ctypes.memset(address, 1, 300_000)
        if freed:
            libc.free(address)
    return [after - held for after, held in zip(held_bytes(), before)]

grown(True)
freed, kept = grown(True), grown(False)
assert max(freed) < 20 * 4096, freed
assert 20 * 300_000 <= sum(kept) < 20 * 400_000, kept
"""


def test_what_a_sanitizer_holds_back_is_no_leak() -> None:
    asan = subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(asan).is_file():
        pytest.skip("the compiler has no AddressSanitizer")
    environment = os.environ | {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0"}
    subprocess.run([sys.executable, "-c", HOLDING], env=environment, check=True, timeout=120)
