"""`bench --against`: what is timed, against whom, and how fast the machine is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import properties
from kernelpair.providers.provider import Unsupported, provider
from kernelpair.timing.contest import highest
from kernelpair.timing.machine import Peak
from kernelpair.timing.peers import arguments_of
from kernelpair.timing.speeds import read
from optimized import operator, tiers, use_tier
from optimized.peak import product_rate, read_rate
from properties.suite import ON_TRIAL, SUITE
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
RUNNABLE = [tier.name for tier in tiers() if tier.runnable and not tier.emulated]
ONE_ROW = ("store_cache", "--row", "64 x 8 x 128", "--seconds", "0.01")

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--against", "nobody"), "--against: unknown peer 'nobody'; known are torch, onednn, onnxruntime, "),
        (("--against", "torch,nobody"), "--against: unknown peer 'nobody'"),
        (("--against", "absent.py"), "there is no provider file absent.py"),
        (("--against", " , "), "--against: name at least one peer"),
        (("--errors",), "--errors needs --against"),
        (("--one-thread",), "--one-thread needs --against"),
        (("--threads", "4096"), "--threads: there are "),
        (("--against", "torch", "--tier", "neon"), "unknown tier 'neon'"),
        (("--against", "torch", "--json", "no/such/f.json"), "--json: the folder of no/such/f.json does not exist"),
    ],
)
def test_wrong_usage_is_2_in_one_line(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    assert kernelpair("bench", "store_cache", *arguments) == 2
    out, err = capsys.readouterr()
    assert says in err and "Traceback" not in err and not out


ABSENT = (
    "from kernelpair.providers.provider import adapts\n"
    "def missing():\n    return 'no wheel: make it'\n"
    "@adapts('store_cache')\ndef store(**given):\n    pass\n"
)


def test_beside_others_a_provider_that_cannot_be_used_here_is_named(capsys: Capture) -> None:
    Path("absent.py").write_text(ABSENT)
    assert kernelpair("bench", *ONE_ROW, "--against", "torch,absent.py", "--errors") == 0
    out = capsys.readouterr().out
    assert "absent.py cannot be used here: no wheel: make it" in out
    assert "absent.py: not timed: no wheel: make it" in out
    assert "ratio" in out and "to torch" in out


def test_if_no_provider_can_be_used_here_it_is_2(capsys: Capture) -> None:
    Path("absent.py").write_text(ABSENT)
    assert kernelpair("bench", *ONE_ROW, "--against", "absent.py") == 2
    assert "--against: absent.py cannot be used here: no wheel: make it" in capsys.readouterr().err


def test_no_row_is_3(capsys: Capture) -> None:
    assert kernelpair("bench", "store_cache", "--row", "nothing like it", "--against", "torch") == 3


PROVIDER = """
from kernelpair.providers.provider import Unsupported, adapts

def load():
    open("loaded", "w").close()

def ways(given):
    def copy():
        given["k_cache"][given["indices"]] = given["k"]
    return {"copy": copy, "twice": lambda: (copy(), copy())}

@adapts("store_cache", timed=ways)
def store(**given):
    raise AssertionError("the ways are timed, not the adapter")

def refuse(given):
    raise Unsupported("not on Sundays")

@adapts("gdn_gating", timed=refuse)
def gating(**given):
    pass

@adapts("causal_conv1d")
def convolution(**given):
    raise RuntimeError("no such layout\\nat line 3")
"""


def test_a_contest_is_written_with_every_row(capsys: Capture) -> None:
    Path("mine.py").write_text(PROVIDER)
    assert kernelpair("bench", *ONE_ROW, "--against", "mine.py,torch", "--json", "f.json", "--one-thread") == 0
    out = capsys.readouterr().out
    assert Path("loaded").exists() and "ratio " in out and "of the roofline (reading)" in out
    speeds = read(Path("f.json"))
    assert speeds.against == ["mine.py", "torch"] and speeds.threads == torch.get_num_threads()
    timed = [row for row in speeds.rows if not row.skipped]
    assert {row.tier for row in timed} | set(speeds.skipped_tiers) >= {"avx512", "amx"}
    for row in timed:
        assert row.pair == "store_cache" and row.row == "64 x 8 x 128" and row.ours is not None
        assert [peer.name for peer in row.peers] == ["mine copy", "mine twice", "torch"]
        assert row.ratio == pytest.approx(min(peer.milliseconds for peer in row.peers) / row.ours.milliseconds, rel=1e-5)
        assert row.ours.quartiles[0] <= row.ours.milliseconds <= row.ours.quartiles[1] and row.ours.samples >= 5
        assert row.limited_by == "reading" and row.fraction and row.fraction > 0
        assert (row.one_thread is not None) is (torch.get_num_threads() > 1)
    for tier, reason in speeds.skipped_tiers.items():
        assert reason and [row.skipped for row in speeds.rows if row.tier == tier] == [reason]


def test_a_peer_that_does_not_do_a_row_is_named_with_the_reason(capsys: Capture) -> None:
    Path("mine.py").write_text(PROVIDER)
    against = ("--against", "mine.py", "--seconds", "0.01", "--tier", RUNNABLE[-1])
    assert kernelpair("bench", "gdn_gating", "--row", "1 x 32", *against) == 0
    assert "mine: not timed: not on Sundays" in capsys.readouterr().out
    assert kernelpair("bench", "causal_conv1d", "--row", "update 1 x", *against) == 0
    assert "mine: not timed: RuntimeError: no such layout\n" in capsys.readouterr().out
    assert kernelpair("bench", "packed_linear", "--row", "1 x 4096 x 4096", *against, "--json", "f.json") == 0
    assert "mine: not timed: has no such kernel" in capsys.readouterr().out
    row = read(Path("f.json")).rows[0]
    assert row.unsupported == {"mine": "has no such kernel"} and row.ratio is None


FALLING = """
import ctypes, os, signal
from kernelpair.providers.provider import adapts

def falls(how):
    def ways(given):
        calls = []
        def once_too_often():
            calls.append(1)
            if len(calls) > 3:
                how()
        return {"first": lambda: given["a"].sigmoid(), "falls": once_too_often}
    return ways

def broken():
    raise ValueError("worked a moment ago")

def when_loaded(how):
    def ways(given):
        how()
    return ways

def exits(): os._exit(0)
def faults(): ctypes.string_at(0)
def traps(): os.kill(os.getpid(), signal.SIGILL)

@adapts("gdn_gating", timed=%s)
def gating(**given):
    pass
"""


@pytest.mark.parametrize(
    ("how", "says", "rows"),
    [
        ("falls(faults)", "crash: SIGSEGV", ["64 x 32", "1024 x 32"]),
        ("when_loaded(traps)", "crash: SIGILL", ["1 x 32"]),
        ("falls(exits)", "crash: it ended its process, status 0", ["1 x 32"]),
        ("falls(broken)", "ValueError: worked a moment ago", ["1 x 32"]),
    ],
)
def test_a_peer_that_falls_is_a_row_with_the_reason(capsys: Capture, how: str, says: str, rows: list[str]) -> None:
    """The other peers and the other rows go on, in a process of its own that is new."""
    Path("falling.py").write_text(FALLING % how)
    Path("healthy.py").write_text(FALLING % "lambda given: {'': lambda: given['a'].sigmoid()}")
    against = ("--against", "falling.py,healthy.py,torch", "--seconds", "0.01", "--tier", RUNNABLE[-1], "--json", "f.json")
    assert kernelpair("bench", "gdn_gating", "--row", rows[0][1:] if rows[1:] else rows[0], *against) == 0
    found = read(Path("f.json")).rows
    assert [row.row for row in found] == rows
    for row in found:
        assert row.ours is not None and row.unsupported == {"falling": says}
        assert {"healthy", "torch"} <= {peer.name for peer in row.peers} <= {"healthy", "torch", "falling first"}
        assert row.ratio == pytest.approx(min(peer.milliseconds for peer in row.peers) / row.ours.milliseconds, rel=1e-5)
    assert capsys.readouterr().out.count(f"falling: not timed: {says}") == len(rows)


def test_a_peer_that_does_not_load_is_every_row_with_the_reason(capsys: Capture) -> None:
    Path("broken.py").write_text(PROVIDER.replace('open("loaded", "w").close()', 'raise OSError("libmine.so: no such file")'))
    against = ("--against", "broken.py", "--seconds", "0.01", "--tier", RUNNABLE[-1])
    assert kernelpair("bench", "gdn_gating", *against) == 0
    assert capsys.readouterr().out.count("broken: not timed: it does not load: OSError: libmine.so: no such file") == 3


def test_every_process_makes_the_same_arguments() -> None:
    row = properties.pairs()["gdn_gating"].bench.rows[0]
    first, second = arguments_of(row), arguments_of(row)
    assert all(torch.equal(value, second[name]) for name, value in first.items() if isinstance(value, torch.Tensor))


def test_large_weights_are_timed_alone_too(capsys: Capture) -> None:
    arguments = ("--row", "1 x 4096 x 4096", "--seconds", "0.01", "--tier", RUNNABLE[-1], "--json", "f.json")
    assert kernelpair("bench", "packed_linear", *arguments, "--against", "torch") == 0
    row = read(Path("f.json")).rows[0]
    assert [one.name for one in row.alone] == [RUNNABLE[-1], "torch"] and row.ratio_alone
    assert "alone " in capsys.readouterr().out


def test_a_kin_is_timed_on_the_same_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """paged_attention's floor is a part of extend_attention's speed."""
    pair = properties.pairs()["paged_attention"]
    row = next(row for row in pair.bench.rows if row.name == "512 cached + 128 new, B 4, page 16")
    given = row.arguments()
    with use_tier(RUNNABLE[-1]):
        ours, kin = pair.optimized(**given), row.kin["extend_attention"](given)
        out = next(cell.cell_contents for cell in kin.__closure__ or () if isinstance(cell.cell_contents, dict))["out"]
        kin()
    difference = (ours.float() - out.float()).abs().max()
    assert difference <= 0.02, "the kin does other work"


def test_errors_are_judged_on_the_same_case(capsys: Capture) -> None:
    arguments = ("--row", "1 x 32", "--against", "torch", "--seconds", "0.01", "--tier", "scalar", "--errors", "--json", "f.json")
    assert kernelpair("bench", "gdn_gating", *arguments) == 0
    errors = read(Path("f.json")).errors
    assert [one.pair for one in errors] == ["gdn_gating"] and 0 < errors[0].largest["scalar"] <= 1
    assert not errors[0].failed and '"pair":"gdn_gating"' in errors[0].case
    assert "largest error / bound: scalar" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(name for name in provider("vllm_cpu").adapters if properties.pairs()[name].bench.case))
def test_bench_cases_lie_within_the_limits_of_vllm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its errors could not be compared on the same data. Those of its library for CPUs with AVX512_BF16."""
    for known in ("_is_avx512_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, known, lambda: True)
    found, adapter = properties.pairs()[name], provider("vllm_cpu").adapter(name)
    assert not [says for says, outside in adapter.limits.items() if outside(found.bench.case)]


def test_the_ways_of_vllm_refuse_what_it_does_not_do() -> None:
    for name, row, says in (
        ("gated_delta_rule_update", "B = 1, vk, float32 state", "state layout kv"),
        ("paged_attention", "decode B 16, L 1024, page 16", "pages of a multiple of 32"),
        ("attention_metadata", "", "no such kernel"),
    ):
        pair = properties.pairs()[name]
        found = next(each for each in pair.bench.rows if row in each.name)
        with pytest.raises(Unsupported, match=says):
            provider("vllm_cpu").calls(pair, found, found.arguments())


def test_timing_does_not_run_kernels_on_trial() -> None:
    """Split loops and poisoned scratch are for trials; the library reads the variables when it is loaded."""
    script = (
        "import os, sys, torch\n"
        "before = torch.ops.load_library\n"
        "def spied(path):\n"
        "    print('on trial' if 'KERNELPAIR_SPLIT_LOOPS' in os.environ else 'as for users')\n"
        "    return before(path)\n"
        "torch.ops.load_library = spied\n"
        "from kernelpair.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for arguments, says in (
        (("bench", *ONE_ROW, "--tier", "scalar"), "as for users"),
        (("bench", *ONE_ROW, "--tier", "scalar", "--against", "torch"), "as for users"),
        (("check", "store_cache", "--tier", "scalar", "--in-process", "--examples", "2"), "on trial"),
    ):
        environment = {name: value for name, value in os.environ.items() if name not in ON_TRIAL}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == says, arguments


# --- the roofline ---


def test_peaks_are_measured_on_each_tier() -> None:
    for tier in ("scalar", RUNNABLE[-1]):
        with use_tier(tier):
            assert 0 < product_rate() < 1e15 and 0 < product_rate(torch.int8) < 1e15 and 0 < read_rate(1 << 20) < 1e15
            assert 0 < read_rate(4 << 20, huge_pages=True) < 1e15


def test_a_peak_that_a_row_surpasses_is_measured_again() -> None:
    """It was measured while the machine did something else: a fraction of 178% says nothing."""
    rates, measured = dict[str, float](), iter((1.0, 4.0, 3.0, 6.0, 0.0))
    found = [highest(rates, "avx512", lambda: next(measured), reached) for reached in (0.5, 0.9, 2.0, 3.9, 5.0)]
    assert found == [1.0, 1.0, 4.0, 4.0, 6.0] and rates == {"avx512": 6.0}
    assert highest({}, "none", lambda: next(measured), 1.0) == 0.0


def test_bytes_have_a_peak_of_their_own() -> None:
    machine, weight = SUITE.machine, torch.zeros(2, 2)
    tier = RUNNABLE[-1]
    bytes_of = machine.peak(tier, {"weight": weight.to(torch.int8), "x": weight.bfloat16()})
    assert (bytes_of.product_key, bytes_of.read_key) == (f"{tier}, products of bytes", tier)
    assert machine.peak(tier, {"weight": weight.bfloat16()}) == Peak(tier)
    rows = {"x": weight.bfloat16(), "data": weight.to(torch.uint8)}
    assert machine.peak(tier, {**rows, "activation": "int8"}) == bytes_of
    assert machine.peak(tier, {**rows, "activation": "x"}) == Peak(tier)


def test_weights_in_huge_pages_have_a_reading_rate_of_their_own() -> None:
    weight = operator("pack_linear_weight")(torch.zeros(1024, 1024, dtype=torch.bfloat16))
    peak = SUITE.machine.peak(RUNNABLE[-1], {"x": torch.zeros(1), "packed_weight": weight})
    assert (peak.product_key, peak.read_key) == (RUNNABLE[-1], f"{RUNNABLE[-1]}, huge pages")


def test_peaks_refuse_what_they_cannot_measure() -> None:
    operands, buffer = torch.randn(2048).to(torch.bfloat16), torch.ones(1 << 16)
    peak = torch.ops.kernelpair
    for call, says in (
        (lambda: peak._machine_peak_products(operands[:5], 1), "operands"),
        (lambda: peak._machine_peak_products(operands.to(torch.int8), 1), "operands"),
        (lambda: peak._machine_peak_products(operands.float(), 1), "operands"),
        (lambda: peak._machine_peak_products(operands, 0), "rounds"),
        (lambda: peak._machine_peak_read(buffer[:8], 1), "buffer"),
        (lambda: peak._machine_peak_read(buffer.double(), 1), "buffer"),
    ):
        with pytest.raises(RuntimeError, match=says):
            call()
    with use_tier("scalar"):
        assert peak._machine_peak_products(operands, 7).sum() > 0
        assert peak._machine_peak_products(torch.ones(4096, dtype=torch.int8), 7).sum() > 0
        read_bytes = int(peak._machine_peak_read(buffer, 3).sum())
    assert read_bytes == 3 * 4 * len(buffer)
