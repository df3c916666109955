"""Each internal of Hypothesis that the search replaces: that it is there, does what the search thinks, and is still needed."""

import inspect
import sys
import types
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine, providers

from kernelpair.search import hypothesis_internals
from kernelpair.search.hypothesis_internals import described, draws_of_the_seed

ODD = 6_700_417  # of a local module, and of nothing else
WIDE = st.integers(-(10**9), 10**9)


def drawn(strategy: Any, cases: int = 300, seed: int = 7) -> list[Any]:
    """The cases that a seed draws, in order."""
    found: list[Any] = []

    @settings(max_examples=cases, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @hypothesis.seed(seed)
    @given(strategy)
    def attempt(case: Any) -> None:
        found.append(case)

    attempt()
    return found


@pytest.fixture
def local_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own that names an odd number, imported; the only one whose constants Hypothesis has yet to read."""
    path = tmp_path / "odd_module.py"
    path.write_text(f"LIMIT = {ODD}\n")
    module = types.ModuleType("odd_module")
    module.__file__ = str(path)
    seen = {id(known) for known in list(sys.modules.values())}
    monkeypatch.setitem(sys.modules, "odd_module", module)
    # Hypothesis looks for new modules by their number, and keeps what it has seen by identity. Those of other tests count as
    # seen: among thousands of their constants this one would seldom be drawn.
    monkeypatch.setattr(providers, "_sys_modules_len", None)
    monkeypatch.setattr(providers, "_seen_modules", seen)
    monkeypatch.setattr(providers, "_local_constants", providers.Constants())
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(1024))


@pytest.mark.usefixtures("local_module")
def test_constants_of_local_modules_are_drawn_outside_of_the_block_and_not_within() -> None:
    draws = st.lists(WIDE, min_size=40, max_size=40)
    with draws_of_the_seed():
        assert not any(ODD in case for case in drawn(draws))
    assert any(ODD in case for case in drawn(draws)), "Hypothesis draws no constants of local modules: replace nothing"
    with draws_of_the_seed():
        assert not any(ODD in case for case in drawn(draws)), "the pool of the draws before is still in use"


def test_what_is_replaced_has_the_shape_that_the_search_thinks() -> None:
    assert inspect.signature(providers._get_local_constants).parameters == {}
    assert list(inspect.signature(engine.ConjectureRunner.generate_mutations_from).parameters) == ["self", "data"]
    assert "_get_local_constants()" in inspect.getsource(providers.HypothesisProvider)
    assert "CONSTANTS_CACHE[" in inspect.getsource(providers.HypothesisProvider)
    assert "self.generate_mutations_from(" in inspect.getsource(engine.ConjectureRunner)
    assert list(inspect.signature(engine.ConjectureRunner.reuse_existing_test_cases).parameters) == ["self"]
    assert "if self.reused_previously_shrunk_test_case:" in inspect.getsource(engine.ConjectureRunner._run)
    empty = hypothesis_internals._no_constants()
    assert type(empty) is type(providers._local_constants) and len(empty) == 0


def test_nothing_stays_replaced() -> None:
    names = [(engine.ConjectureRunner, "generate_mutations_from"), (providers, "_get_local_constants")]
    names.append((engine.ConjectureRunner, "reuse_existing_test_cases"))
    names.append((providers, "CONSTANTS_CACHE"))
    before = [getattr(*each) for each in names]
    with draws_of_the_seed():
        assert all(getattr(*each) is not known for each, known in zip(names, before))
    assert all(getattr(*each) is known for each, known in zip(names, before))


def repeats(cases: list[tuple[int, ...]]) -> int:
    """Cases that hold the same large number twice: the work of a mutation, for no two draws are equal by chance."""
    return sum(len({n for n in case if abs(n) > 10**6}) < sum(abs(n) > 10**6 for n in case) for case in cases)


def test_mutations_copy_parts_of_cases_outside_of_the_block_and_not_within() -> None:
    draws = st.tuples(*[st.integers(0, 2**64) for _ in range(6)])
    with draws_of_the_seed():
        within = repeats(drawn(draws, 500))
    outside = repeats(drawn(draws, 500))
    # A few of the constants that every Hypothesis knows are large and come up twice.
    assert outside > 5 * max(within, 1), f"{outside} repeats outside and {within} within: Hypothesis mutates no more"


def test_an_internal_that_is_gone_is_told_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(engine.ConjectureRunner, "generate_mutations_from")
    says = "has no ConjectureRunner.generate_mutations_from: a seed may draw other cases"
    with pytest.warns(UserWarning, match=says), draws_of_the_seed():
        pass


def test_every_internal_is_there() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with draws_of_the_seed():
            assert drawn(st.booleans(), 5)


@pytest.mark.parametrize("block", [nullcontext, draws_of_the_seed])
def test_statistics_are_described_as_the_plugin_prints_them(block: Any) -> None:
    notes: list[str] = []
    with described(notes.append), block():
        drawn(WIDE, 20)
    assert len(notes) == 1
    assert "during generate phase" in notes[0] and "20 passing, 0 failing" in notes[0]
    assert "Stopped because settings.max_examples=20" in notes[0]
