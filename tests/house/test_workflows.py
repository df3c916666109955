"""The files of CI and of pre-commit: they parse, what they name is there, and the command line takes what they give it."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelpair.cli.arguments import parser

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
ACTIONS = [ROOT / "action.yml", *sorted((ROOT / ".github" / "actions").glob("*/action.yml"))]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
ASKED = re.compile(r"\$\{\{.*?\}\}")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
CRON = re.compile(r"([0-5]?\d) ([01]?\d|2[0-3]) \* \* \*")


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = parsed(WORKFLOWS[name])["jobs"]
    return found


def steps() -> Iterator[Any]:
    """Of every workflow and of every action."""
    for name in WORKFLOWS:
        for job in jobs(name).values():
            yield from job["steps"]
    for path in ACTIONS:
        yield from parsed(path)["runs"]["steps"]


def commands() -> Iterator[list[str]]:
    """Each line that a step of a workflow runs, in words; what is only known there stands as a word."""
    for step in steps():
        for line in ASKED.sub("WORD", step.get("run", "")).splitlines():
            yield shlex.split(line, comments=True)


def test_every_step_runs_something_that_is_there() -> None:
    for step in steps():
        assert ("run" in step) is not ("uses" in step), step
        used = step.get("uses", "actions/")
        assert used.startswith("actions/") or (ROOT / used / "action.yml").is_file(), used
    programs = {words[0] for words in commands() if words and "/" in words[0]}
    assert programs == {".venv/bin/kernelpair", ".venv/bin/pip", ".ci/run"} and (ROOT / ".ci/run").is_file()


def test_make_knows_every_target() -> None:
    asked = {word for words in commands() if words[:1] == ["make"] for word in words[1:]}
    assert {"build", "test"} <= asked <= set(TARGET.findall((ROOT / "Makefile").read_text()))


def test_the_command_line_takes_what_it_is_given() -> None:
    given = [words[1:] for words in commands() if words[:1] == [".venv/bin/kernelpair"]]
    for hook in parsed(HOOKS):
        given.append([*shlex.split(hook["entry"])[1:], *hook.get("args", [])])
    assert {words[0] for words in given} == {"check", "premerge"} and len(given) == 5
    for words in given:
        parser().parse_args(words)  # which leaves where it does not know one


def test_nights_are_scheduled() -> None:
    begins = parsed(WORKFLOWS["nightly"])[True]  # YAML takes the word `on` for a truth
    assert all(CRON.fullmatch(each["cron"]) for each in begins["schedule"]) and len(begins["schedule"]) == 1
    assert set(parsed(WORKFLOWS["premerge"])[True]) == {"pull_request", "push"}


@pytest.mark.parametrize(("workflow", "job"), [("premerge", "compilers"), ("nightly", "check")])
def test_both_compilers_are_tried(workflow: str, job: str) -> None:
    found = jobs(workflow)[job]
    assert found["strategy"]["matrix"] == {"compiler": ["g++", "clang++"]}
    given = [step["with"]["compiler"] for step in found["steps"] if step.get("uses") == "./.github/actions/built"]
    assert given == ["${{ matrix.compiler }}"]
    (built,) = (step for step in parsed(ACTIONS[1])["runs"]["steps"] if step.get("run") == "make build")
    assert built["env"]["CXX"] == "${{ inputs.compiler }}"


def test_packages_objects_and_failures_are_kept() -> None:
    used = [(step.get("uses", "").partition("@")[0], step) for step in steps()]
    assert [step["with"]["path"] for action, step in used if action == "actions/cache"] == ["~/.cache/ccache"]
    restored = [step["with"] for action, step in used if action == "actions/cache/restore"]
    saved = [step["with"] for action, step in used if action == "actions/cache/save" and "always()" in step["if"]]
    assert saved == [{name: with_[name] for name in ("path", "key")} for with_ in restored], "a job that fails keeps what failed"
    assert len(saved) == 3 and all(with_["path"].endswith(".hypothesis") for with_ in saved)
    (python,) = (step["with"] for step in parsed(ACTIONS[1])["runs"]["steps"] if "setup-python" in step.get("uses", ""))
    assert python["cache"] == "pip" and list(ROOT.glob(python["cache-dependency-path"]))
    for name in WORKFLOWS:
        for job in jobs(name).values():
            assert [step for step in job["steps"] if step.get("uses") == "./.github/actions/built"], "a job that builds by itself"


def test_a_hook_has_an_environment_of_its_own() -> None:
    for hook in parsed(HOOKS):
        assert hook["language"] == "python" and hook["entry"].startswith("kernelpair "), hook["id"]
        assert hook["pass_filenames"] is False and re.search(hook["exclude"], "docs/page.md")


def test_the_action_keeps_its_junit_file_also_without_a_page_and_nothing_else() -> None:
    (kept,) = (step for step in parsed(ACTIONS[0])["runs"]["steps"] if "upload-artifact" in step.get("uses", ""))
    assert kept["if"] == "${{ always() }}"
    page, junit = kept["with"]["path"].splitlines()
    assert page.startswith("${{ inputs.page && format("), "without a page this line is empty, and not the whole folder"
    assert junit == "${{ inputs.working-directory }}/kernelpair.xml"


def test_two_uses_of_the_action_in_one_job_have_names_of_their_own(tmp_path: Path) -> None:
    """To upload an artifact of a name that is there already is an error, and a cache of such a name is not saved."""
    (which,) = (step for step in parsed(ACTIONS[0])["runs"]["steps"] if step.get("id") == "use")
    told = []
    for name in ("first", "second", "third"):
        output = tmp_path / name
        output.touch()
        environment = os.environ | {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(output)}
        subprocess.run(["bash", "-eo", "pipefail", "-c", which["run"]], env=environment, check=True)
        told.append(output.read_text())
    assert told == ["", "suffix=-2\n", "suffix=-3\n"]
    given = [step["with"] for step in parsed(ACTIONS[0])["runs"]["steps"] if "with" in step]
    names = [with_[name] for with_ in given for name in ("key", "restore-keys", "name") if name in with_]
    assert len(names) == 4 and all("${{ steps.use.outputs.suffix }}" in name for name in names)
