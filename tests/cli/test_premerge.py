"""The pre-merge check: what a change touches, what is said about it, and the exit status."""

import subprocess
from pathlib import Path

import pytest

from kernelpair.changes import RevisionError, affected, base_revision, changed_files
from kernelpair.cli import main
from kernelpair.cli.premerge import Premerge, annotations, markdown, summary
from kernelpair.report.lines import FailureReport, PairResult
from kernelpair.timing.compare import Ratio
from optimized import tiled_tiers
from properties.suite import SUITE


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
    tiles = affected(SUITE, ["csrc/tiles/tile_block.h"])
    assert tiles.tiers and all(names == set(tiled_tiers()) for names in tiles.tiers.values())


def test_the_base_and_what_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "a").write_text("1")
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "a").write_text("2")
    (tmp_path / "new").write_text("3")
    assert changed_files(tmp_path, base_revision(tmp_path, None)) == ["a", "new"]
    with pytest.raises(RevisionError, match="git knows no revision 'nowhere'"):
        base_revision(tmp_path, "nowhere")


def test_an_unknown_base_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["premerge", "--base", "nowhere"]) == 2
    assert "--base: git knows no revision 'nowhere'" in capsys.readouterr().err


def test_what_it_says() -> None:
    kernel = "csrc/kernels/gdn_gating.cpp"
    run = Premerge("0123456789abcdef", [kernel], affected(SUITE, [kernel]))
    failure = FailureReport("value", "{}", "kernelpair replay '{}' --tier avx2", "g: 1 of 1 elements differ")
    failing = PairResult("gdn_gating", "avx2", "fail", cases=9, failures=[failure])
    run.results = [failing, PairResult("store_cache", "avx2", "pass", cases=5)]
    run.ratios = [Ratio("gdn_gating", "1 x 32", 1.5, 1.4, 1.6), Ratio("gdn_gating", "64 x 32", 1.2, 0.9, 1.6)]
    assert [ratio.row for ratio in run.slower] == ["1 x 32"]
    text = "\n".join(summary(run))
    assert "FAIL gdn_gating[avx2] value: g: 1 of 1" in text
    assert "1 passed, 1 failed; 14 cases, 9 of them on affected pairs" in text
    assert "### kernelpair: fail" in markdown(run) and f"| gdn_gating | avx2 | 9 | fail | `{kernel}` |" in markdown(run)
    assert annotations(run, SUITE)[0].startswith(f"::error file={kernel},title=kernelpair::gdn_gating[avx2] value")
    assert annotations(run, SUITE)[-1].startswith("::warning title=kernelpair::gdn_gating 1 x 32 takes 1.50 times")
