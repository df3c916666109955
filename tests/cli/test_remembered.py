"""`list` and `doctor` answer from memory as long as nothing has changed that they depend on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelpair.cli.remembered import FILE, remembered
from kernelpair.suite import Place, Suite
from properties.suite import SUITE

SAYS = "import sys; from kernelpair.cli.main import main; status = main(sys.argv[1:]); print(status, 'torch' in sys.modules)"


class Asked:
    """Counts how often it was really asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        return {"asked": self.times}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    found = Suite()
    found.root = tmp_path
    (tmp_path / "pair.py").write_text("one = 1\n")
    return found


def ask(suite: Suite, asked: Asked, question: str = "list", folder: str = "here") -> dict[str, Any]:
    return remembered(Place("module", folder=folder), suite, question, asked)


def test_an_answer_is_found_once(suite: Suite) -> None:
    asked = Asked()
    assert [ask(suite, asked) for _ in range(3)] == [{"asked": 1}] * 3
    assert ask(suite, asked, "list one") == {"asked": 2} and ask(suite, asked) == {"asked": 1}


@pytest.mark.parametrize("change", ["source", "new file", "variable", "library elsewhere"])
def test_after_a_change_it_is_found_again(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    asked, library = Asked(), tmp_path.with_name(f"{tmp_path.name}.so")
    library.write_bytes(b"one")
    monkeypatch.setenv("KERNELPAIR_LIBRARY", str(library))
    ask(suite, asked)
    if change == "source":
        (tmp_path / "pair.py").write_text("one = 11\n")
    elif change == "new file":
        (tmp_path / "another.py").touch()
    elif change == "variable":
        monkeypatch.setenv("KERNELPAIR_TIER", "scalar")
    else:
        library.write_bytes(b"another")
    assert ask(suite, asked) == {"asked": 2}


def test_what_make_or_an_activated_shell_found_holds_elsewhere(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    with monkeypatch.context() as make:
        for variable in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SHLVL", "VIRTUAL_ENV"):
            make.setenv(variable, "1")
        make.setenv("_", sys.executable)  # a file
        make.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        ask(suite, asked)
    assert ask(suite, asked) == {"asked": 1}


def test_what_is_not_to_be_kept_is_found_again(suite: Suite) -> None:
    asked, place = Asked(), Place("module", folder="here")
    for times in (1, 2):
        assert remembered(place, suite, "list", asked, lambda answer: False) == {"asked": times}
    assert not (suite.root / FILE).exists()


def test_an_installed_suite_and_a_damaged_file_are_asked(suite: Suite) -> None:
    asked = Asked()
    ask(suite, asked, folder="")
    assert not (suite.root / FILE).exists()
    (suite.root / FILE).parent.mkdir()
    for text in ("", "[]", '{"of": 1}'):
        (suite.root / FILE).write_text(text)
        assert ask(suite, asked) == {"asked": asked.times}


@pytest.mark.parametrize("command", [("list", "store_cache"), ("doctor",)])
def test_a_later_answer_is_the_same_and_loads_no_torch(command: tuple[str, ...]) -> None:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    answers = []
    for _ in range(4):  # another test may change a file of the checkout between two of them
        done = subprocess.run(
            [sys.executable, "-c", SAYS, *command], cwd=SUITE.root, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
            text=True,
        )  # fmt: skip
        *answer, says = done.stdout.splitlines()
        assert says.startswith("0 "), done.stderr
        answers.append(answer)
        if says == "0 False":
            break
    assert says == "0 False" and answers[0] == answers[-1]
