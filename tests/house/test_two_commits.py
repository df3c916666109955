"""The script that measures two commits: whose turn it is, what it runs, and the table that it prints."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelpair.cli.arguments import parser
from kernelpair.contract.candidate import module_of_file

script: Any = module_of_file(Path(__file__).resolve().parents[2] / "docs" / "two_commits.py")


class Fake:
    """A checkout in which nothing takes long."""

    def __init__(self, commit: str) -> None:
        self.commit = commit

    def whole_build(self) -> Any:
        return script.Taken(9.0, 9.0)

    rebuild = whole_build

    def start(self, name: str) -> Any:
        return script.Taken(1.0, 0.5)


def test_who_goes_first_changes_from_round_to_round() -> None:
    both = [Fake("one"), Fake("two")]
    steps = [(name, checkout.commit) for name, checkout, _ in script.measured(both, 2, False)]
    turns = [commit for name, commit in steps if name == script.REBUILD]
    assert turns == ["two", "one", "one", "two"]
    assert steps[:2] == [(script.BUILD, "one"), (script.BUILD, "two")] and len(steps) == 2 + 2 * 2 * (len(script.STARTS) + 1)
    assert script.BUILD not in {name for name, _, _ in script.measured(both, 1, True)}


def test_the_commands_are_those_that_there_are() -> None:
    for words in script.STARTS.values():
        if words != ["--help"]:
            assert parser().parse_args(words).command == words[0]
    assert (script.ROOT / script.KERNEL).is_file() and (script.ROOT / script.SOURCE).is_file()


def test_the_table_has_medians() -> None:
    taken = {"a start": {"one": [script.Taken(3.0, 1.0), script.Taken(1.0, 0.5), script.Taken(2.0, 0.75)]}}
    assert script.table(taken, ["one"]) == "| | one |\n|---|--:|\n| a start | 2.00 s (0.75) |"


def test_a_step_is_charged_for_its_children_and_has_to_succeed(tmp_path: Path) -> None:
    checkout = script.Unpacked("one", tmp_path)
    took = checkout.run(sys.executable, "-c", "for i in range(300_000): pass")
    assert took.clock > 0 and took.cpu > 0
    with pytest.raises(subprocess.CalledProcessError):
        checkout.run(sys.executable, "-c", "raise SystemExit(3)")
