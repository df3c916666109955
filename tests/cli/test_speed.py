"""What the rows of a bench claim, and what follows from their times."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import properties
from kernelpair.contract.pair import PEERS, Floor
from kernelpair.timing import interleaved
from kernelpair.timing.interleaved import Away, interleave
from kernelpair.timing.speeds import SpeedRow, Speeds, Timed, conclude
from properties.suite import SUITE

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
FLOORS = SUITE.machine.floors
HALF_OF_TORCH = Floor(0.5, over="torch")

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
