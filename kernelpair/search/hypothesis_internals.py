"""What the search needs of Hypothesis beyond its public interface, in this module alone.

Of each there is a test that fails when a new version changes it (`tests/engine/test_hypothesis_internals.py`). Where an internal
is gone, a run says so once and goes on without: cases are drawn, but a seed may draw others.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import hypothesis
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import engine, providers
from hypothesis.internal.constants_ast import Constants

CACHED_POOLS = 1024  # as many as Hypothesis keeps


def _draw_no_mutants(runner: Any, data: Any) -> None:
    """Instead of mutating what was drawn."""


def _reuse_and_shrink(runner: Any) -> None:
    """Instead of ending the run where every kept case fails."""
    _reuse(runner)
    runner.reused_previously_shrunk_test_case = False


_reuse = getattr(engine.ConjectureRunner, "reuse_existing_test_cases", lambda runner: None)


def _no_constants() -> Any:
    """Instead of the constants of every local module that happens to be imported."""
    return Constants()


@contextmanager
def draws_of_the_seed() -> Iterator[None]:
    """Within this block what is drawn depends on the seed and the strategy alone, and each case is drawn afresh.

    - No constants of local modules: one draw in twenty would come from a pool that grows with each import. Pools are cached by
      the range of the draw, so other tests of this process keep theirs apart.
    - No trust in what an earlier run has kept: a case that still fails is shrunk again. The time for shrinking may have been over
      then, and the kernel may fail in another way now.
    - No mutations: they follow each drawn case with five that keep nearly all of its choices. They serve code that is looked at
      in one place; here half of a pair's wrong calls would not come up in 2,000 cases.
    """
    with ExitStack() as stack:
        stack.enter_context(_replaced(engine.ConjectureRunner, "generate_mutations_from", _draw_no_mutants))
        stack.enter_context(_replaced(engine.ConjectureRunner, "reuse_existing_test_cases", _reuse_and_shrink))
        stack.enter_context(_replaced(providers, "_get_local_constants", _no_constants))
        stack.enter_context(_replaced(providers, "CONSTANTS_CACHE", LRUCache(CACHED_POOLS)))
        yield


@contextmanager
def _replaced(owner: Any, name: str, instead: Any) -> Iterator[None]:
    if not hasattr(owner, name):
        says = f"Hypothesis {hypothesis.__version__} has no {owner.__name__}.{name}: a seed may draw other cases than elsewhere"
        warnings.warn(says, stacklevel=4)
        yield
        return
    before = getattr(owner, name)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def described(note: Callable[[str], None]) -> Iterator[None]:
    """Within this block `note` gets, after each run of Hypothesis, what `--hypothesis-show-statistics` prints of it."""
    from hypothesis.statistics import collector, describe_statistics

    value: Any = collector  # typed as one that holds nothing
    with value.with_value(lambda statistics: note(describe_statistics(statistics))):
        yield
