"""The files of a run: whole whoever else writes them, and readable whatever a kernel says."""

import json
import math
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernelpair.contract.verdict import PlaceRow, PlaceTable
from kernelpair.report.files import WriteError, add_line, write_whole
from kernelpair.report.lines import FailureReport, PairResult, write_json, write_junit


def test_a_file_that_two_processes_write_is_that_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "r.json", Path.replace

    def after_another(self: Path, target: Path) -> Path:
        monkeypatch.undo()
        if not (child := os.fork()):
            write_whole(path, "another's")
            os._exit(0)
        os.waitpid(child, 0)
        assert path.read_text() == "another's"
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", after_another)
    write_whole(path, "ours")
    assert path.read_text() == "ours" and os.listdir(tmp_path) == ["r.json"]


def test_lines_that_several_processes_add_are_all_kept_once(tmp_path: Path) -> None:
    path, children = tmp_path / "corpus" / "toy.jsonl", []
    for number in range(8):
        if not (child := os.fork()):
            for line in range(20):
                add_line(path, f"{number % 4} {line}")
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert sorted(path.read_text().splitlines()) == sorted(f"{number} {line}" for number in range(4) for line in range(20))


def test_a_line_is_added_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    path.write_text("one\n\ntwo")  # edited by hand
    for line in ("two", "three"):
        add_line(path, line)
    assert path.read_text() == "one\n\ntwo\nthree\n"


def test_a_line_that_cannot_be_added_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "corpus").write_text("a file, where a folder should be")
    with pytest.raises(WriteError, match=r"^cannot write .*/corpus/toy\.jsonl: "):
        add_line(tmp_path / "corpus" / "toy.jsonl", "one")


def test_a_pipe_that_has_no_path_is_written_to() -> None:
    reads, writes = os.pipe()
    write_whole(Path(f"/dev/fd/{writes}"), "all")
    os.close(writes)
    assert os.read(reads, 9) == b"all"
    os.close(reads)


def test_characters_that_xml_does_not_have_are_spelled(tmp_path: Path) -> None:
    failure = FailureReport("exception", "{}", "kernelpair replay", "\x1b[31mred\x1b[0m \x00 ü")
    skipped = PairResult("p", "d", "skip", "\x07")
    write_junit(tmp_path / "r.xml", [PairResult("p", "c", "fail", failures=[failure]), skipped], {})
    suite = ElementTree.fromstring((tmp_path / "r.xml").read_text())  # noqa: S314 - our own
    assert [node.get("message") for node in suite.iter("failure")] == ["\\x1b[31mred\\x1b[0m \\x00 ü"]
    assert [node.get("message") for node in suite.iter("skipped")] == ["\\x07"]


def test_junit_tells_a_fault_of_the_harness_from_what_was_left_out_and_says_what_the_log_says(tmp_path: Path) -> None:
    failure = FailureReport("value", "{}", "kernelpair replay '{}'", "far off", shared="fails for all rows")
    results = [PairResult("p", "c", "fail", failures=[failure]), PairResult("p", "d", "skip", "this CPU lacks it"),
               PairResult("q", "c", "skip", "harness fault: no such dimension", fault=True)]  # fmt: skip
    write_junit(tmp_path / "r.xml", results, {"seed": 7, "cpu": "Some CPU"})
    suite = ElementTree.fromstring((tmp_path / "r.xml").read_text())  # noqa: S314 - our own
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "1"}
    assert [node.get("message") for node in suite.iter("error")] == ["harness fault: no such dimension"]
    assert [node.text for node in suite.iter("failure")] == ["kernelpair replay '{}'\nfails for all rows"]
    said = {node.get("name"): node.get("value") for node in suite.iter("property")}
    assert said == {"seed": "7", "cpu": "Some CPU"}


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    tables = [PlaceTable("t", (PlaceRow("0", "x", {"a": math.inf, "b": 0.5}),))]
    write_json(tmp_path / "r.json", [PairResult("p", "c", "fail", gaps={"out": (1, math.inf, "l")}, tables=tables)], {})

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    (result,) = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)["results"]
    assert result["gaps"] == {"out": [1, None, "l"]} and result["tables"][0]["rows"][0]["ratios"] == {"a": None, "b": 0.5}
