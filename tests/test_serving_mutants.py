"""The serving trial notices bugs that lie between right kernels, and makes the run small that shows them."""

import pytest

from kernelpair.drive import Drive
from kernelpair.pytest_plugin import profile_name
from kernelpair.run import Isolated
from mutants import mutants
from mutants.candidate import resolve
from properties.trials._serving_plan import plan

CASES = 2000
REQUESTS, STEPS = 3, 8  # that a shrunk run has at most
ALL = [name for name in mutants() if name.startswith("serving/")]
TRIED = ALL if profile_name() == "nightly" else ["serving/padded-rows-stored", "serving/latent-part-only"]  # a minute each


def test_there_are_bugs_of_every_part() -> None:
    assert len(ALL) >= 24
    lines = {mutant.line for mutant in mutants().values() if mutant.pair in ("serving", "linear_modules")}
    assert lines >= {55, 56, 63, 64, 65, 66}


@pytest.mark.parametrize("name", TRIED)
def test_a_planted_bug_is_caught_and_made_small(name: str) -> None:
    pair, candidate = resolve("serving", name)
    with Isolated(candidate, preload=("torch",)) as runner:
        tally = Drive(pair, candidate, runner).run(CASES, None, 5, None)
    assert tally.failures, f"{name} passed {tally.cases} runs"
    case = min((verdict.case for verdict in tally.failures.values()), key=lambda case: len(case.steps))
    requests = {planned.arrives for planned in plan(case) if planned.arrives is not None}
    assert len(case.steps) <= STEPS and len(requests) <= REQUESTS, case
