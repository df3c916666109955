"""Campaigns: blocks on disk, three nodes with labels of their own, one of which dies in the middle."""

import argparse
import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelpair.cli.campaign import LABEL, SeedBlock, _Campaign
from kernelpair.report.lines import FailureReport, PairResult
from kernelpair.report.merge import merged, result_from, results_on_disk
from kernelpair.suite import find
from tests.command_line import kernelpair

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ("store_cache", "local_attention_batches")
TIERS = ("scalar", "avx2")
BLOCK, CASES = 6, 72

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
                   ratios={"out": {-1: 3}}, unhit=["a", "b"])  # fmt: skip
    second = PairResult("p", "t", "fail", cases=7, seconds=2, failures=[short], edges={"e": 1, "f": 0}, tightness={"out": 0.25},
                    ratios={"out": {-1: 1, -2: 1}}, unhit=["b"])  # fmt: skip
    whole = merged([first, second])
    assert (whole.cases, whole.seconds, whole.verdict) == (12, 3, "fail")
    assert whole.failures == [short] and whole.edges == {"e": 1, "f": 2} and whole.uncovered == [] and whole.unhit == ["b"]
    assert whole.tightness == {"out": 0.5} and whole.ratios == {"out": {-2: 1, -1: 4}}


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


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # The head has no core, so that it runs nothing; the second and third are machines of which one may die.
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        import ray

        ray.shutdown()
        made.shutdown()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'kernelpair[campaign]'")
def test_a_node_dies_and_no_case_is_lost_or_counted_twice(cluster: Any) -> None:
    both = {f"{LABEL}{tier}": "yes" for tier in TIERS}
    cluster.add_node(num_cpus=1, labels=both)
    cluster.add_node(num_cpus=1, labels={f"{LABEL}scalar": "yes"})
    doomed = cluster.add_node(num_cpus=1, labels=both)
    cluster.wait_for_nodes()
    folder = Path("kept") / "blocks"
    killed: list[int] = []

    def kill_in_the_middle() -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until and len(list(folder.glob("*.json"))) < 3:
            time.sleep(0.2)
        killed.append(len(list(folder.glob("*.json"))))
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    tiers = [argument for tier in (*TIERS, "amx_emulated") for argument in ("--tier", tier)]
    status = kernelpair(
        "--suite", "properties.suite", "campaign", *PAIRS, *tiers, "--cases", str(CASES), "--block", str(BLOCK), "--seed", "3",
        "--folder", "kept", "--json", "r.json", "--address", cluster.address,
    )  # fmt: skip
    killer.join()
    assert status == 0
    trials = [("store_cache", tier) for tier in TIERS] + [("local_attention_batches", "python")]
    found = {(r["pair"], r["candidate"]): r for r in json.loads(Path("r.json").read_text())["results"]}
    assert killed and killed[0] < sum(len(list(folder.glob(f"{pair}-{tier}-*"))) for pair, tier in trials)
    emulated = found.pop(("store_cache", "amx_emulated"))
    assert emulated["verdict"] == "skip" and "no node of the cluster has the label kernelpair/amx_emulated" in emulated["reason"]
    python = found.pop(("local_attention_batches", "python"))
    assert python["verdict"] == "skip" and "kernelpair/python" in python["reason"]
    share = CASES // 4
    for (pair, tier), result in found.items():
        assert result["cases"] >= share, (pair, tier)  # saved cases come on top of the first block
        blocks = results_on_disk(folder, [(pair, tier)], {})
        assert blocks[0].cases == result["cases"]
        numbers = sorted(file.stem.rpartition("-")[2] for file in folder.glob(f"{pair}-{tier}-*.json"))
        assert numbers == [f"{number:06}" for number in range(share // BLOCK)]
