"""The pre-merge check: what a change touches, what is said about it, and the exit status."""

import fcntl
import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import optimized
from kernelpair.changes import Needs, affected
from kernelpair.cli import main
from kernelpair.cli.premerge import Premerge, annotations, markdown, summary, timed_candidate
from kernelpair.contract.candidate import elsewhere
from kernelpair.contract.subject import Subject
from kernelpair.mutation.mutant import Mutant, Patch
from kernelpair.search.operators import called, operators_of
from kernelpair.sources import NATIVE, BuildError, Sources, source_files
from kernelpair.suite import Place, usual_candidate
from kernelpair.timing.compare import NewError, compare
from kernelpair.timing.counting import Count, compare_counts, counted_rows
from optimized import tiers as known_tiers
from optimized import tiled_tiers
from properties import planting
from properties.planting import plant, planted
from properties.suite import SUITE, candidate
from tests.kernels import kernel
from tests.selftest.toy import PAIR as TOY

PLACE = Place("properties.suite")
SOURCES = ("csrc/", "kernelpair/", "optimized/", "properties/", "reference/", "serving/", "CMakeLists.txt", "pyproject.toml")
FOR_ALL = {  # needed by no pair alone: how the library is made and put on trial
    "csrc/core/build_info.h.in", "csrc/core/shared_kernels.cpp.in", "csrc/core/tiers.h.in",
    "csrc/simd/emulated.h", "csrc/simd/emulated_names.h",
    "csrc/trap/claim.cpp", "csrc/trap/claim.h", "csrc/trap/decode.cpp", "csrc/trap/decode.h", "csrc/trap/tiles.cpp",
    "csrc/trap/tiles.h", "csrc/trap/trap.cpp", "csrc/trap/trap.h",
    "optimized/peak.py", "optimized/trapped.py", "properties/amx_claimed.py", "properties/cpuid_sites.py",
    "properties/object_mutants.py", "properties/planting.py", "properties/steering.py", "properties/tile_counts.py",
}
RUN_BY = {  # kernel -> what runs it beside its own pair
    "act_and_mul": set(),
    "attention_metadata": {"models", "serving"},
    "causal_conv1d": {"causal_conv1d_update_spec", "gdn_attention_core", "gdn_core", "linear_modules", "models", "serving"},
    "chunk_gated_delta_rule": {"gdn_attention_core", "gdn_core", "models", "serving"},
    "decode_attention": {"models", "serving"},
    "extend_attention": {"models", "serving"},
    "flash_attn_varlen": set(),
    "fp8_linear": set(),
    "fp8_to_float": set(),
    "fused_moe": set(),
    "gated_delta_rule_update": {"gated_delta_rule_update_spec", "gdn_attention_core", "models", "serving"},
    "gdn_gating": {"gdn_attention_core", "gdn_core", "models", "serving"},
    "int4_codes": set(),
    "int4_linear": set(),
    "int8_linear": set(),
    "local_attention_batches": {"attention_metadata", "serving"},
    "merge_state": set(),
    "mla_decode": {"mla_workspace", "models", "serving"},
    "pack_fp8_weight": set(),
    "pack_int4_weight": set(),
    "pack_int8_weight": set(),
    "pack_linear_weight": {"linear_modules", "models"},
    "packed_linear": {"linear_modules", "models"},
    "paged_attention": {"models", "serving"},
    "rms_norm": set(),
    "rotary_embedding": set(),
    "quantize_rows_int8": set(),
    "store_cache": {"models", "serving"},
    "topk_gating": set(),
}


@pytest.fixture(scope="module")
def needs() -> Needs:
    """Asked of runs by the first of several workers; the others find what it remembers."""
    place = SUITE.root / ".kernelpair"
    place.mkdir(exist_ok=True)
    with (place / "operators.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Needs.of(SUITE, called(PLACE, Needs.of(SUITE).all))


def project_files() -> list[str]:
    return [str(file) for file in source_files(SUITE.root) if str(file).startswith(SOURCES)]


def test_every_source_file_touches_a_pair(needs: Needs) -> None:
    files = project_files()
    assert len(files) > 200
    assert [file for file in files if not affected(SUITE, [file], needs).tiers] == []


def test_few_files_touch_all_pairs_only_because_nobody_is_known_to_need_them(needs: Needs) -> None:
    counted = [file for file in project_files() if file.startswith(tuple(SUITE.sources.counted))]
    others = {file for file in counted if needs.is_alike(file)} - set(SUITE.sources.everything)
    # Kernels by which tests look at the machine and at the building blocks of kernels have no pair.
    assert {file for file in others if not Path(file).name.startswith("_") and file != "csrc/tiles/peak.h"} <= FOR_ALL


@pytest.mark.parametrize("name", [path.stem for path in sorted((SUITE.root / "csrc/kernels").glob("[a-z]*.cpp"))])
def test_a_kernel_touches_every_scenario_that_runs_it(needs: Needs, name: str) -> None:
    for file in (f"csrc/kernels/{name}.cpp", f"csrc/kernels/{name}.h", f"csrc/ops/{name}.cpp"):
        assert set(affected(SUITE, [file], needs).own) >= {name, *RUN_BY[name]}
    assert "gdn_gating" not in affected(SUITE, ["csrc/kernels/store_cache.cpp"], needs).own


def test_the_pre_commit_filter_lets_the_same_files_through(needs: Needs) -> None:
    text = (SUITE.root / ".pre-commit-hooks.yaml").read_text()
    filters = re.findall(r"^  exclude: '(.*)'", text, re.MULTILINE)
    assert len(filters) == len(re.findall(r"^- id:", text, re.MULTILINE)) == 2
    assert not re.search(r"^  (types|types_or|files):", text, re.MULTILINE)
    names = [str(file) for file in source_files(SUITE.root)]
    touching = [name for name in names if affected(SUITE, [name], needs).tiers] + [f"src/kernel{suffix}" for suffix in NATIVE]
    assert not [name for name in touching for each in filters if re.search(each, name)]
    assert all(re.search(each, "docs/1-what-it-proves.md") for each in filters)


def test_a_run_that_fails_says_nothing_of_what_it_would_have_called() -> None:
    assert operators_of(Subject(TOY, kernel("good")), cases=5) == frozenset()
    assert operators_of(Subject(TOY, kernel("raises")), cases=5) is None
    assert Needs.of(SUITE, {"gdn_gating": None}).all["gdn_gating"] >= {SUITE.root / "csrc/kernels/store_cache.cpp"}


def test_what_a_run_called_is_remembered_by_content(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("one")
    memory = tmp_path / "operators.json"
    first = called(PLACE, {"gdn_gating": [file]}, memory)
    assert "kernelpair::gdn_gating" in (first["gdn_gating"] or ())
    memory.write_text(memory.read_text().replace("kernelpair::gdn_gating", "kernelpair::remembered"))
    assert "kernelpair::remembered" in (called(PLACE, {"gdn_gating": [file]}, memory)["gdn_gating"] or ())
    file.write_text("two")
    assert called(PLACE, {"gdn_gating": [file]}, memory) == first


def test_a_kernel_that_falls_takes_no_answer_of_another_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})  # all are asked in one process
    names = ("first", "deadly", "last")
    found = called(Place("tests.cli.asked_suite"), dict.fromkeys(names, ()), tmp_path / "operators.json")
    assert found == {"first": frozenset(), "deadly": None, "last": frozenset()}


def test_who_stops_asking_keeps_what_is_known_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    memory, begun = tmp_path / "operators.json", []

    def stop(name: str) -> None:
        begun.append((name, time.monotonic()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called(Place("tests.cli.asked_suite"), dict.fromkeys(("slow", "first", "last"), ()), memory, lambda many: stop)
    ((name, since),) = begun
    assert name == "first" and time.monotonic() - since < 30, "a kernel that sleeps for a minute is being asked"
    assert list(json.loads(memory.read_text())) == ["first"]


def test_operators_are_found_where_torch_has_them_registered(tmp_path: Path) -> None:
    registered = tmp_path / "binding.cpp"
    registered.write_text('TORCH_LIBRARY(mine, m) {\n  m.def("scale(Tensor x) -> Tensor", scale);\n}\n')
    (tmp_path / "other.cpp").write_text("void scale();\nMY_MACRO(shift)\n")
    assert Sources().registering(tmp_path, "mine::scale") == [registered]
    assert Sources().registering(tmp_path, "mine::shift") == [tmp_path / "other.cpp"]
    assert Sources().registering(tmp_path, "mine::nowhere") == []


def test_a_file_of_all_pairs_affects_them_all_alike() -> None:
    found = affected(SUITE, ["CMakeLists.txt", "csrc/kernels/gdn_gating.cpp"], Needs.of(SUITE))
    assert set(found.tiers) == set(SUITE.pairs()) and found.own == {"gdn_gating"} and found.everything == ["CMakeLists.txt"]


@pytest.mark.parametrize(
    ("file", "pairs", "tiers"),
    [
        ("csrc/kernels/gdn_gating.cpp", {"gdn_gating"}, set()),
        ("reference/store_cache.py", {"store_cache"}, set()),
        ("properties/decode_attention/corpus.jsonl", {"decode_attention"}, set()),
        ("docs/1-what-it-proves.md", set(), set()),
    ],
)
def test_a_file_touches_the_pairs_that_need_it(file: str, pairs: set[str], tiers: set[str]) -> None:
    found = affected(SUITE, [file])
    assert pairs <= set(found.tiers) and (pairs or not found.tiers)
    assert "paged_attention" not in found.tiers
    assert all(found.tiers[name] == tiers for name in pairs)
    assert found.compiled == ({"gdn_gating"} & pairs)


def test_a_shared_header_touches_all_that_include_it() -> None:
    everything = affected(SUITE, ["csrc/simd/vec.h"])
    assert {"gdn_gating", "decode_attention", "packed_linear"} <= set(everything.compiled)
    engine = affected(SUITE, ["csrc/kernels/_decode_item.cpp"])
    assert {"decode_attention", "mla_decode", "paged_attention"} <= engine.compiled
    assert not {"extend_attention", "gdn_gating"} & set(engine.tiers)
    tiles = affected(SUITE, ["csrc/tiles/tile_block.h"])
    assert tiles.tiers and all(names == set(tiled_tiers()) for names in tiles.tiers.values())


def test_an_unknown_base_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["premerge", "--base", "nowhere"]) == 2
    assert "--base: git knows no revision 'nowhere'" in capsys.readouterr().err


AMX = next(tier for tier in known_tiers() if tier.products == "tile_registers")
EXTRA_LOAD = Mutant(
    "packed_linear", "extra-load", "an operand is loaded again before the second product of a step", "speed",
    (Patch(
        "csrc/tiles/tile_block.h", "Product::template add<i",
        "if constexpr (j == 1) tile_load<kB>(b(j, s));\n        Product::template add<i",
    ),),
    units=("csrc/kernels/packed_linear.cpp",),
)  # fmt: skip


def test_the_rows_that_are_counted_take_seconds() -> None:
    pair = SUITE.pairs()["packed_linear"]
    assert [row.name for row in counted_rows(pair)] == ["1 x 4096 x 4096", "16 x 4096 x 4096", "64 x 4096 x 4096"]
    assert len(counted_rows(SUITE.pairs()["extend_attention"])) == 1  # one at least
    assert counted_rows(SUITE.pairs()["store_cache"]) == []  # which declares no operations


@pytest.mark.skipif(not AMX.run_as, reason=f"nothing counts the tile instructions of {AMX} here")
def test_an_extra_load_in_a_loop_is_told(tmp_path: Path) -> None:
    """The result is the same; the kernel's count of loads is not."""
    pair = SUITE.pairs()["packed_linear"]
    now = planted(candidate(pair, AMX.name), plant(EXTRA_LOAD, "csrc/kernels/packed_linear.cpp", AMX.name, tmp_path))
    counts = compare_counts(PLACE, pair.name, now, candidate(pair, AMX.name))
    raised = {(count.row, count.instruction) for count in counts if count.raised}
    assert raised == {(row.name, "amx loads") for row in counted_rows(pair)}
    products = [count for count in counts if count.instruction == "amx products"]
    assert len(products) == 3 and all(count.now == count.base > 0 for count in products)
    run = Premerge("0123456789abcdef", [], affected(SUITE, []), counts=counts)
    few = next(count for count in run.raised if count.row.startswith("16 x"))
    assert (few.now, few.base) == (4 * 128 * 128, 3 * 128 * 128)
    line = "packed_linear 16 x 4096 x 4096: 65,536 amx loads, 33.3% more than at the base (49,152)"
    assert line in summary(run) and line in markdown(run).replace("**", "")
    assert f"::warning title=kernelpair::{line.replace('%', '%25')}" in annotations(run, SUITE)


@pytest.mark.parametrize(("now", "raised"), [(98, False), (102, False), (103, True)])
def test_two_in_a_hundred_more_are_told(now: int, raised: bool) -> None:
    run = Premerge("0123456789abcdef", [], affected(SUITE, []), counts=[Count("packed_linear", "a row", "amx loads", now, 100)])
    assert [count.now for count in run.raised] == [now] * raised
    says = "packed_linear: executes no more instructions than the base, counted on 1 of its bench rows"
    assert (says in summary(run)) == (not raised)


def test_an_instruction_that_is_new_is_told() -> None:
    count = Count("packed_linear", "a row", "amx loads", 7, 0)
    assert count.raised and count.says == "7 amx loads, none at the base"


# --- what is timed ---


def _changed(pair: str, *tiers: str) -> Premerge:
    touched = affected(SUITE, [])
    touched.tiers, touched.compiled = {pair: set(tiers)}, {pair}
    return Premerge("HEAD", [], touched)


def test_a_change_is_timed_on_a_tier_that_it_touches() -> None:
    usual = SUITE.machine.usual(SUITE.pairs()["gdn_gating"])
    other = next(tier.name for tier in known_tiers() if tier.runnable and tier.name not in (usual, *SUITE.machine.untimed))
    for tiers, timed in (((), usual), ((usual, other), usual), ((other,), other)):
        run = _changed("gdn_gating", *tiers)
        found = timed_candidate(run, SUITE, "gdn_gating")
        assert found is not None and found.name == timed and not run.notes


def test_kernels_without_products_are_timed_on_the_tier_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimized, "selected_tier", lambda products=True: "avx512" if products else "avx2")
    names = ("rms_norm", "packed_linear", "gdn_attention_core")
    taken = {name: usual_candidate(SUITE, SUITE.pairs()[name]).name for name in names}
    assert taken == {"rms_norm": "avx2", "packed_linear": "avx512", "gdn_attention_core": "avx512"}


def test_a_change_of_tiers_that_cannot_be_timed_is_not_timed_on_others() -> None:
    run = _changed("gdn_gating", "amx_emulated")
    assert timed_candidate(run, SUITE, "gdn_gating") is None and not run.new
    assert "gdn_gating: not timed: the change touches amx_emulated only, which cannot be timed here" in summary(run)


def test_a_kernel_that_the_base_does_not_have_is_new() -> None:
    """Nothing of it could be compiled from the base: it would be compared with itself."""
    first = subprocess.run(
        ["git", "-C", str(SUITE.root), "log", "--format=%H", "--diff-filter=A", "--", "csrc/kernels/merge_state.cpp"],
        capture_output=True, text=True, check=True,
    ).stdout.split()[-1]  # fmt: skip
    for base, new in ((f"{first}~", ["merge_state"]), (first, [])):
        run = replace(_changed("merge_state"), base=base)
        assert (timed_candidate(run, SUITE, "merge_state") is None) == bool(new) and run.new == new
        assert ("merge_state: new: the base has nothing to compare its speed with" in summary(run)) == bool(new)


def test_a_base_that_does_not_build_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = []

    def compiler(command: list[str], folder: Path) -> str:
        tried.append(command)
        raise BuildError("vec.h:1: error: no such thing")

    monkeypatch.setattr(planting, "run", compiler)
    changed = ["csrc/kernels/gdn_gating.cpp"]
    for _ in range(2):
        with pytest.raises(BuildError, match="no such thing"):
            planting.library_at(SUITE.root, "HEAD", changed, "scalar", tmp_path / "base")
    assert len(tried) == 1


def test_one_line_names_all_kernels_that_are_not_compared_for_one_reason() -> None:
    run = _changed("gdn_gating")
    for name in ("gdn_gating", "rms_norm"):
        run.uncompared["speed is not compared: the base does not build"].append(name)
    line = "gdn_gating, rms_norm: speed is not compared: the base does not build"
    assert line in summary(run) and line in markdown(run)


SUITE_OF_ONE = """
from dataclasses import replace
from pathlib import Path

from kernelpair.contract.pair import Bench, BenchRow
from kernelpair.suite import Suite
from tests.selftest.toy import PAIR, ToyCase, inputs

class Toys(Suite):
    root = Path(__file__).parent

    def pairs(self):
        return {"toy": replace(PAIR, bench=Bench(rows=[BenchRow("a row", lambda: inputs(ToyCase(rows=4)))]))}

SUITE = Toys()
"""


@pytest.mark.parametrize("base_has_it", [True, False])
def test_a_pair_that_the_base_does_not_have_is_new(tmp_path: Path, base_has_it: bool) -> None:
    """Its functions may stand in a file that is older."""
    texts = {"now": SUITE_OF_ONE, "then": SUITE_OF_ONE if base_has_it else SUITE_OF_ONE.replace('{"toy":', '{} and {"toy":')}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernelpair_suite.py").write_text(text)
    place, now = Place("kernelpair_suite", folder=str(tmp_path / "now")), kernel("good")
    then = elsewhere(now, tmp_path / "now", tmp_path / "then")
    if base_has_it:
        assert compare(place, "toy", now, then, 0.01).row == "a row"
    else:
        with pytest.raises(NewError, match="the base has no toy"):
            compare(place, "toy", now, then, 0.01)
