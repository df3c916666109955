"""Campaigns: the plan, the blocks on disk and what they add up to. With nodes: test_cluster.py."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kernelpair.cli.campaign import LABEL, SeedBlock, _Campaign, run_block
from kernelpair.report.lines import FailureReport, PairResult
from kernelpair.report.merge import merged, result_from
from kernelpair.suite import find
from tests.cli.test_copied import SUITE
from tests.command_line import kernelpair

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def options(**more: Any) -> argparse.Namespace:
    usual = {"pairs": ["store_cache"], "tier": ["scalar"], "cases": 50.0, "hours": None, "folder": "kept", "block": 20, "seed": 7}
    return argparse.Namespace(**(usual | {"shared": None, "json": None, "html": None, "address": None} | more))


def campaign(**more: Any) -> _Campaign:
    place = find("properties.suite")
    return _Campaign(options(**more), place, place.load(), None)


def keep(folder: Path, block: SeedBlock, cases: int) -> None:
    result = {"pair": block.pair, "candidate": block.candidate, "verdict": "pass", "cases": cases, "failures": []}
    (folder / "blocks" / block.file).write_text(json.dumps(result | {"asked": block.cases}))


def test_blocks_cover_the_cases_and_those_on_disk_are_not_run_again() -> None:
    run = campaign()
    blocks = list(run.blocks())
    assert [(block.number, block.cases) for block in blocks] == [(0, 20), (1, 20), (2, 10)]
    keep(run.folder, blocks[1], 20)
    assert [block.number for block in campaign().blocks()] == [0, 2]
    keep(run.folder, blocks[2], 10)
    assert [(block.number, block.cases) for block in campaign(cases=60.0).blocks()] == [(0, 20), (2, 20)]  # the last was smaller


def test_a_campaign_goes_on_with_its_own_seed_and_blocks() -> None:
    campaign()
    assert campaign(seed=None, block=None).seed == 7
    with pytest.raises(Exception, match="--block 30: the campaign in kept has 20; leave the option out"):
        campaign(block=30)


def test_results_of_blocks_add_up_and_the_shortest_failure_stays() -> None:
    long, short = (FailureReport("value", "{" + "x" * n + "}", "replay", "out: 1", "value out: any case") for n in (30, 9))
    first = PairResult("p", "t", "fail", cases=5, seconds=1, failures=[long], edges={"e": 0, "f": 2}, tightness={"out": 0.5},
                   ratios={"out": {-1: 3}}, unhit=["a", "b"], measures={"keys": (5, 9)}, executed={"amx loads": 3},
                   groups={"g": (2, 1.5), "h": (1, 2.0)})  # fmt: skip
    second = PairResult("p", "t", "fail", cases=7, seconds=2, failures=[short], edges={"e": 1, "f": 0}, tightness={"out": 0.25},
                    ratios={"out": {-1: 1, -2: 1}}, unhit=["b"], measures={"keys": (7, 9)}, executed={"amx loads": 4},
                    groups={"g": (3, 1.25), "h": (1, None)})  # fmt: skip
    whole = merged([first, second])
    assert (whole.cases, whole.seconds, whole.verdict) == (12, 3, "fail")
    assert whole.failures == [short] and whole.edges == {"e": 1, "f": 2} and whole.uncovered == [] and whole.unhit == ["b"]
    assert whole.tightness == {"out": 0.5} and whole.ratios == {"out": {-2: 1, -1: 4}}
    assert whole.measures == {"keys": (7, 9)} and whole.executed == {"amx loads": 7}
    assert whole.groups == {"g": (5, 1.5), "h": (2, None)}


def test_gaps_of_blocks_and_what_a_ledger_knows_come_together() -> None:
    first = PairResult("p", "t", "pass", cases=5, gaps={"out": (2, 1.5, "{a}")}, rounding="of the state", known={"g": "{g}"},
                       mended=["h", "i"], run_as="trapped")  # fmt: skip
    second = PairResult("p", "t", "pass", cases=7, gaps={"out": (1, 4.0, "{b}"), "lse": (1, 2.0, "{c}")}, rounding="of the state",
                        known={"i": "{i}"}, mended=["h", "g"], run_as="trapped")  # fmt: skip
    none = PairResult("p", "t", "skip")
    for results in ([first, second, none], [none, second, first]):
        whole = merged([result_from(json.loads(json.dumps(asdict(result)))) for result in results])
        assert whole.gaps == {"out": (3, 4.0, "{b}"), "lse": (1, 2.0, "{c}")} and whole.rounding == "of the state"
        assert whole.known == {"g": "{g}", "i": "{i}"} and whole.mended == ["h"]
        assert whole.run_as == "trapped" and whole.verdict == "pass"


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(ValueError, match="no result"):
        result_from({"pair": "p"})


def test_labels_are_those_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernelpair("--suite", "properties.suite", "campaign", "--labels") == 0
    labels = capsys.readouterr().out.strip().split(",")
    assert f"{LABEL}scalar=yes" in labels and f"{LABEL}python=yes" in labels


def test_it_has_to_be_said_when_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernelpair("--suite", "properties.suite", "campaign", "store_cache") == 2
    assert "--cases N, such as 1e8, or --hours H" in capsys.readouterr().err


def test_the_command_of_a_failure_names_the_suite() -> None:
    Path("mine.py").write_text(SUITE)
    document = run_block(find("mine.py"), SeedBlock("toy", "my kernel", 0, 20), 1, (), "", "mine.py")
    assert {failure["replay"].partition(" --tier ")[2] for failure in document["failures"]} == {"'my kernel' --suite mine.py"}
