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
from typing import Any

import pytest
import yaml

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
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=300, check=False)


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
    empty = tmp_path / "empty"
    empty.mkdir()
    for command in ("--version", "list store_cache", "doctor", 'replay \'{"pair":"store_cache","v":1,"rows":3}\' --tier scalar'):
        ended = both.run(f"kernelpair {command}", empty)
        assert ended.returncode == 0 and not ended.stderr, ended.stdout + ended.stderr
    assert ended.stdout == "store_cache[scalar] pass\n"
    planted = both.run("kernelpair mutate store_cache", repository)
    assert planted.returncode == 2 and "there is no mutant of store_cache" in planted.stderr, planted.stdout + planted.stderr


def write_the_suite(repository: Path, broken: bool = False) -> None:
    """The page's files, with a good kernel or one that leaves the last element of each row."""
    for name, text in steps():
        if name:
            (repository / name).write_text(text.replace("i < width;", "i < width - 1;") if broken else text)


def action(environment: Environment, repository: Path, **inputs: str) -> int:
    """Run what the composite action runs, as the service does, without other people's actions; the status of its last step."""
    described: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {name: spec["default"] for name, spec in described["inputs"].items()} | inputs
    known = {**{f"inputs.{name}": value for name, value in given.items()}, "github.action_path": str(ROOT)}
    status = 0
    for step in described["runs"]["steps"]:
        if "run" not in step or (step.get("if") == "${{ inputs.build != '' }}" and not given["build"]):
            continue

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known[found[1]], text)

        variables = {name: filled(value) for name, value in step.get("env", {}).items()}
        variables |= {"RUNNER_TEMP": str(repository), "GITHUB_OUTPUT": str(repository / "outputs")}
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"]))
        ended = done(
            *shell, folder=repository / filled(step.get("working-directory", ".")), PATH=path_with(environment.bin), **variables
        )
        status = ended.returncode
        assert status in (0, 1), ended.stdout + ended.stderr
    return status


@pytest.mark.parametrize("broken", [False, True], ids=["good", "broken"])
def test_the_action_in_a_strangers_repository(environment: Environment, repository: Path, broken: bool) -> None:
    write_the_suite(repository, broken)
    assert action(environment, repository, arguments="--examples 40 --seed 1", build="cc --version") == int(broken)
    page, results = (repository / "kernelpair.html").read_text(), (repository / "kernelpair.xml").read_text()
    assert "add_scaled" in page and ("<failure" in results) is broken


@pytest.mark.parametrize("hook", ["kernelpair-premerge", "kernelpair-check"])
def test_the_hook_in_a_strangers_repository(environment: Environment, repository: Path, hook: str) -> None:
    """As pre-commit runs it: the entry with its arguments, in an environment with the engine, in the root of the repository."""
    (described,) = (each for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()) if each["id"] == hook)
    assert described["language"] == "python" and not described["pass_filenames"]
    assert re.search(described["exclude"], "docs/page.md") and not re.search(described["exclude"], "add_scaled.c")
    write_the_suite(repository)
    begun = "git init -q -b main . && printf '*.so\n__pycache__/\n.kernelpair/\n.hypothesis/\n' > .gitignore"
    assert environment.run(f"{begun} && git add -A && git commit -qm one", repository).returncode == 0
    write_the_suite(repository, broken=True)
    assert environment.run("git commit -qam two && git branch base HEAD~", repository).returncode == 0
    arguments = described.get("args", ["--base", "base"])
    ended = environment.run(shlex.join([*shlex.split(described["entry"]), *arguments]), repository)
    assert ended.returncode == 1 and "FAIL add_scaled[optimized]" in ended.stdout, ended.stdout + ended.stderr
