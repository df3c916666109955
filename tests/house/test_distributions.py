"""The two distributions of the checkout say the same where they must, and the library is brought up to date before it is used."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernelpair.sources import BuildError
from optimized import library
from properties.suite import SUITE

ROOT = Path(__file__).resolve().parent.parent.parent


def described(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path / "pyproject.toml").read_text())


ENGINE, KERNELS = described("."), described("kernels")


def test_both_have_one_version_and_the_kernels_need_this_engine() -> None:
    version = ENGINE["project"]["version"]
    assert KERNELS["project"]["version"] == version and f"kernelpair=={version}" in KERNELS["project"]["dependencies"]


def test_the_engine_builds_without_torch_and_pins_nothing() -> None:
    assert not [need for need in ENGINE["build-system"]["requires"] if "torch" in need]
    assert not [need for need in ENGINE["project"]["dependencies"] if "==" in need]
    assert "entry-points" not in ENGINE["project"]


def test_the_library_is_built_against_the_torch_that_it_runs_with() -> None:
    (runs,) = (need for need in KERNELS["project"]["dependencies"] if need.startswith("torch"))
    (builds,) = (need for need in KERNELS["build-system"]["requires"] if need.startswith("torch"))
    assert builds.replace("~=", "==") == runs


def test_this_environment_has_both_in_place() -> None:
    done = subprocess.run([sys.executable, "-P", str(ROOT / "kernels" / "in_place.py")], check=False, cwd="/")
    assert done.returncode == 0, "run `make build`"


def test_what_make_installs_holds_the_pin_and_neither_distribution() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "kernels" / "requirements.py")], capture_output=True, text=True, check=True)
    needed = done.stdout.split("\n")
    assert [need for need in needed if need.startswith("torch==")] and not [need for need in needed if "kernelpair" in need]


def test_a_build_that_is_not_set_up_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERNELPAIR_LIBRARY", raising=False)
    monkeypatch.setattr(library, "BUILT", tmp_path)
    with pytest.raises(BuildError, match="is not set up: run `make build`"):
        SUITE.sources.bring_up_to_date(ROOT)
    with pytest.raises(ImportError, match="is missing: run `make build`"):
        library.library_path()


def test_commands_compile_what_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a build of one rule in the place of ours: it runs where its source is newer, and not where it is not."""
    monkeypatch.delenv("KERNELPAIR_LIBRARY", raising=False)
    monkeypatch.setattr(library, "BUILT", tmp_path)
    (tmp_path / "build.ninja").write_text("rule copy\n  command = cp $in $out\nbuild made: copy source\ndefault made\n")
    make = next(line for line in (ROOT / "build/release/CMakeCache.txt").read_text().splitlines() if "CMAKE_MAKE_PROGRAM" in line)
    known = ["CMAKE_GENERATOR:INTERNAL=Ninja", "CMAKE_PROJECT_NAME:STATIC=one", f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}", make]
    (tmp_path / "CMakeCache.txt").write_text("\n".join(known) + "\n")
    for text in ("one", "two"):
        (tmp_path / "source").write_text(text)
        os.utime(tmp_path / "source")
        SUITE.sources.bring_up_to_date(ROOT)
        assert (tmp_path / "made").read_text() == text
