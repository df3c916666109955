"""`kernelpair replay --save` keeps a case that fails, or says why it does not."""

import re
from pathlib import Path

import pytest

import properties
from kernelpair.contract.case import to_line
from tests.cli.test_cli import put_in_place
from tests.command_line import kernelpair
from tests.selftest.toy import ToyCase

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def test_save_keeps_a_case_that_fails(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(properties, "ROOT", Path.cwd())
    put_in_place(monkeypatch, "off_from_three_rows")
    fails, passes = to_line("toy", 1, ToyCase(rows=3)), to_line("toy", 1, ToyCase(rows=2))
    assert kernelpair("replay", fails, "--in-process", "--save") == 1
    assert (Path("corpus") / "toy.jsonl").read_text() == fails + "\n"
    assert kernelpair("replay", passes, "--in-process", "--save") == 2
    assert "--save: no candidate fails on " in capsys.readouterr().err
    assert (Path("corpus") / "toy.jsonl").read_text() == fails + "\n"


def test_save_says_where_it_cannot_write(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(properties, "ROOT", Path.cwd())
    put_in_place(monkeypatch, "off_from_three_rows")
    Path("corpus").write_text("a file, where a folder should be")
    assert kernelpair("replay", to_line("toy", 1, ToyCase(rows=3)), "--in-process", "--save") == 70
    out, err = capsys.readouterr()
    assert "toy[python] fail" in out
    assert re.fullmatch(r"kernelpair replay: cannot write \S+/corpus/toy\.jsonl: .*\n", err)
