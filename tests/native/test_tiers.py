"""Tiers: an impossible one is an error, the chosen one runs, and the library says which one ran."""

import os
import re
import subprocess
import sys

import pytest
import torch

import optimized
import properties

RUNNABLE = [tier for tier in optimized.tiers() if tier.runnable]
MISSING = [tier for tier in optimized.tiers() if not tier.runnable]
EMULATED = {tier.name for tier in optimized.tiers() if tier.emulated}
ROOT = properties.ROOT


def store_one() -> None:
    row, cache = torch.ones(1, 1, 4), torch.zeros(2, 1, 4)
    optimized.operator("store_cache")(row, row, cache, cache.clone(), torch.tensor([1]))


def in_new_process(program: str, tier: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELPAIR_TIER": tier}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_names() -> None:
    names = re.findall(r"^kp_tier\((\w+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert [tier.name for tier in optimized.tiers()] == names
    assert names[0] == "scalar" and len(EMULATED) == 1 and {"scalar", *EMULATED} <= {tier.name for tier in RUNNABLE}


def test_what_does_not_run_says_why() -> None:
    assert all(bool(tier.reason) != tier.runnable for tier in optimized.tiers())
    assert all(tier.compiled or "not compiled" in tier.reason for tier in optimized.tiers())


@pytest.mark.parametrize("tier", RUNNABLE, ids=str)
def test_the_chosen_tier_runs(tier: optimized.Tier) -> None:
    before = optimized.selected_tier()
    with optimized.use_tier(tier.name):
        optimized.forget_last_tier()
        assert optimized.last_tier() is None
        store_one()
        assert optimized.last_tier() == tier.name == optimized.selected_tier()
    assert optimized.selected_tier() == before


def test_an_unknown_tier_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=f"no tier 'neon'; the tiers are {', '.join(map(str, optimized.tiers()))}"):
        optimized.set_tier("neon")


@pytest.mark.parametrize("tier", MISSING, ids=str)
def test_a_tier_that_cannot_run_is_refused_with_the_reason(tier: optimized.Tier) -> None:
    with pytest.raises(ValueError, match=re.escape(f"tier '{tier.name}' cannot run here: {tier.reason}")):
        optimized.set_tier(tier.name)


def test_an_error_leaves_the_choice_alone() -> None:
    with optimized.use_tier("scalar"):
        with pytest.raises(ValueError):
            optimized.set_tier("nonsense")
        assert optimized.selected_tier() == "scalar"


def test_the_environment_forces_a_tier() -> None:
    done = in_new_process("import optimized; print(optimized.selected_tier())", "scalar")
    assert (done.returncode, done.stdout.strip()) == (0, "scalar"), done.stderr


def test_without_being_asked_the_best_tier_runs() -> None:
    done = in_new_process("import optimized; print(optimized.selected_tier())", "")
    assert (done.returncode, done.stdout.strip()) == (0, optimized.best_tier()), done.stderr
    assert optimized.best_tier() in {tier.name for tier in RUNNABLE} - EMULATED


def test_dot_products_are_preferred_where_they_were_measured_to_be_faster() -> None:
    rate, runs = optimized.build()["dot_rate"], {tier.name for tier in RUNNABLE}
    if "avx512_bf16" not in runs:
        assert rate == 0 and optimized.best_tier() != "avx512_bf16"
        return
    assert 0.1 < rate < 10  # of two instructions that both exist
    if "amx" not in runs:
        assert optimized.best_tier() == ("avx512_bf16" if rate > 1 else "avx512_vnni")
        assert optimized.best_tier(products=False) == "avx512_bf16"


def test_unasked_each_kernel_takes_the_tier_that_is_best_for_its_work() -> None:
    program = """
import torch, optimized
from optimized.fused_moe import PackedFp8Experts, fused_moe
for asked in ("", "scalar", ""):
    optimized.set_tier(asked)
    with optimized.use_tier("scalar"):
        pass
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    optimized.operator("act_and_mul")(x, "silu")
    print(optimized.last_tier(), end=" ")
    optimized.operator("packed_linear")(x, optimized.operator("pack_linear_weight")(x), 2, 64)
    print(optimized.last_tier(), end=" ")
    weight = torch.ones(2, 64, dtype=torch.float8_e4m3fn)
    packed, scales = torch.ops.kernelpair.pack_fp8_weight(weight, torch.ones(1, 1), 2, 64)
    for rows in (3, 4):
        x = torch.ones(rows, 64, dtype=torch.bfloat16)
        torch.ops.kernelpair.fp8_linear(x, packed, scales, 2, 64, 2, 64)
        print(optimized.last_tier(), end=" ")
    up, down = torch.ones(2, 128, 64), torch.ones(2, 64, 64)
    experts = [PackedFp8Experts.pack(w.to(weight.dtype), torch.ones(2, 1, 1), w.shape[1:]) for w in (up, down)]
    for rows in (7, 8):  # of both experts together
        ids = torch.zeros(rows, 1, dtype=torch.int32)
        fused_moe(torch.ones(rows, 64, dtype=torch.bfloat16), *experts, torch.ones(rows, 1), ids)
        print(optimized.last_tier(), end=" ")
"""
    done = in_new_process(program, "")
    usual = f"{optimized.best_tier(products=False)} {optimized.best_tier()} " * 3  # codes of a few rows, and of more
    assert (done.returncode, done.stdout) == (0, f"{usual}{'scalar ' * 6}{usual}"), done.stderr


def test_what_is_measured_prefers_the_same_tier_in_every_process() -> None:
    done = [in_new_process("import optimized; print(optimized.best_tier())", "") for _ in range(3)]
    assert {one.stdout.strip() for one in done} == {optimized.best_tier()}, done


@pytest.mark.parametrize("name", ["nonsense", *(tier.name for tier in MISSING)])
def test_the_environment_cannot_force_the_impossible(name: str) -> None:
    done = in_new_process("import optimized; optimized.operator('store_cache')", name)
    assert done.returncode != 0 and "ValueError: KERNELPAIR_TIER: " in done.stderr and name in done.stderr


def test_the_library_tells_how_it_was_built() -> None:
    build = optimized.build()
    assert build["compiler"] and build["build_type"] and "-mavx2" in optimized.tiers()[1].flags
