"""`make` in a fresh checkout says what it does while packages are installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.screens import ROOT, usual_environment

FILES = ("Makefile", "pyproject.toml", "kernels/pyproject.toml", "kernels/requirements.py")
PIP = "#!/bin/sh\necho Collecting something\nexit {status}\n"


def test_one_tier_for_a_debugger_compiles_no_other() -> None:
    planned = subprocess.run(["make", "-n", "debug", "TIER=scalar"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-DKERNELPAIR_TIERS=scalar" in planned and "--build build/debug" in planned
    assert "build/release" not in planned and "$(BUILD)" not in planned


@pytest.mark.parametrize("status", [0, 1])
def test_packages_are_announced(tmp_path: Path, status: int) -> None:
    """With a pip that installs nothing: what it says is seen, and where it fails nothing counts as set up."""
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "pip").write_text(PIP.format(status=status))
    for tool in tools.iterdir():
        tool.chmod(0o755)
    command = ["make", ".venv/.requirements"]
    done = subprocess.run(command, cwd=tmp_path, env=usual_environment(), capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    assert said[0].startswith("bringing .venv up to date: ") and said[1] == "Collecting something", done.stdout + done.stderr
    assert (done.returncode == 0) is (status == 0) is (tmp_path / ".venv" / ".requirements").is_file()
    listed = (tmp_path / ".venv" / (".requirements.txt" if status else ".requirements")).read_text().splitlines()
    assert len(listed) > 10 and f": {len(listed)} packages and what they need" in said[0]
