"""Planted bugs: their patches still apply, a few of them are noticed, and what goes wrong is said."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import properties
from kernelpair.cli import main
from kernelpair.cli.arguments import parser
from kernelpair.cli.mutate import MutateRun, chosen_mutants
from kernelpair.contract.case import to_line
from kernelpair.contract.verdict import KINDS, Failure, Verdict
from kernelpair.mutation.mutant import Mutant, MutantError, Patch, mutants
from kernelpair.mutation.report import result_of, score
from kernelpair.search.jobs import Ended, Job
from kernelpair.search.tally import First, Tally
from kernelpair.suite import Place, SavedLine
from kernelpair.trial.check import known_trials
from optimized import Tier, tiers
from optimized.library import BUILT
from properties import planting
from properties.planting import compiler, included, plant, units
from properties.scenarios.serving.cases import ServingCase
from properties.suite import SUITE, kernel_of
from tests.processes import heed_signals

ALL = mutants(SUITE)
PAIRS = properties.pairs()
SLICE = ("store_cache/tail", "store_cache/pad-in-range-written", "store_cache/negative-slot")  # noticed within seconds
TIERS = {None, *(tier.name for tier in tiers())}
BEST = [tier.name for tier in tiers() if tier.runnable and not tier.name.startswith("amx")][-1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
COMMAND = (sys.executable, "-c", "import sys; from kernelpair.cli import main; sys.exit(main())", "mutate")

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize("mutant", ALL.values(), ids=ALL)
def test_a_mutant_applies_exactly_once_and_is_described(mutant: Mutant) -> None:
    texts = mutant.patched(properties.ROOT)
    assert all((properties.ROOT / file).read_text() != text for file, text in texts.items())
    assert mutant.pair in PAIRS and mutant.tier in TIERS and mutant.group
    assert mutant.says and not mutant.says.endswith(".")
    assert mutant.relation is None or mutant.relation in known_trials(PAIRS[mutant.pair])
    assert all((properties.ROOT / unit).exists() for unit in units(mutant, kernel_of(PAIRS[mutant.pair]), texts))


def test_a_header_is_compiled_into_every_operator_that_reads_it_and_one_that_nobody_reads_is_refused() -> None:
    kernel, header = "csrc/kernels/pack_int8_weight.cpp", "csrc/linear/int8_weight.h"
    mutant = Mutant("pack_int8_weight", "planted", "Nothing", "none", (Patch(header, "", ""),))
    operators = {"csrc/ops/fused_moe.cpp", "csrc/ops/int8_linear.cpp", "csrc/ops/pack_int8_weight.cpp"}
    assert set(units(mutant, kernel, {header: ""})) == {kernel, *operators}
    nobody = replace(mutant, units=(kernel,))
    with pytest.raises(MutantError, match=re.escape(f"pack_int8_weight/planted: {header} is in none of {kernel}: say where")):
        units(nobody, kernel, {header: ""})


@pytest.mark.parametrize("tier", [one for one in tiers() if one.compiled and not one.tiled and one.name != "scalar"], ids=str)
def test_a_mutant_that_names_no_tier_is_in_what_every_machine_compiles(tier: Tier, tmp_path: Path) -> None:
    """In a file that is compiled for tiers, a branch for other processors would hide it here, and it would survive."""
    kernels = (properties.ROOT / "csrc" / "kernels").glob("*.cpp")
    for_tiers = included([file.relative_to(properties.ROOT).as_posix() for file in kernels])
    patches: dict[Path, list[tuple[str, str]]] = {}  # file -> mutants, and the text that each replaces
    for mutant in ALL.values():
        for patch in mutant.patches if mutant.tier is None else ():
            if patch.file in for_tiers:
                patches.setdefault(properties.ROOT / patch.file, []).append((mutant.name, patch.find))
    assert patches
    products = f"-DKP_PRODUCTS_{tier.products.upper()}=1"
    options = ["-std=gnu++20", f"-I{BUILT}/include", "-Icsrc", f"-DKP_TIER={tier.name}", products, *tier.flags.split()]
    hidden = []
    for number, (file, found) in enumerate(patches.items()):
        text = file.read_text()
        for mark, place in sorted(enumerate(text.index(find) for _, find in found), key=lambda one: -one[1]):
            text = f"{text[:place]} HERE_{mark}_ {text[place:]}"
        marked = tmp_path / f"{number}.cpp"
        marked.write_text(text)
        command = [compiler(), "-E", "-w", *options, str(marked)]
        seen = subprocess.run(command, cwd=properties.ROOT, capture_output=True, text=True, check=True).stdout
        hidden += [name for mark, (name, _) in enumerate(found) if f"HERE_{mark}_" not in seen]
    assert not hidden


def test_the_catalogue_of_kernels_is_covered() -> None:
    lines = {mutant.line for mutant in ALL.values()}
    assert lines >= set(range(1, 65))


def test_a_patch_that_no_longer_applies_says_so() -> None:
    mutant = ALL["store_cache/tail"]
    gone = replace(mutant, patches=(Patch("csrc/kernels/store_cache.cpp", "no such text", ""),))
    with pytest.raises(MutantError, match=r"store_cache/tail no longer applies: in .*\.cpp its text occurs 0"):
        gone.patched(properties.ROOT)
    twice = replace(mutant, patches=(Patch("csrc/kernels/store_cache.cpp", "plan.bytes", ""),))
    with pytest.raises(MutantError, match=r"occurs [2-9] times"):
        twice.patched(properties.ROOT)


def test_a_mutant_that_does_not_compile_says_so(tmp_path: Path) -> None:
    patch = replace(ALL["store_cache/tail"].patches[0], replace="no such function();")
    with pytest.raises(MutantError, match=r"store_cache/tail does not compile: csrc/kernels/store_cache\.cpp:\d+:\d+: error"):
        plant(replace(ALL["store_cache/tail"], patches=(patch,)), "csrc/kernels/store_cache.cpp", BEST, tmp_path / "built")


def test_a_library_of_other_sources_is_refused_before_any_mutant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(planting, "ROOT", tmp_path)
    planting.compile_commands.cache_clear()
    assert main(["mutate", "--mutant", "store_cache/tail", "--mutant", "store_cache/negative-slot"]) == 2
    told = capsys.readouterr()
    assert "was compiled from the sources of another checkout: run `make build` here" in told.err
    assert not told.out and told.err.count("\n") == 1


def test_a_slice_is_noticed_and_the_kernel_is_not() -> None:
    chosen = [word for name in SLICE for word in ("--mutant", name)]
    command = [*COMMAND, *chosen, "--json", "found.json", "--markdown", "found.md"]  # whose fork server is its own
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "3 of 3 mutants killed" in out and "unmutated kernels: 1 passed, 0 failed" in out
    found = json.loads(Path("found.json").read_text())
    results = {entry["mutant"]: entry for entry in found["mutants"]}
    assert set(results) == set(SLICE)
    assert all(entry["verdict"] == "killed" and entry["kind"] in KINDS and entry["case"] for entry in results.values())
    assert results["store_cache/tail"]["noticed_by"] == "value"
    negative = ("wrong_call:index_negative", "wrong_call:all_negative", "wrong_call:index_huge")
    assert results["store_cache/negative-slot"]["noticed_by"] in negative
    assert found["unmutated"][0]["cases"] >= max(entry["cases"] for entry in results.values()) + len(SLICE)  # and theirs
    assert "| tail (4) |" in Path("found.md").read_text()
    assert not list(Path(".kernelpair").glob("mutants*"))


@pytest.mark.parametrize("tier", [tier for tier in tiers() if tier.run_as], ids=str)
def test_a_mutant_of_software_tiles_is_planted_in_trapped_ones(tier: Tier) -> None:
    emulated = next(tier.name for tier in tiers() if tier.emulated)
    command = [*COMMAND, "--mutant", "extend_attention/tile-rows-17", "--tier", f"{emulated}={tier}", "--json", "found.json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(Path("found.json").read_text())["mutants"]
    assert (result["verdict"], result["tier"]) == ("killed", tier.name)


def ended(*steps: int) -> Ended:
    """A job of the serving trial that failed with a case of so many steps for each kind of failure."""
    arrivals = [ServingCase(steps=(("arrive", 1, 0, 0),) * count) for count in steps]
    verdicts = [Verdict(case, to_line("serving", 1, case), [Failure("value", "", "wrong")]) for case in arrivals]
    tally = Tally(cases=9, failures=dict(zip(("value", "untouched"), verdicts)), first=First("value", "value", 3, 0.5))
    return Ended(Job("serving", "serving/pad-is-slot-0"), tally)


def test_what_is_equivalent_in_one_tier_may_be_noticed_in_another() -> None:
    mutant, pair = replace(ALL["serving/pad-is-slot-0"], equivalent="a reason"), PAIRS["serving"]
    assert result_of(mutant, BEST, ended(3), pair).verdict == "error"
    assert result_of(replace(mutant, elsewhere=True), BEST, ended(3), pair).verdict == "killed"


def test_the_smallest_case_is_measured() -> None:
    mutant, pair = ALL["serving/pad-is-slot-0"], PAIRS["serving"]
    result = result_of(mutant, BEST, ended(9, 3), pair)
    assert (result.verdict, result.sizes, result.large) == ("killed", {"requests": 3, "steps": 3}, "")
    assert score([result]).endswith("; shrunk to at most 3 requests and 3 steps")
    assert result_of(mutant, BEST, ended(4), pair).large == "4 requests, at most 3"
    result = result_of(mutant, BEST, ended(9), pair)
    assert result.large == "9 requests, at most 3; 9 steps, at most 8"


def test_the_unmutated_kernel_is_tried_on_the_cases_of_its_mutants() -> None:
    options = parser().parse_args(["mutate", "--mutant", "serving/pad-is-slot-0"])
    run = MutateRun(options, Place("properties.suite"), [ALL["serving/pad-is-slot-0"]], Path("built"))
    run._ended(ended(3))
    (job,) = run._unmutated()
    assert (job.pair, job.corpus) == ("serving", (SavedLine(run.results["serving/pad-is-slot-0"].case),)) and job.corpus[0].line


def test_of_a_pair_whose_mutant_is_named_no_others_are_tried() -> None:
    options = parser().parse_args(["mutate", "store_cache", "serving", "--mutant", "serving/pad-is-slot-0"])
    chosen = [mutant.name for mutant in chosen_mutants(options, SUITE)]
    of_the_other = [name for name in ALL if name.startswith("store_cache/")]
    assert of_the_other and sorted(chosen) == sorted([*of_the_other, "serving/pad-is-slot-0"])


def test_a_case_that_stays_large_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    options = parser().parse_args(["mutate", "--mutant", "serving/pad-is-slot-0"])
    for steps, status in ((3, 0), (9, 1)):
        run = MutateRun(options, Place("properties.suite"), [ALL["serving/pad-is-slot-0"]], Path("built"))
        run._ended(ended(steps))
        assert run.conclude(1.0, False) == status
    out = capsys.readouterr().out
    assert out.count("NOT SMALL") == 1 and "serving/pad-is-slot-0: the smallest case that was found has 9 requests" in out


def test_an_interrupted_run_says_so_in_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("serving/pad-is-slot-0", "store_cache/tail")
    options = parser().parse_args(["mutate", "--json", "r.json", "--markdown", "r.md", "--html", "r.html"])
    run = MutateRun(options, Place("properties.suite"), [ALL[name] for name in names], Path("built"))
    run._ended(ended(3))
    assert run.conclude(1.0, True) == 130
    says = "interrupted, 1 mutant not tried: 1 of 1 mutants killed"
    assert says in capsys.readouterr().out and says in Path("r.md").read_text() and says in Path("r.html").read_text()
    assert json.loads(Path("r.json").read_text())["environment"]["interrupted"] is True


def test_a_survivor_is_1_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutate", "--mutant", "store_cache/negative-slot", "--seconds", "0.000001"]) == 1
    out = capsys.readouterr().out
    assert "SURVIVED store_cache/negative-slot: nothing noticed it" in out and "0 of 1 mutants killed" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "unknown pair 'nonsense'"),
        (("--mutant", "store_cache/nonsense"), "unknown mutant 'store_cache/nonsense' (did you mean "),
        (("--tier", "avx2"), "--tier: 'avx2' must be OLD=NEW, two of scalar, "),
        (("--tier", "scalar=neon"), "--tier: 'scalar=neon' must be OLD=NEW"),
        (("store_cache", "--tier", "amx_emulated=scalar"), "--tier: none of these mutants names amx_emulated"),
        (("--json", "no/such/folder.json"), "--json: the folder of no/such/folder.json does not exist"),
    ],
)
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert main(["mutate", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_interrupted_run_tells_what_it_knows() -> None:
    command = [*COMMAND, "store_cache", "--json", "found.json"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_signals
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "killed" in line:
            break
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=180)
    assert process.returncode == 130
    assert re.search(r"^interrupted, [0-9]+ mutants not tried: [0-9]+ of [0-9]+ mutants killed", rest, re.M)
    assert "SURVIVED" not in rest
    assert json.loads(Path("found.json").read_text())["mutants"]


@pytest.mark.parametrize("error", ["", "interrupted in a long call"])
def test_a_mutant_whose_trial_was_cut_short_is_no_survivor(error: str) -> None:
    options = parser().parse_args(["mutate", "--mutant", SLICE[0]])
    run = MutateRun(options, Place("properties.suite"), [ALL[SLICE[0]]], Path("built"))
    run._ended(Ended(Job("store_cache", SLICE[0]), error=error, cut_short=True))
    assert not run.results
    run._ended(Ended(Job("store_cache", SLICE[0]), error=error))
    assert len(run.results) == 1
