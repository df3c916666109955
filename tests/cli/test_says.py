"""What the command says of the machine, of the suite and of itself: doctor, list, help."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

import properties
from kernelpair import __version__
from kernelpair.cli.arguments import parser
from kernelpair.cli.main import _told
from kernelpair.cli.streams import SPELL_OUT
from kernelpair.contract.case import Case
from kernelpair.names import unknown
from optimized import tiers
from properties.topk_gating.cases import TopkCase
from tests.command_line import COMMAND, ENVIRONMENT, kernelpair

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def test_doctor(capsys: Capture) -> None:
    assert kernelpair("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    facts = ["selected_tier", "without_products", "amx_permission", "amx_for_providers", "bf16_products", "library"]
    assert list(report) == ["environment", "tiers", *facts]
    assert [tier["name"] for tier in report["tiers"]] == [tier.name for tier in tiers()]
    assert all({"compiled", "runnable", "reason", "flags"} <= set(tier) for tier in report["tiers"])
    assert list(report["library"]) == ["compiler", "build_type", "build_directory"]
    assert kernelpair("doctor") == 0
    out = capsys.readouterr().out
    assert "amx permission " in out and "runs here" in out and all(tier.name in out for tier in tiers())


def test_characters_that_a_terminal_does_not_have_are_spelt_out() -> None:
    command = [*COMMAND, "check", "gdn_gating", "--tier", "scalar", "--examples", "20", "-v", "--seed", "1"]
    done = subprocess.run(command, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True)
    assert re.search(r"error / bound, .*\|[ 1-8]+\| largest", done.stdout) and "\\u" not in done.stdout + done.stderr
    assert "a…e×é\n".encode("ascii", SPELL_OUT) == b"a...ex\\xe9\n"


def test_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    top = parser()
    (commands,) = (action.choices for action in top._actions if isinstance(action.choices, dict))
    for command in (top, *commands.values()):
        assert not [line for line in command.format_help().splitlines() if len(line) > 80], command.prog


def test_list(capsys: Capture) -> None:
    assert kernelpair("list", "--json") == 0
    listed = {entry["pair"]: entry for entry in json.loads(capsys.readouterr().out)["pairs"]}
    assert list(listed) == list(properties.pairs())
    entry = listed["store_cache"]
    assert [candidate["name"] for candidate in entry["candidates"]] == [tier.name for tier in tiers()]
    assert {"gather", "repeat", "threads", "poison"} <= set(entry["relations"]) and "index_negative" in entry["wrong_calls"]
    assert all((properties.ROOT / path).exists() for entry in listed.values() for path in entry["files"].values())


def test_a_list_has_a_line_for_each_pair_and_says_how_to_see_more(capsys: Capture) -> None:
    assert kernelpair("list") == 0
    *lines, more = capsys.readouterr().out.splitlines()
    named = [line.partition("  ")[0] for line in lines if not line.startswith("  incomplete   ")]
    assert named == list(properties.pairs()) and "kernelpair list PAIR" in more
    assert kernelpair("list", "store_cache") == 0
    out = capsys.readouterr().out
    assert "reference/store_cache.py" in out and "kernelpair list PAIR" not in out


@pytest.mark.parametrize("command", [(), ("doctor",), ("list",), ("check",), ("replay",), ("bench",)])
def test_help_is_0(capsys: Capture, command: tuple[str, ...]) -> None:
    assert kernelpair(*command, "--help") == 0
    assert "usage: kernelpair" in capsys.readouterr().out


def test_every_example_of_a_help_can_be_copied(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one line however narrow the terminal is, and with options that there are."""
    monkeypatch.setenv("COLUMNS", "60")
    examples = re.findall(r"^  (kernelpair [a-z].*?)(?:  | one pair|$)", parser().format_help(), re.MULTILINE)
    (commands,) = [action.choices for action in parser()._actions if isinstance(action.choices, dict)]
    for command in commands.values():
        told = [line.strip() for line in command.format_help().splitlines()]
        examples += [line[line.index("kernelpair ") :] for line in told if re.search(r"^(example: )?kernelpair [a-z]", line)]
    assert len(examples) >= 12
    for example in examples:
        parser().parse_args(shlex.split(example)[1:])


def test_list_of_one_pair(capsys: Capture) -> None:
    assert kernelpair("list", "store_cache") == 0
    out = capsys.readouterr().out
    assert out.startswith("store_cache  ") and "decode_attention" not in out
    assert kernelpair("list", "stor_cache") == 2
    assert "unknown pair 'stor_cache' (did you mean store_cache?); known are" in capsys.readouterr().err


def test_list_of_one_pair_says_what_its_kernel_is_called_with(capsys: Capture) -> None:
    assert kernelpair("list", "store_cache", "int8_linear") == 0
    out = capsys.readouterr().out
    assert "  arguments    k v k_cache v_cache indices pad_slot=None\n  changes      k_cache v_cache\n  case " in out
    assert "linear: form='linear' x data sums N K w_scale bias symmetric\n" in out
    assert "matmul: form='matmul' q scale azp data sums N K w_scale bias out_dtype='float" in out
    assert "  results      out\n" in out


def test_list_of_one_pair_says_what_its_cases_say(capsys: Capture) -> None:
    """A limit of a provider looks at these fields, and who edits a line writes them."""
    assert kernelpair("list", "topk_gating", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["pairs"]
    assert entry["case"].keys() == {spec.name for spec in fields(TopkCase)} - {spec.name for spec in fields(Case)}
    assert entry["case"]["pads"] == "null" and entry["case"]["scoring"] == '"softmax"|"sigmoid"'
    assert kernelpair("list", "topk_gating") == 0
    assert '  case         tokens=1 experts=1 topk=1 groups=1 kept=1 scoring="softmax"|"sigmoid" ' in capsys.readouterr().out


def test_doctor_tells_the_flags_where_they_are_asked_for(capsys: Capture) -> None:
    assert kernelpair("doctor") == 0
    assert "-mavx2" not in capsys.readouterr().out
    assert kernelpair("doctor", "-v") == 0
    assert "avx2: -mavx2 -mfma" in capsys.readouterr().out


def test_the_package_itself_is_the_command() -> None:
    ended = subprocess.run([sys.executable, "-m", "kernelpair", "--version"], env=ENVIRONMENT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"kernelpair {__version__}\n"), ended.stderr


def test_an_unknown_command_is_2(capsys: Capture) -> None:
    assert kernelpair("chekc") == 2
    assert "unknown command 'chekc' (did you mean check?); known are doctor, list, new-pair" in capsys.readouterr().err


def test_an_impossible_tier_in_the_environment_is_2_for_every_command() -> None:
    done = subprocess.run(
        [*COMMAND, "doctor"],
        env={**ENVIRONMENT, "KERNELPAIR_TIER": "neon"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kernelpair doctor: KERNELPAIR_TIER: there is no tier 'neon'; the tiers are ")


@pytest.mark.parametrize(("error", "status"), [
    (ImportError("the compiled library build/_kernels.so is missing: run `make build`"), 2),
    (ValueError("KERNELPAIR_TIER: no tier is called fast"), 2),
    (ImportError("cannot import name 'x'"), 70),
])
def test_a_library_that_cannot_be_loaded_is_told_on_one_line(
    capsys: Capture, error: Exception, status: int
) -> None:
    def fails(options: argparse.Namespace) -> int:
        raise error

    assert _told(argparse.Namespace(command="list"), fails) == status
    says = capsys.readouterr().err
    assert str(error) in says and ("Traceback" in says) is (status == 70)


def test_of_many_names_those_that_come_near_are_listed() -> None:
    says = unknown("mutant", "store/tai", [*(f"other/{n}" for n in range(2000)), "store/tail"])
    assert "did you mean store/tail?" in says and says.endswith(" others") and len(says) < 400
    assert unknown("tier", "fast", ["avx2", "amx"]) == "unknown tier 'fast'; known are avx2, amx"
