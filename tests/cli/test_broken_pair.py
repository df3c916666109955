"""One broken pair is reported by name and does not stop the others; an incomplete one is listed as such."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

import properties
from kernelpair.contract.pair import NotFuzzed, Pair, Signature, every_argument
from kernelpair.suite import PlainSuite
from tests.command_line import kernelpair
from tests.kernels import kernel
from tests.selftest.toy import PAIR as TOY

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


class _BreaksWhenRead(dict[str, Pair]):
    def __getitem__(self, name: str) -> Pair:
        return replace(TOY, signature=Signature(scratch=["work"])) if name == "broken" else super().__getitem__(name)


class _OneBroken(PlainSuite):
    def pairs(self) -> Mapping[str, Pair]:
        return _BreaksWhenRead({"broken": TOY, **super().pairs()})


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> PlainSuite:
    """A good pair, the toy, and a broken one."""
    toy = replace(TOY, tiers="python", files={"properties": "tests/selftest/toy.py"})
    made = _OneBroken(properties.ROOT, [toy], {"toy": [replace(kernel("good"), name="python")]})
    monkeypatch.setenv("KERNELPAIR_SUITE", "toy")  # found whatever is installed
    monkeypatch.setattr("kernelpair.suite._load", lambda place: made)
    return made


def test_check_runs_the_others_and_ends_with_70(capsys: Capture) -> None:
    assert kernelpair("check", "--in-process", "--examples", "5", "--json", "out.json") == 70
    said = capsys.readouterr().out
    assert f"harness fault: broken: {__file__}:" in said
    assert "Signature.scratch names 'work'" in said
    results = {result["pair"]: result for result in json.loads(Path("out.json").read_text())["results"]}
    assert results["toy"]["verdict"] == "pass"
    assert results["toy"]["cases"] >= 5
    assert results["broken"]["verdict"] == "skip"


def test_the_reason_is_told_above_and_not_again_at_the_end(capsys: Capture) -> None:
    kernelpair("check", "--in-process", "--examples", "1")
    said = capsys.readouterr().out
    assert "Not tried: broken (at fault, as told above).\n" in said
    assert said.count("names 'work'") == 2, "once by itself, and once in the pair's own line"


def test_one_case_is_no_cases(capsys: Capture) -> None:
    kernelpair("check", "toy", "--in-process", "--examples", "1")
    said = capsys.readouterr().out
    assert " 1 case  " in said and "No failure in 1 case of toy on python." in said and "; 1 case in " in said
    assert "1 cases" not in said


def test_the_good_pair_alone_passes() -> None:
    assert kernelpair("check", "toy", "--in-process", "--examples", "5") == 0


def test_list_names_it(capsys: Capture) -> None:
    assert kernelpair("list") == 70
    said = capsys.readouterr().out
    assert "toy" in said
    assert f"broken  broken: {__file__}:" in said
    assert kernelpair("list", "--json") == 70
    assert "'work'" in json.loads(capsys.readouterr().out)["broken"]["broken"]


def test_a_pair_whose_cases_cannot_be_drawn_is_listed_with_the_reason(suite: PlainSuite, capsys: Capture) -> None:
    cases = replace(TOY.cases, strategy=st.integers(0, 0).map(lambda zero: 1 // zero))
    suite.all = [replace(pair, cases=cases, reference=lambda **given: None) for pair in suite.all]
    assert kernelpair("list", "toy") == 0
    assert "  arguments    not told: " in " ".join(capsys.readouterr().out.split("\n"))


def test_a_pair_without_wrong_calls_is_listed_as_incomplete(suite: PlainSuite, capsys: Capture) -> None:
    kernelpair("list")
    assert "incomplete" not in capsys.readouterr().out
    suite.all = [replace(pair, wrong_calls={}) for pair in suite.all]
    kernelpair("list")
    assert "incomplete   no wrong call" in capsys.readouterr().out


def test_a_pair_that_is_not_fuzzed_is_listed_with_the_reason_instead_of_the_trial(suite: PlainSuite, capsys: Capture) -> None:
    suite.all = [replace(pair, fuzz=every_argument) for pair in suite.all]
    kernelpair("list", "toy", "broken")
    said = capsys.readouterr().out
    assert " fuzz: calls made wrong at random " in said and "no fuzz" not in said
    suite.all = [replace(pair, fuzz=NotFuzzed("nobody checks slots")) for pair in suite.all]
    kernelpair("list", "toy", "broken")
    said = capsys.readouterr().out
    assert "\n  no fuzz      nobody checks slots\n" in said and " fuzz: " not in said


def test_bench_refuses_it_by_name(capsys: Capture) -> None:
    assert kernelpair("bench") == 2
    assert "pair broken is broken" in capsys.readouterr().err
