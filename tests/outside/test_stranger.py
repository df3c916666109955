"""The engine's wheel in a stranger's environment and repository, as docs/5 says: its files and commands, taken from the page.

The environment has the packages of this one but nothing of the checkout; the repository has a folder `properties` of its own.
"""

import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimized.library import library_path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "5-checking-your-own-kernel.md"
BLOCK = re.compile(r"^```(sh|c|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^(?:#|//) (\S+)\n(.*)", re.DOTALL)
STATUS = re.compile(r" # exit status (\d+)$")
REPLAY = re.compile(r"^  (kernelpair replay '.*)$", re.MULTILINE)
OURS = ("kernelpair", "_kernelpair", "_editable", "__editable__")
WITH_LIBRARY = ("--config-settings", f"cmake.define.KERNELPAIR_BUILT={library_path()}")
DISTRIBUTIONS: dict[str, tuple[str, tuple[str, ...]]] = {"engine": (".", ()), "kernels": ("kernels", WITH_LIBRARY)}


def done(*command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without what this project's variables say."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELPAIR", "PYTHON", "GIT_"))}
    return subprocess.run(
        command, cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=300, check=False
    )


def wheel(which: str, folder: Path) -> Path:
    """Build the wheel of a distribution, as `make wheel` does, the library apart, which is built already."""
    source, options = DISTRIBUTIONS[which]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    built = done(*command, *options, str(ROOT / source), folder=folder, PATH=path_with(Path(sys.executable).parent))
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = folder.glob("*.whl")
    return found


def path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ["PATH"]])


class Environment:
    """A fresh environment. Other people's packages are links to those of this one, so that nothing is downloaded."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.folder = folder / "bin", folder
        venv.create(folder, with_pip=False, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for place in (Path(entry) for entry in sys.path if entry.endswith("-packages")):
            for package in sorted(place.iterdir()):
                link = packages / package.name
                if not package.name.startswith(OURS) and package.suffix != ".pth" and not link.exists():
                    link.symlink_to(package)
        self.packages = packages

    def install(self, built: Path) -> None:
        command = ["-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet", "--no-deps", "--no-index", str(built)]
        installed = done(sys.executable, *command, folder=self.folder)
        assert installed.returncode == 0, installed.stderr

    def run(self, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """One line of shell with this environment active."""
        who = {f"GIT_{role}_{what}": "stranger" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return done("bash", "-c", line, folder=folder, PATH=path_with(self.bin), VIRTUAL_ENV=str(self.folder), **who)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the engine's wheel."""
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.install(wheel("engine", tmp_path_factory.mktemp("engine")))
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty folder but for a `properties` that has nothing to do with kernels."""
    folder = tmp_path / "repository"
    (folder / "properties").mkdir(parents=True)
    (folder / "properties" / "__init__.py").write_text("raise ImportError('this is about houses')\n")
    return folder


def steps() -> Iterator[tuple[str, str]]:
    """The page's files (name, text) and commands ("", line), in its order, up to the part that needs our own suite."""
    walk = PAGE.read_text().partition("\n## A kernel under one of our contracts\n")[0]
    for kind, text in BLOCK.findall(walk):
        named = NAMED.match(text)
        if kind == "sh":
            yield from (("", line) for line in text.splitlines())
        else:
            assert named, f"a file without a name: {text[:40]!r}"
            yield named[1], named[2]


def test_the_engine_is_installed_alone(environment: Environment) -> None:
    (record,) = environment.packages.glob("kernelpair-*.dist-info/RECORD")
    tops = {line.partition("/")[0] for line in record.read_text().splitlines() if not line.startswith("../")}
    assert tops == {"kernelpair", record.parent.name}
    where = environment.run('python -c "import kernelpair; print(kernelpair.__file__)"', ROOT.parent)
    assert Path(where.stdout.strip()).is_relative_to(environment.folder), where.stdout + where.stderr


def test_every_step_of_the_page_works(environment: Environment, repository: Path) -> None:
    said: dict[str, str] = {}
    for name, text in steps():
        if name:
            (repository / name).write_text(text)
            continue
        status = STATUS.search(text)
        ended = environment.run(text, repository)
        assert ended.returncode == (int(status[1]) if status else 0), f"{text}\n{ended.stdout}\n{ended.stderr}"
        said.setdefault(" ".join(shlex.split(text)[:2]), ended.stdout)
        if text.startswith("kernelpair check") and status:
            assert_it_replays(environment, repository, ended.stdout)
    assert "kernel: add_scaled.c" in said["kernelpair list"] and "1 passed" in said["kernelpair check"]
    assert "2 of 2 mutants killed" in said["kernelpair mutate"] and "1 passed, 0 failed" in said["kernelpair mutate"]
    assert "torch" in said["kernelpair bench"] and "2 passed" in said["python -m"]
    assert "affected: add_scaled" in said["kernelpair premerge"] and "time / base" in said["kernelpair premerge"]


def assert_it_replays(environment: Environment, repository: Path, said: str) -> None:
    """The line that a failing check prints fails too."""
    lines = REPLAY.findall(said)
    assert "FAIL add_scaled[optimized]" in said and lines
    again = environment.run(lines[0], repository)
    assert again.returncode == 1 and "add_scaled[optimized] fail" in again.stdout, again.stdout + again.stderr


def test_the_suite_may_be_named_from_anywhere(environment: Environment, repository: Path, tmp_path: Path) -> None:
    for name, text in steps():
        if name:
            (repository / name).write_text(text)
    none = environment.run("kernelpair list", tmp_path)
    assert none.returncode == 2 and "no suite: name one with --suite" in none.stderr
    named = environment.run(f"kernelpair --suite {repository}/kernelpair_suite.py list", tmp_path)
    assert named.returncode == 0 and named.stdout.startswith("add_scaled"), named.stderr


def test_the_kernels_wheel_is_a_suite_from_anywhere(repository: Path, tmp_path: Path) -> None:
    both = Environment(tmp_path / "both")
    for which in DISTRIBUTIONS:
        (tmp_path / which).mkdir()
        both.install(wheel(which, tmp_path / which))
    (record,) = both.packages.glob("kernelpair_kernels-*.dist-info/RECORD")
    tops = {line.partition("/")[0] for line in record.read_text().splitlines()}
    assert tops == {"kernelpair_kernels", record.parent.name}
    listed = both.run("kernelpair list", repository)
    assert listed.returncode == 0 and "\nstore_cache  " in listed.stdout, listed.stdout + listed.stderr
    checked = both.run("kernelpair check store_cache --tier scalar --examples 20 --seed 1", repository)
    assert checked.returncode == 0 and "20 cases" in checked.stdout, checked.stdout + checked.stderr
    planted = both.run("kernelpair mutate store_cache", repository)
    assert planted.returncode == 2 and "there is no mutant of store_cache" in planted.stderr, planted.stdout + planted.stderr
