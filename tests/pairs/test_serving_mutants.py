"""The serving trial notices bugs that lie between right kernels, and makes the run small that shows them."""

from pathlib import Path

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.mutation.candidate import planted
from kernelpair.mutation.mutant import mutants
from kernelpair.pytest_plugin import profile_name
from kernelpair.search.search import Search
from properties.suite import SUITE

CASES = 2000
CATALOGUE = {  # line -> the bugs that it names, each planted in a backend, in its metadata, or in the core of a gdn layer
    55: ("gdn_attention_core/offsets-not-rebased", "gdn_attention_core/slice-shifted", "gdn_attention_core/flags-shifted"),
    56: ("gdn_attention_core/dirty-slot", "gdn_attention_core/dirty-conv-slot", "gdn_attention_core/final-not-stored"),
    62: ("attention_metadata/one-encoder-length", "attention_metadata/encoder-table-in-tokens"),
    63: ("attention_metadata/draft-offset", "attention_metadata/verify-cu-k", "attention_metadata/cu-aliased"),
    64: ("attention_metadata/replay-rebinds", "attention_metadata/stale-columns", "attention_metadata/modes-share",
         "attention_metadata/table-divided"),
    65: ("serving/location-swapped", "serving/stored-without-keys", "serving/stored-unasked", "serving/window-without-own-key"),
    66: ("linear_modules/bias-uninitialised", "linear_modules/workspace-shrinks", "linear_modules/norm-packed-as-conv"),
}  # fmt: skip
ALL = [name for name in mutants(SUITE) if name.startswith("serving/")]
TRIED = ALL if profile_name() == "nightly" else ["serving/padded-rows-stored", "serving/latent-part-only"]  # a minute each


def test_there_are_bugs_of_every_part() -> None:
    known = mutants(SUITE)
    for line, names in CATALOGUE.items():
        assert {known[name].line for name in names} == {line}
    between = [name for name in ALL if known[name].line is None]
    assert len(between) >= 12, between


@pytest.mark.parametrize("name", TRIED)
def test_a_planted_bug_is_caught_and_made_small(name: str, tmp_path: Path) -> None:
    subject = Subject(SUITE.pairs()["serving"], planted(SUITE, mutants(SUITE)[name], tmp_path / "planted"))
    pair, candidate = subject.pair, subject.candidate
    with Isolated(candidate, preload=("torch",)) as runner:
        tally = Search(subject, runner).run(CASES, None, 5, None)
    assert tally.failures, f"{name} passed {tally.cases} runs"
    case = min((verdict.case for verdict in tally.failures.values()), key=lambda case: len(case.steps))
    assert set(pair.cases.sizes) == {"requests", "steps"}
    for name, (most, measured) in pair.cases.sizes.items():
        assert measured(case) <= most, f"{measured(case)} {name}: {case}"
