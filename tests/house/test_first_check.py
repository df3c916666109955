"""`make check` without a library: the first tiers are on trial before the others are compiled."""

import os
import re
import signal
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import optimized
from properties import ROOT

SCRIPT = ROOT / "kernels" / "first_check.py"
FIRST = re.findall(r"^kp_tier\((\w+) FIRST\b", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
INTERRUPTED = """
import runpy, sys
command = [sys.executable, "-c", "import signal; signal.signal(2, lambda *_: exit(130)); print(flush=True); signal.pause()"]
sys.exit(runpy.run_path(sys.argv[1])["run"](command))
"""


@pytest.fixture
def script() -> ModuleType:
    spec = spec_from_file_location("first_check", SCRIPT)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("builds", "checks", "status"),
    [
        ([0, 0], [0, 0], 0),
        ([0, 0], [1, 0], 1),
        ([0, 0], [0, 1], 1),
        ([0, 0], [1, 70], 70),
        ([0, 2], [1], 2),
        ([2], [], 2),
        ([0], [130], 130),
    ],
)
def test_the_worst_of_both_parts_is_the_status(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, builds: list[int], checks: list[int], status: int
) -> None:
    built, checked = iter(builds), iter(checks)
    seen = []

    def run(command: list[str], env: dict[str, str] | None = None) -> int:
        if command[0] in ("flock", "make"):
            seen.append(command[-1])
            return next(built)
        assert Path(command[0]).name == "kernelpair" and env
        seen.append(" ".join(word.removeprefix("--tier=") for word in command[2:]))
        assert ("first" in env.get("KERNELPAIR_LIBRARY", "")) is (seen[-1] == "a b")
        return next(checked)

    monkeypatch.delenv("KERNELPAIR_LIBRARY", raising=False)
    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "runnable", lambda library=None: ["a", "b"] if library else ["a", "b", "c"])
    assert script.main() == status
    assert seen == ["first", "a b", "build", "c"][: len(builds) + len(checks)]


def test_where_the_first_tiers_are_all_nothing_is_tried_twice(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr(script, "run", lambda command, env=None: commands.append(command) or 0)
    monkeypatch.setattr(script, "runnable", lambda library=None: ["a", "b"])
    assert script.main() == 0
    assert [command[1] for command in commands if Path(command[0]).name == "kernelpair"] == ["check"]


def test_an_interrupted_command_says_itself_how_it_ended() -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (130, "")


def test_the_first_tiers_need_no_other() -> None:
    assert FIRST and set(FIRST) < {tier.name for tier in optimized.tiers()}
    assert all(owner in FIRST for _, tier, owner in optimized.build()["shared"] if tier in FIRST)


@pytest.mark.parametrize("variable", ["KERNELPAIR_TIER", "KERNELPAIR_LIBRARY", ""])
def test_who_names_a_tier_or_a_library_gets_one_check(tmp_path: Path, variable: str) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELPAIR", "MAKE"))}
    for file in ("pyproject.toml", "kernels/pyproject.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    command = ["make", "-n", "check"]
    env = environment | ({variable: "scalar"} if variable else {})
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    planned = done.stdout.splitlines()[-1]
    assert planned == (".venv/bin/kernelpair check" if variable else ".venv/bin/python -P kernels/first_check.py")
