"""Narrow circumstances: a run works in them, or ends with one clear line and the right status."""

import json
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelpair.call.fork_server import WAITING
from kernelpair.contract.case import CaseError
from kernelpair.trial.check import read_case
from properties.suite import SUITE
from tests import mounts
from tests.command_line import ENVIRONMENT
from tests.processes import ENDED_WITHIN, Run, run, wait_for
from tests.selftest.toy import PAIR as TOY

CHECK = ("check", "store_cache", "--tier", "scalar", "--examples", "5", "--suite", "properties.suite")
UNWRITABLE = Path("/sys")  # where root cannot make a file either
FULL = "/dev/full"
SHARED = Path("/dev/shm")  # noqa: S108 - made smaller, not written to
COUNTS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
STREAMS = {"stdin": [0], "stdout": [1], "stdin and stdout": [0, 1], "any stream": [0, 1, 2]}


def _works(running: Run) -> str:
    out, err = running.end()
    assert running.process.returncode == 0, out + err
    assert "1 passed, 0 failed" in out and not err
    assert not running.left()
    return out


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "no home, C locale": {"HOME": None, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "few file descriptors": {"before": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))},
    "one core": {"before": _one_core},
    "no asserts, no docstrings": {"python": ["-OO"]},
    "warnings of Python's": {"PYTHONWARNINGS": "error"},
}


@pytest.mark.parametrize("how", CIRCUMSTANCES)
def test_a_run_works_with(tmp_path: Path, how: str) -> None:
    with run(tmp_path / "a folder of Zoë", *CHECK, "--json", "r.json", **CIRCUMSTANCES[how]) as running:
        _works(running)
    assert json.loads((running.folder / "r.json").read_text(encoding="utf-8"))["results"][0]["verdict"] == "pass"


def test_threads_that_the_user_has_spin_while_they_wait_are_not_what_a_kernel_leaves_behind(tmp_path: Path) -> None:
    line = '{"pair":"store_cache","v":1,"trial":"aftermath"}'
    spins = dict.fromkeys(WAITING, "dist,dist") | {"OMP_WAIT_POLICY": "active"} | dict.fromkeys(COUNTS, "infinite")
    with run(tmp_path / "run", "replay", line, "--tier", "scalar", "--suite", "properties.suite", **spins) as running:
        assert wait_for(lambda: running.processes("kernelpair-serv"), ENDED_WITHIN)
        has = Path(f"/proc/{running.processes('kernelpair-serv')[0]}/environ").read_bytes().split(b"\0")
        assert {f"{name}={value}".encode() for name, value in WAITING.items()} <= set(has)
        out, err = running.end()
    assert (running.process.returncode, err) == (0, ""), out


@pytest.mark.parametrize("without", STREAMS)
def test_a_run_works_without(tmp_path: Path, without: str) -> None:
    def close() -> None:
        for number in STREAMS[without]:
            os.close(number)

    with run(tmp_path / "run", *CHECK, "--json", "r.json", before=close, TERM=None) as running:
        _, err = running.end()
        assert running.process.returncode == 0 and not err
        assert not running.left()
    assert json.loads((running.folder / "r.json").read_text())["results"][0]["verdict"] == "pass"


def _mounted(make: Callable[[Path], None], place: Path) -> dict[str, Any]:
    """How a run is started that sees this mount."""
    if mounts.refused():
        pytest.skip(f"no process can have mounts of its own here: {mounts.refused()}")
    return {"before": lambda: make(place)}


def test_a_run_works_with_little_shared_memory(tmp_path: Path) -> None:
    with run(tmp_path / "run", *CHECK, "--json", "r.json", **_mounted(mounts.small, SHARED)) as running:
        _works(running)


def test_a_run_works_in_a_checkout_that_cannot_be_written(tmp_path: Path) -> None:
    into, seen = tmp_path / "run" / "r.json", _mounted(mounts.read_only, SUITE.root)
    with run(tmp_path / "run", *CHECK, "--json", str(into), where=SUITE.root, **seen) as running:
        _works(running)
    assert json.loads(into.read_text())["results"][0]["verdict"] == "pass"


def test_a_run_on_a_full_disk_is_judged_and_says_what_it_cannot_write(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    files = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html")
    with run(folder, *CHECK, *files, **_mounted(mounts.full, folder)) as running:
        out, err = running.end()
        assert not running.left()
    assert running.process.returncode == 70 and "Traceback" not in err
    assert "1 passed, 0 failed" in out
    for name in files[1::2]:
        assert f"cannot write {name}: No space left on device" in out.splitlines()


def test_a_run_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    with run(tmp_path / "run", *CHECK, where=UNWRITABLE) as running:
        _works(running)


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    with run(tmp_path / "run", *CHECK, "--json", FULL, "--junit", "r.xml") as running:
        out, err = running.end()
    assert running.process.returncode == 70 and "Traceback" not in err
    assert f"cannot write {FULL}: No space left on device" in out.splitlines()
    assert (running.folder / "r.xml").is_file()


def test_two_runs_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    with run(tmp_path / "run", *CHECK) as one, run(tmp_path / "run", *CHECK, MARK_OF="two") as two:
        for running in (one, two):
            out, err = running.end()
            assert running.process.returncode == 0, out + err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"pair":"decode_attention","v":1,"cap":NaN}', "cap: Input should be a finite number"),
        ('{"pair":"store_cache","v":1,"first":-9}', "first: Input should be greater than or equal to 0"),
        ('{"pair":"decode_attention","v":1,"kv_heads":0}', "kv_heads = 0"),
        ('{"pair":"decode_attention","v":1,"heads":3,"kv_heads":2}', "heads = 3, kv_heads = 2"),
        ('{"pair":"store_cache","v":1,"seed":1,"seed":2}', "'seed' stands twice"),
        ('{"pair":"store_cache","v":1,"layout":{"k":"dense","k":"padded"}}', "'k' stands twice"),
        ('{"pair":"packed_linear","v":1,"N":1000000,"K":1000000}', "takes more than 1 GiB (N = 1000000, K = 1000000)"),
        ('{"pair":"decode_attention","v":1,"lens":[1000000000000]}', "takes more than 1 GiB (lens = (1000000000000,))"),
    ],
)
def test_a_case_that_no_strategy_draws_is_refused_by_name(line: str, says: str) -> None:
    with pytest.raises(CaseError) as refused:
        read_case(SUITE.pairs(), line)
    assert says in str(refused.value) and "alloc" not in str(refused.value)


def test_expanded_tensors_that_are_too_large_for_the_arena_are_refused_with_the_largest() -> None:
    given = {"x": torch.zeros(1).expand(2**29), "out": torch.zeros(1)}
    pair = replace(TOY, cases=replace(TOY.cases, inputs=lambda case: given))
    with pytest.raises(CaseError) as refused:
        read_case({"toy": pair}, '{"pair":"toy","v":1,"rows":7}')
    assert str(refused.value) == "toy: this case takes more than 1 GiB (rows = 7): x alone takes 2048 MiB"


@pytest.mark.parametrize("command", [("replay", '{"pair":"hungry","v":1}'), ("check", "hungry", "--examples", "2")])
def test_what_takes_too_much_memory_to_judge_is_a_fault_with_its_case(tmp_path: Path, command: tuple[str, ...]) -> None:
    with run(tmp_path / "run", *command, "--suite", "tests.cli.hungry_suite", PYTHONPATH=ENVIRONMENT["PYTHONPATH"]) as running:
        out, err = running.end()
    assert running.process.returncode == 70, out + err
    assert "Cannot allocate memory" in out + err and '{"pair":"hungry","v":1' in out + err
