"""A busy machine is noticed, and said before times that it disturbs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelpair.changes import affected
from kernelpair.cli.premerge import Premerge, markdown, summary
from kernelpair.timing import load
from kernelpair.timing.compare import Ratio
from kernelpair.timing.load import LEAST_SHARE, MOST_SPREAD, WAITING, Load, look
from kernelpair.timing.speeds import read
from properties.suite import SUITE
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
QUIET = Load(2, 0.0, 1.0, 0.0)
BUSY = Load(2, 3.4, 0.52, 0.6)
SAYS = "busy machine: 3.4 other processes want its 2 cores; a loop on each core got 52% of it, in times that vary by 60%"
BENCH = ("gdn_gating", "--row", "1 x 32", "--tier", "scalar", "--seconds", "0.01", "--json", "f.json")

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize(
    ("figures", "busy", "shared"),
    [
        ({}, False, False),
        ({"others": WAITING, "share": LEAST_SHARE, "spread": MOST_SPREAD}, False, False),
        ({"others": WAITING + 0.01}, True, True),
        ({"share": LEAST_SHARE - 0.01}, True, True),
        ({"spread": MOST_SPREAD + 0.01}, True, False),
    ],
)
def test_any_of_the_figures_makes_it_busy(figures: dict[str, float], busy: bool, shared: bool) -> None:
    load = replace(QUIET, **figures)
    assert (load.busy, load.shared) == (busy, shared)


def test_the_only_core_is_no_plural() -> None:
    assert "want its only core; a loop" in replace(BUSY, cores=1).says


def test_processes_that_spin_beside_are_seen() -> None:
    """Three for each core, so that the loop gets a quarter of it, whatever else goes on."""
    cores = len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * cores)]
    try:
        seen = look()
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert seen.busy and seen.cores == cores and seen.share < LEAST_SHARE and seen.others > cores


def test_the_run_queue_leaves_this_process_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Queue:
        def __init__(self, path: str) -> None:
            assert path == "/proc/loadavg"

        def read_text(self) -> str:
            return "0.50 0.40 0.30 3/120 4711\n"

    monkeypatch.setattr(load, "Path", Queue)
    assert look(1).others == 2.0


@pytest.mark.parametrize("against", [(), ("--against", "torch")])
@pytest.mark.parametrize(
    ("looks", "said"), [((QUIET, QUIET), []), ((BUSY, BUSY), [0]), ((QUIET, BUSY), [1]), ((BUSY, QUIET), [0])]
)
def test_bench_says_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, against: tuple[str, ...], looks: tuple[Load, Load], said: list[int]
) -> None:
    """Before the first row; where it is so at the end only, there."""
    left = list(looks)
    monkeypatch.setattr("kernelpair.cli.bench.look", lambda: left.pop(0))
    assert kernelpair("bench", *BENCH, *against) == 0
    out = capsys.readouterr().out
    assert out.count(SAYS) == len(said)
    assert [int(out.index("gdn_gating  1 x 32") < out.index(SAYS)) for _ in said] == said
    if against:
        assert read(Path("f.json")).load == list(looks)
        assert kernelpair("speed", "f.json", "page.md") == 0
        assert ("**Other processes ran beside it** (3.4 other processes" in Path("page.md").read_text()) == bool(said)
    else:
        assert [each["share"] for each in json.loads(Path("f.json").read_text())["load"]] == [each.share for each in looks]


def test_the_page_tells_a_processor_that_varies_from_one_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.cli.bench.look", lambda: replace(QUIET, spread=0.6))
    assert kernelpair("bench", *BENCH, "--against", "torch") == 0
    assert kernelpair("speed", "f.json", "page.md") == 0
    assert "**The processor's speed varied** (0.0 other processes" in Path("page.md").read_text()


def test_premerge_says_it() -> None:
    run = Premerge("0123456789abcdef", [], affected(SUITE, []), load=BUSY)
    assert summary(run)[0].startswith(SAYS) and SAYS in markdown(run)
    run.ratios = [Ratio("gdn_gating", "1 x 32", 1.34, 1.17, 1.94)]
    says = "gdn_gating 1 x 32: slower, beside other work, time / base 1.34 (1.17 … 1.94)"
    assert says in summary(run) and run.slower and "| slower, beside other work |" in markdown(run)
    run.load = QUIET
    assert run.slower and "| slower |" in markdown(run)
    assert "busy" not in "\n".join(summary(run))
