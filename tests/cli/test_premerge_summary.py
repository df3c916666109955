"""What `kernelpair premerge` says: its summary, the comment on a pull request, and the marks on files."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from rich.console import Console

from kernelpair.changes import Affected, affected
from kernelpair.cli import main
from kernelpair.cli.premerge import Premerge, _counts, _needs, annotations, markdown, summary
from kernelpair.environment import cpu_model
from kernelpair.report.lines import FailureReport, PairResult
from kernelpair.report.steps import Steps
from kernelpair.suite import Place
from kernelpair.timing.compare import Ratio
from properties.suite import SUITE


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
    assert cpu_model() in markdown(run) and f"torch {torch.__version__}." in markdown(run)
    assert annotations(run, SUITE)[0].startswith(f"::error file={kernel},title=kernelpair::gdn_gating[avx2] value")
    assert annotations(run, SUITE)[-1].startswith("::warning title=kernelpair::gdn_gating 1 x 32 takes 1.50 times")
    assert not any("executes" in line for line in summary(run))
    failure.detail = "100 %0A of\n1"
    run.touched.files["gdn_gating"] = ["a,b:c"]
    marked = annotations(run, SUITE)[0]
    assert marked.startswith("::error file=a%2Cb%3Ac,title=kernelpair::gdn_gating[avx2] value: 100 %250A of%0A1%0Akernelpair")


def _result(**fields: Any) -> PairResult:
    return PairResult("gdn_gating", "avx2", **fields)


SLOWER = Ratio("gdn_gating", "1 x 32", 1.5, 1.4, 1.6)


@pytest.mark.parametrize(
    ("fields", "heading"),
    [
        ({"results": [_result(verdict="pass", cases=9)]}, "pass"),
        ({"results": [_result(verdict="pass", cases=9)], "interrupted": True}, "interrupted"),
        ({"results": [_result(verdict="pass", cases=9)], "errors": ["gdn_gating: no such dimension"]}, "harness fault"),
        ({"results": [_result(verdict="fail", cases=9)], "errors": ["act_and_mul: no such dimension"]}, "fail"),
        ({"results": [_result(verdict="pass", cases=9)], "ratios": [SLOWER]}, "fail"),
        ({}, "nothing was tested"),
    ],
)
def test_the_heading_of_the_summary_says_what_the_exit_status_says(fields: dict[str, Any], heading: str) -> None:
    run = Premerge("0123456789abcdef", [], affected(SUITE, []), **fields)
    assert markdown(run, fail_on_slowdown=True).splitlines()[0] == f"### kernelpair: {heading}"


def test_an_interrupt_while_pairs_are_asked_for_their_operators_is_told_in_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*given: object, **more: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelpair.cli.premerge.changed_files", lambda root, base: ["csrc/kernels/gdn_gating.cpp"])
    monkeypatch.setattr("kernelpair.cli.premerge.called", asked)
    comment, results = tmp_path / "comment.md", tmp_path / "results.xml"
    comment.write_text("### kernelpair: pass")
    assert main(["premerge", "--base", "HEAD", "--markdown", str(comment), "--junit", str(results)]) == 130
    assert comment.read_text().startswith("### kernelpair: interrupted\n")
    assert '<property name="interrupted" value="True" />' in results.read_text()
    assert "interrupted: 0 passed, 0 failed; 0 cases" in capsys.readouterr().out


def test_who_includes_what_has_changed_is_not_asked_for_its_operators(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[set[str]]()

    def called(place: Place, needs: dict[str, object], **more: object) -> dict[str, None]:
        asked.append(set(needs))
        return {}

    monkeypatch.setattr("kernelpair.cli.premerge.called", called)
    for file in ("csrc/kernels/gdn_gating.cpp", "csrc/core/view.h", "reference/gdn_gating.py"):
        _needs(Premerge("0123456789abcdef", [file]), Place("properties.suite"), Console())
    kernel, everywhere = asked
    assert "gdn_gating" not in kernel and {"store_cache", "models"} <= kernel
    assert everywhere < kernel
    assert f"asking {len(kernel)} pairs which operators they call" in capsys.readouterr().out


def test_how_far_it_is_is_told_while_instructions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Steps, "begin", lambda self, name: begun.append(f"{name} of {self.many} {self.what}"))
    monkeypatch.setattr(type(SUITE.sources), "at_revision", lambda self, root, pair, now, *rest: now)
    monkeypatch.setattr("kernelpair.cli.premerge.compare_counts", lambda *given: [])
    run = Premerge("0123456789abcdef", [], Affected(compiled={"packed_linear", "gdn_gating"}))
    _counts(run, Place("properties.suite"), Console())
    counting = [candidate for candidate in SUITE.candidates(SUITE.pairs()["packed_linear"]) if candidate.executed]
    assert begun == [f"packed_linear of {len(counting)} kernels whose instructions are counted" for _ in counting]


def test_files_that_are_not_named_in_the_summary_are_counted() -> None:
    run = Premerge("0123456789abcdef", [], affected(SUITE, []))
    run.touched.tiers, run.touched.files = {"gdn_gating": {"avx2"}}, {"gdn_gating": ["a.h", "b.h", "c.h", "d.h", "e.h"]}
    assert "| `a.h`, `b.h`, `c.h` and 2 more |" in markdown(run)
    run.touched.files["gdn_gating"] = ["a.h", "b.h", "c.h"]
    assert "| `a.h`, `b.h`, `c.h` |" in markdown(run)
