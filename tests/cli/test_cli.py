"""The command line: what it prints, what it writes, and that its exit status says what happened."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import properties
from kernelpair.cli.check import CheckRun
from kernelpair.cli.select import select_candidates
from kernelpair.contract.case import to_line
from kernelpair.contract.pair import Coverage, Pair, Within
from kernelpair.search.jobs import INTERRUPT_SECONDS
from kernelpair.suite import PlainSuite
from optimized import Tier, best_tier, tiers
from properties.store_cache.cases import StoreCacheCase
from properties.suite import SUITE, KernelSuite
from tests.command_line import COMMAND, ENVIRONMENT, kernelpair
from tests.kernels import kernel
from tests.processes import heed_signals
from tests.selftest.toy import PAIR as TOY
from tests.selftest.toy import ToyCase

STORE_CACHE = properties.pairs()["store_cache"]
BEST = best_tier()
MISSING = [tier for tier in tiers() if not (tier.runnable or tier.run_as)]
PLAIN = to_line("store_cache", STORE_CACHE.cases.version, StoreCacheCase(rows=2))
IN_PROCESS = ("--in-process", "--seed", "1", "--examples")
Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def put_in_place(monkeypatch: pytest.MonkeyPatch, name: str, pair: Pair = TOY) -> None:
    """The only pair is the toy, its only candidate the kernel `name`."""
    toy = replace(pair, tiers="python", files={"properties": "tests/selftest/toy.py"})
    suite = PlainSuite(properties.ROOT, [toy], {"toy": [replace(kernel(name), name="python")]}, test=SUITE.test)
    monkeypatch.setattr("kernelpair.suite._load", lambda place: suite)


# --- check ---


def test_all_pass_is_0(capsys: Capture) -> None:
    assert kernelpair("check", "store_cache", "--tier", BEST, *IN_PROCESS, "20") == 0
    out = capsys.readouterr().out
    assert "seed 1; 1 trial, 0 skipped" in out and "1 passed, 0 failed, 0 skipped; 20 cases" in out


def test_the_time_of_a_check_without_options_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.cli.check.SECONDS", 1.5)
    monkeypatch.setattr("kernelpair.cli.check.EXAMPLES", 100_000)
    assert kernelpair("check", "store_cache", "local_attention_batches", "--seed", "1", "--json", "r.json") == 0
    ran = [result for result in json.loads(Path("r.json").read_text())["results"] if result["verdict"] == "pass"]
    assert len(ran) > 3 and all(0 < result["cases"] < 100_000 for result in ran)


def test_a_failure_is_1_and_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    assert kernelpair("check", *IN_PROCESS, "100") == 1
    out = capsys.readouterr().out
    line = to_line("toy", 1, ToyCase(rows=3))
    assert "FAIL toy[python] value: out: 3 of 3 elements differ" in out
    assert f"  kernelpair replay '{line}' --tier python\n" in out
    assert "  pytest 'tests/pairs/test_pairs.py::test_pair[toy-python]'\n" in out
    assert "0 passed, 1 failed" in out


def test_a_bound_that_proves_nothing_is_told_with_a_command_although_it_has_no_case(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    loose = Within(lambda case, given, truth: {"out": truth["out"].abs() + 1})
    put_in_place(monkeypatch, "good", replace(TOY, truth=loose))
    assert kernelpair("check", *IN_PROCESS, "100") == 1
    out = capsys.readouterr().out
    assert "FAIL toy[python] vacuous: out: " in out and "\n  kernelpair check toy --tier python -v\n" in out
    assert "Next: sharpen the bound" in out


def test_several_kinds_are_printed_each_with_its_case(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "two_faults")
    assert kernelpair("check", *IN_PROCESS, "200") == 1
    out = capsys.readouterr().out
    assert out.count("FAIL ") == 2 and out.count("kernelpair replay ") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "unknown pair 'nonsense'; known are "),
        (("--tier", "neon"), f"unknown tier 'neon'; known are {', '.join(map(str, tiers()))}"),
        (("--wrong",), "unknown option '--wrong'"),
        (("--examples", "many"), "argument --examples: must be a whole number, 1 or more, got "),
        (("--examples", "0"), "argument --examples: must be a whole number, 1 or more, got 0"),
        (("--seconds", "-1"), "argument --seconds: must be a number above 0"),
        (("--seconds", "nan"), "argument --seconds: must be a number above 0"),
        (("--examples", "5", "--total", "5"), "--examples and --total both say when to stop; give one of them"),
        (("--total", "5", "--seconds", "5"), "--total and --seconds both say when to stop; give one of them"),
        (("--total", "5", "--in-process"), "with --in-process give --examples"),
        (("--relation", "magic"), "unknown trial 'magic'; known are "),
        (("--provider", "a.py", "--provider", "b.py"), "argument --provider: given twice, as a.py and b.py; one run takes one"),
        (("--trial", "value", "--trial", "fuzz"), "argument --trial: given twice, as value and fuzz; one run takes one"),
        (("--json", "no/such/folder.json"), "--json: the folder of no/such/folder.json does not exist"),
        (("--junit", "."), "--junit: . is a folder"),
    ],
)
def test_wrong_usage_is_2_in_one_line(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    assert kernelpair("check", *arguments) == 2
    out, err = capsys.readouterr()
    assert says in err and "Traceback" not in err and not out
    assert err.splitlines()[-1].startswith("kernelpair")


@pytest.mark.parametrize("command", ["check", "replay"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_tier_that_the_cpu_lacks_is_2(monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: str, by: str) -> None:
    lacking = Tier("amx", True, False, "this CPU lacks amx-tile", "")
    monkeypatch.setattr(KernelSuite, "tiers", lambda suite: [lacking])
    if by == "environment":
        monkeypatch.setenv("KERNELPAIR_TIER", "amx")
    options = ("--tier", "amx") if by == "option" else ()
    assert kernelpair(command, *([PLAIN] if command == "replay" else []), *options) == 2
    assert capsys.readouterr().err == f"kernelpair {command}: tier amx cannot run here: this CPU lacks amx-tile\n"


@pytest.mark.parametrize("tier", MISSING, ids=str)
def test_a_tier_that_this_cpu_lacks_is_2(capsys: Capture, tier: Tier) -> None:
    assert kernelpair("check", "store_cache", "--tier", tier.name) == 2
    assert capsys.readouterr().err == f"kernelpair check: tier {tier.name} cannot run here: {tier.reason}\n"


def test_no_candidate_at_all_is_3(capsys: Capture) -> None:
    assert kernelpair("check", "store_cache", "--tier", "python") == 3
    assert "nothing was tested" in capsys.readouterr().out


def test_nothing_but_skips_is_3(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    lacking = Tier("amx", False, False, "not compiled", "")
    monkeypatch.setattr(KernelSuite, "tiers", lambda suite: [lacking])
    assert kernelpair("check", "store_cache", "--json", "r.json", "--junit", "r.xml") == 3
    out = capsys.readouterr().out
    assert "skip  not compiled" in out and "nothing was tested" in out
    results = json.loads(Path("r.json").read_text())["results"]
    assert {(result["verdict"], result["reason"]) for result in results} == {("skip", "not compiled")}
    suite = ElementTree.parse("r.xml").getroot()  # noqa: S314 - our own file
    assert suite.get("skipped") == suite.get("tests") == "1"


def test_a_fault_of_the_pair_is_70(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def reference(**arguments: Any) -> None:
        raise ZeroDivisionError("a mistake in the reference")

    put_in_place(monkeypatch, "good", replace(TOY, reference=reference, wrong_calls={}))
    assert kernelpair("check", *IN_PROCESS, "20", "--json", "r.json") == 70
    assert "harness fault: toy python: ZeroDivisionError: a mistake in the reference" in capsys.readouterr().out
    (result,) = json.loads(Path("r.json").read_text())["results"]
    assert result["verdict"] == "skip" and "a mistake in the reference" in result["reason"]


def test_a_saved_line_that_is_no_case_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(properties, "ROOT", Path.cwd())
    put_in_place(monkeypatch, "good")
    Path("corpus").mkdir()
    Path("corpus/toy.jsonl").write_text('\n{"pair":"toy","v":0}\n')
    assert kernelpair("check", *IN_PROCESS, "20") == 2
    says = "bad saved case: corpus/toy.jsonl:2: the case of toy has schema version 0"
    assert says in capsys.readouterr().out


def test_a_fault_of_the_harness_is_70(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("kernelpair.cli.listing.listing", lambda options: {}["no such thing"])
    assert kernelpair("list") == 70
    err = capsys.readouterr().err
    assert "KeyError" in err and "the harness itself failed (above); this says nothing about any kernel" in err


def test_json_is_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    assert kernelpair("check", *IN_PROCESS, "100", "--json", "r.json") == 1
    document = json.loads(Path("r.json").read_text())
    assert list(document) == ["results", "environment"]
    (result,) = document["results"]
    assert list(result)[:7] == ["pair", "candidate", "verdict", "reason", "cases", "seconds", "failures"]
    assert (result["pair"], result["candidate"], result["verdict"], result["reason"]) == ("toy", "python", "fail", "")
    assert isinstance(result["cases"], int) and result["cases"] > 0 and isinstance(result["seconds"], float)
    (failure,) = result["failures"]
    assert list(failure) == ["kind", "case", "replay", "detail", "group", "found", "shrunk", "shared"]
    assert failure["kind"] == "value" and json.loads(failure["case"]) == {"pair": "toy", "v": 1, "rows": 3}
    assert failure["replay"].startswith("kernelpair replay '{") and failure["detail"].startswith("out: 3 of 3 elements differ")
    assert document["environment"]["seed"] == 1 and {"cpu", "cores", "torch", "python"} <= set(document["environment"])


def test_junit_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    assert kernelpair("check", *IN_PROCESS, "100", "--junit", "r.xml") == 1
    suite = ElementTree.parse("r.xml").getroot()  # noqa: S314 - our own file
    assert (suite.tag, suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("testsuite", "1", "1", "0")
    (entry,) = suite.iter("testcase")
    assert (entry.get("classname"), entry.get("name")) == ("toy", "python")
    (failure,) = entry
    assert failure.get("type") == "value" and "kernelpair replay" in (failure.text or "")


def test_details_on_request(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "good", replace(TOY, coverage=Coverage(edges={"never": lambda case: False})))
    assert kernelpair("check", *IN_PROCESS, "20", "-v") == 0
    out = capsys.readouterr().out
    assert "error / bound, 2^-15 to 1: out float32 " in out and "trials: " in out and "edges never hit: never" in out


def test_a_failure_comes_back_first_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    assert kernelpair("check", *IN_PROCESS, "100") == 1
    assert kernelpair("check", "--in-process", "--seed", "2", "--examples", "100", "--json", "r.json") == 1
    (result,) = json.loads(Path("r.json").read_text())["results"]
    assert result["cases"] < 20


# --- Ctrl-C ---


def test_an_interrupt_in_process_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "interrupts")
    assert kernelpair("check", "--in-process", "--seed", "1", "--seconds", "600", "--json", "r.json") == 130
    out = capsys.readouterr().out
    assert "pass  cut short by the interrupt\n" in out and "\ninterrupted: 1 passed, 0 failed" in out
    (result,) = json.loads(Path("r.json").read_text())["results"]
    assert result["verdict"] == "pass" and result["cases"] > 0


def test_an_interrupt_in_process_leaves_the_time_to_tell_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "interrupts")
    told = CheckRun.conclude

    def slowly(*given: Any) -> int:
        time.sleep(2 * INTERRUPT_SECONDS)
        return told(*given)

    monkeypatch.setattr(CheckRun, "conclude", slowly)
    assert kernelpair("check", "--in-process", "--seed", "1", "--seconds", "600", "--json", "r.json") == 130
    assert json.loads(Path("r.json").read_text())["results"]


def _wait_for(condition: Any, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def _group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_ends_with_what_is_known_and_leaves_no_process() -> None:
    command = [*COMMAND, "check", "store_cache", "--tier", BEST, "--seconds", "60"]
    running = subprocess.Popen(
        [*command, "--json", "r.json"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    try:
        begun = _wait_for(lambda: any(path.stat().st_size for path in Path(".kernelpair").glob("running-*.json")), 300)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert begun and running.returncode == 130, err
    assert "pass  cut short by the interrupt\n" in out and not err
    assert out.splitlines()[-1].startswith("interrupted: 1 passed, 0 failed, 0 skipped"), "the last line could be read as a pass"
    (result,) = json.loads(Path("r.json").read_text())["results"]
    assert result["verdict"] == "pass" and result["cases"] > 0
    assert _wait_for(lambda: _group_is_gone(running.pid), 20), "processes are left"
    assert not list(Path(".kernelpair").glob("running-*"))


def test_a_check_that_drew_little_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("kernelpair.cli.check.EXAMPLES", 3)
    assert kernelpair("check", "store_cache", "--seed", "1") == 0
    assert "Thin: store_cache (" in capsys.readouterr().out
    assert kernelpair("check", "store_cache", "--seed", "1", "--examples", "3") == 0
    assert "Thin: " not in capsys.readouterr().out, "so many were asked for"


# --- replay ---


def test_replay_of_a_line_that_passes_is_0(capsys: Capture) -> None:
    assert kernelpair("replay", PLAIN, "--tier", BEST, "--in-process") == 0
    assert capsys.readouterr().out == f"store_cache[{BEST}] pass\n"


def test_replay_of_rows_that_are_one_and_the_same_in_memory() -> None:
    line = '{"pair":"rms_norm","v":1,"layout":{"x":"expanded"},"outer":[3],"width":5}'
    assert kernelpair("replay", line, "--tier", "scalar", "-v") == 0


def test_replay_of_a_line_that_fails_is_1_with_a_table(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    line = to_line("toy", 1, ToyCase(rows=3, width=2, layout={"x": "padded"}))
    assert kernelpair("replay", line, "--in-process") == 1
    short = capsys.readouterr().out.splitlines()
    assert short[0] == "toy[python] fail" and short[1].startswith("  value: out: 6 of 6 elements differ") and len(short) == 3
    assert short[2] == f"  kernelpair replay '{line}' --tier python -v"

    assert kernelpair("replay", line, "--in-process", "-v") == 1
    long = capsys.readouterr().out
    assert "x float32[3, 2] strides [7, 1] padded" in long and "slots int64[3] strides [1] dense = [" in long
    heading = next(row for row in long.splitlines() if row.split() == ["tensor", "index", "expected", "got", "bound", "ratio"])
    rows = long.splitlines()[long.splitlines().index(heading) + 1 :]
    assert all(row.startswith("  out ") and "[" in row for row in rows[:6])
    assert rows[6].startswith("  out float32[3, 2]: 6 of 6 judged elements are wrong")
    assert [row.split() for row in rows[7:10]] == [["0", "##"], ["1", "##"], ["2", "##"]]
    assert rows[10:] == [f"  kernelpair replay '{line}' --tier python"]


def test_guards_are_for_this_process_only(capsys: Capture) -> None:
    assert kernelpair("replay", PLAIN, "--tier", BEST, "--guards") == 2
    assert "--guards needs --in-process" in capsys.readouterr().err
    assert kernelpair("replay", PLAIN, "--tier", BEST, "--in-process", "--guards") == 0


def test_replay_of_a_file_tries_every_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    put_in_place(monkeypatch, "off_from_three_rows")
    cases = [ToyCase(rows=1), ToyCase(rows=3), ToyCase(rows=2)]
    Path("cases.json").write_text("\n\n".join(to_line("toy", 1, case) for case in cases) + "\n")
    assert kernelpair("replay", "cases.json", "--in-process") == 1
    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("toy")]
    assert verdicts == ["toy[python] pass", "toy[python] fail", "toy[python] pass"]


def test_a_bad_line_of_a_file_is_told_with_its_place(capsys: Capture) -> None:
    Path("cases.jsonl").write_text(f'{PLAIN}\n\n{{"pair":"store_cache","v":1,"rows":-1}}\n')
    for command in (("replay", "cases.jsonl"), ("bench", "--case", "cases.jsonl")):
        assert kernelpair(*command) == 2
        told = capsys.readouterr()
        assert "cases.jsonl:3: store_cache: this case cannot be built (rows = -1)" in told.err
        assert not told.out  # not even the line before it was run


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("no_such_file", "'no_such_file' is neither a case (JSON) nor a file"),
        ("empty.json", "empty.json holds no case"),
        ("binary.json", "cannot read binary.json"),
        ("{broken", "not a line of JSON"),
        ('{"pair":"store_cache","v":0}', "schema version 0"),
        ('{"pair":"nothing","v":1}', "unknown pair 'nothing'; known are"),
        ('{"pair":"store_cache","v":1,"row":2}', "unknown field 'row' (did you mean rows?); known are seed, dtype, layout"),
        ('{"pair":"store_cache","v":1,"trial":"repeats"}', "unknown trial 'repeats' (did you mean repeat?); known are value, "),
        ("pair:store_cache", "a shell has changed the quotes of this case; give it as it was printed, in quotes"),
        ("{pair:store_cache,", "a shell has changed the quotes"),
        ('{\\"pair\\":\\"store_cache\\",\\"v\\":1}', "a shell has changed the quotes"),
        ("""'{"pair":"store_cache","v":1}'""", "a shell has changed the quotes"),
        ('{"pair":"store_cache","v":1,"rows":-1}', "rows = -1"),
        ('{"pair":"store_cache","v":1,"layout":{"k":"zigzag"}}', "layout.k: unknown layout 'zigzag'"),
    ],
)
def test_replay_of_what_is_no_case_is_2(capsys: Capture, argument: str, says: str) -> None:
    Path("empty.json").write_text("\n")
    Path("binary.json").write_bytes(b"\xff\xfe")
    assert kernelpair("replay", argument) == 2
    out, err = capsys.readouterr()
    assert says in err and err.startswith("kernelpair replay: ") and not out


def test_a_replay_that_runs_nothing_is_no_pass(capsys: Capture) -> None:
    assert kernelpair("replay", PLAIN, "--tier", "python") == 2
    assert "nothing was run" in capsys.readouterr().err


def test_the_reference_is_tried_beside_the_tiers_that_are_named() -> None:
    pair = SUITE.pairs()["store_cache"]
    assert [name for name, _ in select_candidates(SUITE, pair, ["reference", "scalar"])] == ["reference", "scalar"]
    assert [name for name, _ in select_candidates(SUITE, pair, ["reference"])] == ["reference"]
