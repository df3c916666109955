"""Kernels in plain torch are right, and nothing is said against them; of our own more is asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import properties
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import WRONG_CALLS, Subject
from kernelpair.providers.provider import provider
from kernelpair.search.search import Search
from kernelpair.trial.check import check, read_case
from properties.rms_norm.cases import NormCase
from tests.command_line import kernelpair
from tests.outside.plain_attention import decode_attention
from tests.outside.plain_torch import packed_linear

KERNELS = [str(Path(__file__).with_name(f"plain_{name}.py")) for name in ("torch", "attention", "recurrence")]


@pytest.mark.parametrize(("kernels", "pair"), [(file, pair) for file in KERNELS for pair in sorted(provider(file).adapters)])
def test_nothing_is_said_against_them(kernels: str, pair: str) -> None:
    assert kernelpair("check", pair, "--provider", kernels, "--examples", "150") == 0


def gated(case: NormCase) -> NormCase:
    return replace(case, form="gate", exact=-1, in_place=False)


@pytest.mark.parametrize("foreign", [False, True])
def test_the_bits_of_rows_beside_others_are_owed_by_our_own_kernels_alone(foreign: bool) -> None:
    kernel = Candidate("theirs", "tests.outside.plain_torch:rms_norm")
    limits = {"gated alone": lambda case: case.form != "gate" or case.in_place}
    on_trial = Subject(properties.pairs()["rms_norm"], kernel, limits, gated, foreign=foreign)
    with InProcess(kernel) as runner:
        tally = Search(on_trial, runner, trial="rows").run(300, 30.0, 1, None)
    kinds = {failure.kind for verdict in tally.failures.values() for failure in verdict.failures}
    assert tally.passed is foreign and kinds == (set() if foreign else {"relation"})


def aligned(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """A product of other last bits where x begins within a cache line, as of sums that begin with whole vectors."""
    out = packed_linear(x, packed_weight, N, K, bias)
    return out if x.data_ptr() % 64 == 0 else out * (1 + 2.0**-22)


@pytest.mark.parametrize("foreign", [False, True])
def test_the_bits_at_another_alignment_are_owed_by_our_own_kernels_alone(foreign: bool) -> None:
    kernel = Candidate("theirs", f"{__name__}:aligned")
    limits = {"long sums alone": lambda case: case.values != "uniform" or case.K < 64 or case.dtype != "float32"}
    on_trial = Subject(
        properties.pairs()["packed_linear"], kernel, limits,
        lambda case: replace(case, values="uniform", K=64 + case.K % 64, dtype="float32"), foreign=foreign,
    )  # fmt: skip
    with InProcess(kernel) as runner:
        tally = Search(on_trial, runner, trial="poison").run(100, 30.0, 1, None)
    kinds = {failure.kind for verdict in tally.failures.values() for failure in verdict.failures}
    assert tally.passed is foreign and kinds == (set() if foreign else {"nondeterministic"})


def one_key_more(sliding_window: int, **given: Any) -> None:
    """It reads an entry of the table that its window leaves out."""
    decode_attention.call(**given, sliding_window=sliding_window + 1)


def test_of_an_index_that_is_none_it_is_said_where_it_stands() -> None:
    kernel = Candidate("theirs", f"{__name__}:one_key_more")
    pair, case = read_case(properties.pairs(), '{"pair":"decode_attention","v":1,"lens":[2],"window":1}')
    with InProcess(kernel) as runner:
        (failure,) = check(Subject(pair, kernel, foreign=True), case, runner).failures
    assert failure.kind == "exception" and "req_to_token[0, 0] holds that number" in failure.detail


@pytest.mark.parametrize("foreign", [False, True])
def test_a_mean_that_is_divided_last_is_owed_by_our_own_kernels_alone(foreign: bool) -> None:
    kernel = Candidate("theirs", "tests.outside.plain_attention:flash_attn_varlen")
    limits = {"equal scores alone": lambda case: case.values != "equal"}
    pair = properties.pairs()["flash_attn_varlen"]
    on_trial = Subject(pair, kernel, limits, skipped_trials=(WRONG_CALLS, "fuzz"), foreign=foreign)
    with InProcess(kernel) as runner:
        tally = Search(on_trial, runner).run(150, 30.0, 1, None)
    kinds = {failure.kind for verdict in tally.failures.values() for failure in verdict.failures}
    assert tally.passed is foreign and kinds == (set() if foreign else {"value"})
