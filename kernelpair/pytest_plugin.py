"""pytest: options --tier and --examples, profiles dev, ci and nightly, a header, and a replay line in every failure.

A test that takes the fixture `kernelpair_trial` runs once for each pair and candidate of the suite, and for each reference. The
suite is found from pytest's root folder as the command line finds it:

    def test_pair(kernelpair_trial):
        kernelpair_trial()
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from kernelpair.call.runner import Isolated
from kernelpair.contract.case import Case
from kernelpair.contract.subject import Subject
from kernelpair.environment import cpu_model
from kernelpair.names import unknown
from kernelpair.report.lines import FailureReport, command_for_pytest, failures_of
from kernelpair.search.jobs import EXAMPLES, STATE
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.sources import BuildError
from kernelpair.suite import REFERENCE, Suite, SuiteError, find, loaded, saved_lines
from kernelpair.trial.check import Journal, read_case
from kernelpair.trial.purity import SWITCH

BROKEN = "broken"  # the one test of a pair that cannot be imported
PROFILES = {"dev": 50, "ci": 100, "nightly": 5000}  # cases for each pair and tier


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `kernelpair check` that make sense here."""
    group = parser.getgroup("kernelpair")
    group.addoption("--tier", action="append", default=[], help="put only this tier on trial (may be repeated)")
    group.addoption("--examples", type=int, default=None, help="cases for each pair and tier (default: by profile)")
    group.addoption("--kernelpair-suite", default=None, metavar="MODULE[:ATTRIBUTE]", help="the pairs to put on trial")
    group.addoption("--kernelpair-seed", type=int, default=None, help="of the drawing of cases")


def pytest_configure(config: pytest.Config) -> None:
    """Load our Hypothesis profile; with CI set, Hypothesis's own would switch exploration and its database off."""
    for name, examples in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=examples,
            deadline=None,
            derandomize=False,
            database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        )
    settings.load_profile(profile_name())
    if not hasattr(config, "workerinput"):  # the processes of xdist find the kernels built
        _bring_up_to_date(config)


def _bring_up_to_date(config: pytest.Config) -> None:
    """Build what has changed, as the commands do; a project that has no suite has nothing to build."""
    try:
        suite = suite_of(config)
    except SuiteError:
        return  # the header says why, and a test that needs a suite fails
    try:
        suite.sources.bring_up_to_date(suite.root)
    except BuildError as error:
        raise pytest.UsageError(f"the kernels do not build: {error}") from None


def profile_name() -> str:
    """KERNELPAIR_PROFILE, or ci where CI is set, or dev."""
    return os.environ.get("KERNELPAIR_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """CPU, tiers, profile, seed."""
    try:
        runnable = " ".join(tier.name for tier in suite_of(config).tiers() if tier.runnable)
    except SuiteError as error:
        runnable = f"unknown: {error}"
    tiers = f"tiers {runnable}; " if runnable else ""
    return [f"kernelpair: {cpu_model()}; {tiers}profile {profile_name()}, seed {seed_of(config)}"]


def suite_of(config: pytest.Config) -> Suite:
    """The suite that is put on trial. Raises SuiteError."""
    return find(config.getoption("--kernelpair-suite"), config.rootpath).load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`kernelpair_trial` for each pair and candidate, with ids like `store_cache-avx512`."""
    if "kernelpair_trial" not in metafunc.fixturenames:
        return
    try:
        suite = suite_of(metafunc.config)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None
    pairs, broken = loaded(suite)
    names = [
        (name, candidate.name)
        for name, pair in pairs.items()
        for candidate in (*suite.candidates(pair), suite.reference(pair))
    ]
    names += [(name, BROKEN) for name in broken]
    metafunc.parametrize("kernelpair_trial", names, ids=[f"{pair}-{name}" for pair, name in names], indirect=True)


@pytest.fixture
def kernelpair_trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Tally]:
    """Puts one candidate on trial when it is called; fails the test for the first failure of each kind."""
    suite = suite_of(request.config)
    pair_name, name = request.param
    if name == BROKEN:
        pytest.fail(f"pair {pair_name} is broken: {loaded(suite, [pair_name])[1][pair_name]}", pytrace=False)
    pair = suite.pairs()[pair_name]
    candidates = (*suite.candidates(pair), suite.reference(pair))
    candidate = next(candidate for candidate in candidates if candidate.name == name)
    if name == REFERENCE:  # once a pair is enough: what judges is the same on every tier
        monkeypatch.setenv(SWITCH, "1")
    _skip_unless_wanted(request.config, suite, name)

    def trial() -> Tally:
        saved = [read_case(suite.pairs(), line)[1] for line in saved_lines(suite, pair_name)]
        tally = hold_trial(request.config, Subject(pair, candidate), suite.preload, saved, suite.test)
        assert tally.cases > 0, "nothing was tested"
        return tally

    return trial


def _skip_unless_wanted(config: pytest.Config, suite: Suite, name: str) -> None:
    """Skip what was not asked for, and a tier that cannot run here; fail where just that one was asked for."""
    tiers = {tier.name: tier for tier in suite.tiers()}
    wanted = config.getoption("--tier") or [tier for tier in [os.environ.get("KERNELPAIR_TIER")] if tier]
    for tier in wanted:
        if tier not in (*tiers, REFERENCE) and tiers:
            pytest.fail(unknown("tier", tier, tiers), pytrace=False)
    if wanted and name not in wanted and (name in tiers or name == REFERENCE):
        pytest.skip(f"only {', '.join(wanted)} asked for")
    if name in tiers and not tiers[name].runnable:
        if name in wanted:
            pytest.fail(f"tier {name} cannot run here: {tiers[name].reason}", pytrace=False)
        pytest.skip(tiers[name].reason)


def seed_of(config: pytest.Config) -> int:
    """The run's seed: the option, or one that all xdist workers of this run share."""
    chosen = config.getoption("--kernelpair-seed")
    if chosen is not None:
        return int(chosen)
    shared = os.environ.setdefault("KERNELPAIR_SEED", str(int.from_bytes(os.urandom(3), "big")))
    return int(shared)


def examples_of(config: pytest.Config) -> int:
    """Cases for each pair and tier."""
    chosen = config.getoption("--examples")
    return int(chosen) if chosen is not None else PROFILES[profile_name()]


def hold_trial(
    config: pytest.Config, subject: Subject, preload: Sequence[str], corpus: Sequence[Case], test: str = ""
) -> Tally:
    """Put a subject on trial inside a test; fails the test with one line a failure and the command that replays it."""
    import torch

    torch.set_num_threads(1)
    journal = Journal(STATE / f"running-pytest-{os.getpid()}.json")
    try:
        with Isolated(subject.candidate, preload=preload) as runner:
            search = Search(subject, runner, journal=journal)
            search.replay(corpus)
            tally = search.run(examples_of(config), None, seed_of(config), Path(EXAMPLES))
    finally:
        journal.close()
        journal.path.unlink(missing_ok=True)
    if not tally.passed:
        pytest.fail("\n".join(_lines(subject, tally, test)), pytrace=False)
    return tally


def _lines(subject: Subject, tally: Tally, test: str) -> Iterator[str]:
    pair, candidate = subject.pair, subject.candidate
    for verdict in tally.failures.values():
        yield f"Falsifying example: {verdict.case!r}"
        reports: list[FailureReport] = failures_of(verdict, candidate.name)
        yield from (f"{pair.name}[{candidate.name}] {report.kind}: {report.detail}" for report in reports)
        yield f"  {reports[0].replay}"
    yield from (f"{pair.name}[{candidate.name}] {failure}" for failure in tally.vacuous)
    command = command_for_pytest(test, pair.name, candidate.name)
    if command:
        yield f"  {command}"
