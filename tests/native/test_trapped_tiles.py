"""Tile instructions without AMX: the handler does what the documentation says, bit for bit, and lets everything else through."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import optimized
from kernelpair.cli import main
from properties import ROOT

AMX = next(tier for tier in optimized.tiers() if tier.products == "tile_registers")
LEAST_SUMS = 1_000_000
PROVIDER = '''"""A library with AMX kernels, as far as it says."""

from math import prod

from kernelpair.providers.provider import adapts
from properties.packed_linear import PAIR


def prepare():
    from optimized import set_tier
    from optimized.trapped import trap_tiles

    trap_tiles()
    set_tier("TIER")


@adapts("packed_linear", claims="amx", claimed=lambda case: case.dtype == "bfloat16" and prod(case.outer) > 0)
def packed_linear(**given):
    return PAIR.optimized(**given)
'''
TRIED_HERE = pytest.mark.skipif(not (AMX.runnable or AMX.run_as), reason=AMX.reason)
TRAPPED_HERE = pytest.mark.skipif(not AMX.run_as, reason="this machine has what the tier needs, or lacks more than tiles")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the corpus found, in a process of its own: it takes over signals."""
    folder = tmp_path_factory.mktemp("corpus")
    command = [sys.executable, "-m", "tests.native.tile_corpus.run", str(folder), "7", "110", "3"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@TRIED_HERE
def test_every_instruction_follows_its_documentation(done: dict[str, Any], record_property: Any) -> None:
    record_property("tiles", done["how"])
    assert done["how"] == ("hardware" if AMX.runnable else "trapped")
    assert done["sums"] >= LEAST_SUMS and done["on threads"] > 1000, done


@TRIED_HERE
def test_what_nobody_handles_ends_the_process_as_ever(done: dict[str, Any]) -> None:
    assert done["deaths"] == {"a square": -signal.SIGILL, "another instruction": -signal.SIGILL}


@TRIED_HERE
def test_a_handler_on_top_changes_nothing(done: dict[str, Any]) -> None:
    assert done["nests"]


def in_new_process(program: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KERNELPAIR_TIER"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@TRAPPED_HERE
def test_trapped_tiles_run_only_when_they_are_named() -> None:
    done = in_new_process(
        "import optimized; from optimized import trapped; trapped.trap_tiles(); print(optimized.selected_tier());"
        f"optimized.set_tier('{AMX.name}'); print(optimized.selected_tier(), optimized.best_tier())"
    )
    best = optimized.best_tier()
    assert (done.returncode, done.stdout.split()) == (0, [best, AMX.name, best]), done.stderr
    assert best != AMX.name


@TRAPPED_HERE
def test_counts_are_those_of_the_call() -> None:
    """Forty steps of one block: two operands a product, and one sum."""
    done = in_new_process(
        "import torch, optimized; from optimized import trapped; trapped.trap_tiles();"
        f"optimized.set_tier('{AMX.name}'); a = torch.ones(16, 32 * 40).bfloat16(); b = torch.ones(40, 16, 16, 2).bfloat16();"
        "trapped.reset(); out = torch.ops.kernelpair._tile_product(a, b, torch.zeros(16, 16));"
        "print(float(out.sum()), trapped.totals())"
    )
    assert done.returncode == 0, done.stderr
    total, said = done.stdout.split(maxsplit=1)
    counts = json.loads(said.replace("'", '"'))
    assert float(total) == 16 * 16 * 32 * 40
    assert (counts["products"], counts["stores"], counts["configurations"], counts["releases"]) == (40, 1, 1, 1)
    assert counts["loads"] == 2 * 40 + 1 and 0 < counts["traps"] <= sum(counts.values()) - counts["traps"]


@TRAPPED_HERE
def test_trapped_software_and_hardware_tiles_have_the_same_bits() -> None:
    """The compiled tier against the software tiles that the other tests hold against the documented arithmetic."""
    done = in_new_process(
        "import torch; from optimized import trapped; trapped.trap_tiles()\n"
        "from tests.native.test_tiles import TILE_TIERS, bits, operands, tile_product\n"
        "first, second = TILE_TIERS\n"
        "for kind in ('plain', 'wide', 'bits'):\n"
        "    for shape in ((16, 16, 1), (16, 16, 7), (1, 16, 3), (5, 7, 2), (16, 1, 1)):\n"
        "        given = operands(3, kind, *shape)\n"
        "        got, expected = (bits(tile_product(tier.name, *given)) for tier in (first, second))\n"
        "        assert torch.equal(got, expected), (kind, shape)\n"
    )
    assert done.returncode == 0, done.stderr


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_reports_say_that_they_are_trapped(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["packed_linear", "--tier", AMX.name, "--examples", "20", "--seed", "3", "--json", "found.json"]
    assert main(["check", *arguments]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"packed_linear +{AMX.name} \(trapped\) .* pass  [\d,]+ amx instructions", out)
    assert f"on {AMX.name} (trapped)" in out
    result = json.loads(Path("found.json").read_text())["results"][0]
    assert result["run_as"] == "trapped" and result["executed"]["amx products"] > 0
    assert main(["doctor", "--json"]) == 0
    tier = next(tier for tier in json.loads(capsys.readouterr().out)["tiers"] if tier["name"] == AMX.name)
    assert (tier["runnable"], tier["run_as"]) == (False, "trapped") and tier["reason"]
    assert main(["list", "packed_linear"]) == 0
    assert f"{AMX.name} (trapped)" in capsys.readouterr().out


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
@pytest.mark.parametrize("tier", [AMX.name, optimized.best_tier()])
def test_a_provider_that_falls_back_silently_is_caught(tier: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("library.py").write_text(PROVIDER.replace("TIER", tier))
    took = tier == AMX.name
    arguments = ["packed_linear", "--provider", "library.py", "--examples", "60", "--seed", "3", "--json", "found.json"]
    assert main(["check", *arguments]) == (0 if took else 1), capsys.readouterr().out
    result = json.loads(Path("found.json").read_text())["results"][0]
    assert {failure["kind"] for failure in result["failures"]} == (set() if took else {"wrong_path"})
    assert bool(result["executed"].get("amx products")) == took


@TRAPPED_HERE
def test_timing_refuses_them_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for also in ([], ["--against", "torch"]):
        assert main(["bench", "store_cache", "--tier", AMX.name, *also]) == 2
        assert f"tier {AMX.name} cannot be timed here: it runs trapped only: " in capsys.readouterr().err


@TRAPPED_HERE
@pytest.mark.usefixtures("in_a_folder_of_its_own")
def test_a_row_is_counted_beside_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """One tile of rows, 128 panels of 32 outputs, 128 steps: a block of 1 x 2 loads three tiles for two products."""
    before = optimized.selected_tier()
    assert main(["bench", "packed_linear", "--tiles", "--row", "16 x 4096 x 4096", "--json", "found.json"]) == 0
    assert optimized.selected_tier() == before
    assert "products 32,768; least 32,768; least / products 1;" in capsys.readouterr().out
    counts = json.loads(Path("found.json").read_text())["counts"][0]["counts"]
    assert (counts["products"], counts["loads"], counts["stores"]) == (128 * 128 * 2, 128 * 128 * 3, 128 * 2)
    assert counts["loads a product"] == 1.5


@TRAPPED_HERE
def test_the_chunk_rule_executes_little_more_than_its_form_needs() -> None:
    """For a chunk of 64 tokens 48 products of keys a value head, and 120 for each of its four strips of values."""
    done = in_new_process(
        "from optimized import trapped; trapped.trap_tiles()\n"
        "import optimized\n"
        "from properties.chunk_gated_delta_rule import PAIR\n"
        "from properties.chunk_gated_delta_rule.bench import _bench_inputs, _blocked\n"
        "from properties.tile_counts import PRODUCT_OPERATIONS\n"
        f"optimized.set_tier('{AMX.name}'); given = _bench_inputs((64,)); trapped.reset(); PAIR.optimized(**given)\n"
        "print(trapped.totals()['products'], _blocked((64,)) / PRODUCT_OPERATIONS)"
    )
    assert done.returncode == 0, done.stderr
    products, least = map(float, done.stdout.split())
    assert products == 32 * (48 + 4 * 120)
    assert 0.85 < least / products < 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--against", "torch"), "--against"), (("--tier", "scalar"), "--tier"), (("--one-thread",), "--one-thread")],
)
def test_counting_goes_with_no_timing(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "store_cache", "--tiles", *arguments]) == 2
    assert f"--tiles counts and times nothing: {says} does not go with it" in capsys.readouterr().err
