"""A campaign on three nodes with labels of their own: one dies in the middle, the command is interrupted and goes on from what
is on disk, and a failure that one machine finds is tried first by the next."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelpair.cli.campaign import LABEL
from kernelpair.report.merge import results_on_disk
from tests.command_line import kernelpair

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelpair[campaign]'")

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("scalar", "avx2")
TRIALS = [("store_cache", tier) for tier in TIERS]
BLOCK, SHARE = 6, 18  # cases of a block and of a trial
NODE_SECONDS = 300.0
TOY = "toy", "toy"
TOY_SUITE = """
from pathlib import Path

from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR, toy_candidate

SUITE = PlainSuite(Path(__file__).parent, [PAIR], {"toy": [toy_candidate("unwritten")]})
"""

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def _labels(*candidates: str) -> dict[str, str]:
    return {f"{LABEL}{candidate}": "yes" for candidate in candidates}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes, of which one has but a scalar CPU."""
    import ray
    from ray.cluster_utils import Cluster

    variables = pytest.MonkeyPatch()
    variables.setenv("RAY_worker_niceness", "0")  # the default, 15, gets nothing where others want the cores
    # The head has no core, so that it runs nothing.
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1, labels=_labels(*TIERS))
        made.add_node(num_cpus=1, labels=_labels("scalar"))
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        variables.undo()


def _campaign(cluster: Any, suite: str, *arguments: str) -> int:
    return kernelpair("--suite", suite, "campaign", *arguments, "--address", cluster.address)


def _of_three_trials(cluster: Any, cases: int, *more: str) -> int:
    """Two tiers, one that no node has, and a pair in Python alone, for which no node has a label either: four trials."""
    tiers = [argument for tier in (*TIERS, "amx_emulated") for argument in ("--tier", tier)]
    size = ("--cases", str(4 * cases), "--block", str(BLOCK))
    return _campaign(cluster, "properties.suite", "store_cache", "mla_workspace", *tiers, *size, "--folder", "kept", *more)


def _blocks() -> list[Path]:
    return sorted(Path("kept", "blocks").glob("*.json"))


def _once_there_are(blocks: int, act: Callable[[], object]) -> tuple[threading.Thread, list[int]]:
    """Act in the middle of a campaign: how many blocks there were by then."""
    seen: list[int] = []

    def wait() -> None:
        until = time.monotonic() + NODE_SECONDS
        while time.monotonic() < until and len(_blocks()) < blocks:
            time.sleep(0.05)
        seen.append(len(_blocks()))
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, seen


def _nothing_is_lost_or_counted_twice(document: str) -> None:
    found = {(each["pair"], each["candidate"]): each for each in json.loads(Path(document).read_text())["results"]}
    for name in (("store_cache", "amx_emulated"), ("mla_workspace", "python")):
        untried = found.pop(name)
        assert untried["verdict"] == "skip" and untried["cases"] == 0
        assert untried["reason"] == f"no node of the cluster has the label {LABEL}{name[1]}"
    assert sorted(found) == sorted(TRIALS)
    for pair, tier in TRIALS:
        files = [file for file in _blocks() if file.name.startswith(f"{pair}-{tier}-")]
        assert [file.stem.rpartition("-")[2] for file in files] == [f"{number:06}" for number in range(SHARE // BLOCK)]
        blocks = [json.loads(file.read_text()) for file in files]
        assert all(block["asked"] == BLOCK <= block["cases"] for block in blocks), "saved cases come on top of the first"
        assert found[pair, tier]["cases"] == sum(block["cases"] for block in blocks)
        assert results_on_disk(Path("kept", "blocks"), [(pair, tier)], {})[0].cases == found[pair, tier]["cases"]


def test_a_node_dies_and_no_case_is_lost_or_counted_twice(cluster: Any) -> None:
    doomed = cluster.add_node(num_cpus=1, labels=_labels(*TIERS))
    cluster.wait_for_nodes()
    killer, seen = _once_there_are(2, lambda: cluster.remove_node(doomed, allow_graceful=False))
    status = _of_three_trials(cluster, SHARE, "--seed", "3", "--json", "r.json")
    killer.join()
    assert status == 0 and 2 <= seen[0] < len(TRIALS) * SHARE // BLOCK, seen
    _nothing_is_lost_or_counted_twice("r.json")


def test_an_interrupted_campaign_goes_on_from_what_is_on_disk(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stopper, seen = _once_there_are(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert _of_three_trials(cluster, SHARE, "--seed", "5", "--json", "first.json") == 130
    stopper.join()
    assert "No failure when it was interrupted in " in capsys.readouterr().out
    before = {file: file.stat().st_mtime_ns for file in _blocks()}
    assert 2 <= seen[0] <= len(before) < len(TRIALS) * SHARE // BLOCK
    first = json.loads(Path("first.json").read_text())
    assert sum(each["cases"] for each in first["results"]) == sum(json.loads(file.read_text())["cases"] for file in before)

    assert _of_three_trials(cluster, SHARE, "--json", "second.json") == 0
    assert {file: file.stat().st_mtime_ns for file in before} == before, "what is on disk is not run again"
    assert "seed 5" in capsys.readouterr().out
    _nothing_is_lost_or_counted_twice("second.json")


def test_what_one_machine_finds_the_next_tries_first(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "toy_suite.py").write_text(TOY_SUITE)

    def on_a_machine_of_its_own(folder: str, *arguments: str) -> tuple[int, int]:
        """With a folder for temporary files that no other has: its own failing examples are there. Status and cases."""
        (tmp_path / folder).mkdir()
        paths = os.pathsep.join((str(ROOT), str(tmp_path)))
        variables = {"TMPDIR": str(tmp_path / folder), "PYTHONPATH": paths}
        node = cluster.add_node(num_cpus=1, labels=_labels("toy"), env_vars=variables)
        cluster.wait_for_nodes()
        how = ("toy", "--folder", f"{folder}-kept", "--json", f"{folder}.json", *arguments)
        status = _campaign(cluster, "toy_suite.py", *how)
        cluster.remove_node(node)
        (result,) = json.loads(Path(f"{folder}.json").read_text())["results"]
        return status, result["cases"]

    shared = ("--shared", str(tmp_path / "shared"))
    assert on_a_machine_of_its_own("one", "--cases", "100", "--block", "100", "--seed", "1", *shared)[0] == 1
    assert on_a_machine_of_its_own("alone", "--cases", "1", "--block", "1", "--seed", "2")[0] == 0, "this seed finds nothing"
    status, cases = on_a_machine_of_its_own("two", "--cases", "1", "--block", "1", "--seed", "2", *shared)
    assert status == 1 and cases > 0
    own = list((tmp_path / "two").glob("*/.hypothesis/kernelpair/toy-toy/*"))
    assert own, "and keeps it in its own database too"
