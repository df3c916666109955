"""pytest: options --tier and --examples, profiles dev, ci and nightly, the seed, and in every failure what repeats it.

Hypothesis's own options work for pairs as for any other test: --hypothesis-profile, -seed, -verbosity, -show-statistics.

A test that takes the fixture `kernelpair_trial` runs once for each pair and candidate of the suite, and for each reference. The
suite is found from pytest's root folder as the command line finds it:

    def test_pair(kernelpair_trial):
        kernelpair_trial()
"""

import argparse
import os
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import InvalidArgument

from kernelpair.call.runner import Isolated
from kernelpair.contract.case import Case
from kernelpair.contract.subject import Subject
from kernelpair.environment import cpu_model
from kernelpair.names import unknown
from kernelpair.report.lines import FailureReport, failures_of, shown
from kernelpair.search.hypothesis_internals import described
from kernelpair.search.jobs import EXAMPLES, STATE, saved_case
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.sources import BuildError
from kernelpair.suite import REFERENCE, Suite, SuiteError, find, loaded, obstacle, run_as, saved_lines
from kernelpair.trial.check import Journal
from kernelpair.trial.purity import SWITCH
from kernelpair.trial.truths import Truths

BROKEN = "broken"  # the one test of a pair that cannot be imported
PROFILES = {"dev": 50, "ci": 100, "nightly": 5000}  # cases for each pair and tier
PROFILE = "KERNELPAIR_PROFILE"
SEED_PROPERTY = "kernelpair_seed"  # in reports, and on the way to xdist's workers
SEED = pytest.StashKey[int]()
TRUTHS = pytest.StashKey[Truths]()
_registered: dict[str, settings] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `kernelpair check` that make sense here. Our profiles are there before any conftest.py has its own."""
    _register(Path.cwd())
    settings.load_profile("ci" if os.environ.get("CI") else "dev")
    group = parser.getgroup("kernelpair")
    group.addoption("--tier", action="append", default=[], help="put only this tier on trial (may be repeated)")
    group.addoption("--examples", type=_count, help="cases for each pair and tier (else the profile's max_examples)")
    group.addoption("--kernelpair-suite", default=None, metavar="MODULE[:ATTRIBUTE]", help="the pairs to put on trial")
    group.addoption("--kernelpair-seed", type=int, default=None, help="of pairs alone; else --hypothesis-seed is theirs too")


def _count(text: str) -> int:
    """Of cases: none would prove nothing, and pass."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text}")
    return int(text)


def _register(folder: Path) -> None:
    """Our Hypothesis profiles, each unless the user has one of that name, with the example database in a folder. With CI set,
    Hypothesis's own profile would switch exploration and the database off."""
    for name, examples in PROFILES.items():
        if name in _registered and settings.get_profile(name) is not _registered[name]:
            continue
        database = DirectoryBasedExampleDatabase(folder / ".hypothesis" / "examples")
        settings.register_profile(name, max_examples=examples, deadline=None, derandomize=False, database=database)
        _registered[name] = settings.get_profile(name)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis's own plug-in, which loads the profile that is asked for
def pytest_configure(config: pytest.Config) -> None:
    """Load the profile that is asked for, and choose the run's seed."""
    current = settings.get_current_profile_name()
    is_ours = settings.get_profile(current) is _registered.get(current)
    _register(config.rootpath)
    wanted = config.getoption("--hypothesis-profile", None) or os.environ.get(PROFILE) or (current if is_ours else None)
    if wanted:
        try:
            settings.load_profile(wanted)
        except InvalidArgument:
            known = f"{', '.join(PROFILES)}, default and those that a conftest.py registers"
            raise pytest.UsageError(f"there is no Hypothesis profile {wanted!r}; known are {known}") from None
    config.stash[SEED] = _choose_seed(config)
    if not hasattr(config, "workerinput"):  # the processes of xdist find the kernels built
        _bring_up_to_date(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: all workers have the seed of the process that leads them."""
    node.workerinput[SEED_PROPERTY] = seed_of(node.config)


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
    """The Hypothesis profile of this run, whatever verbosity was added to it."""
    return (settings.get_current_profile_name() or "default").partition("-with-")[0]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """CPU, tiers, profile, seed."""
    try:
        runnable = " ".join(shown(tier.name, run_as(tier)) for tier in suite_of(config).tiers() if not obstacle(tier))
    except SuiteError as error:
        runnable = f"unknown: {error}"
    tiers = f"tiers {runnable}; " if runnable else ""
    return [f"kernelpair: {cpu_model()}; {tiers}profile {profile_name()}, seed {seed_of(config)}"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The seed, where a pair was put on trial: the header is not there with -q, and is far away otherwise."""
    reports = (report for several in terminalreporter.stats.values() for report in several)
    if any(SEED_PROPERTY in dict(getattr(report, "user_properties", ())) for report in reports):
        seed = seed_of(config)
        terminalreporter.write_line(f"kernelpair: seed {seed}; --hypothesis-seed {seed} draws the same cases")


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
    _skip_unless_wanted(request.config, suite, name, {candidate.name for candidate in candidates})

    def trial() -> Tally:
        saved = [saved_case(pair, each) for each in saved_lines(suite, pair_name)]
        tally = hold_trial(request.node, Subject(pair, candidate), suite.preload, saved)
        assert tally.cases > 0, "nothing was tested"
        return tally

    return trial


def _skip_unless_wanted(config: pytest.Config, suite: Suite, name: str, own: Set[str]) -> None:
    """Skip what was not asked for, and a tier that cannot run here; fail where just that one was asked for. What is no tier is
    asked for unless another candidate of the pair is (`own`)."""
    tiers = {tier.name: tier for tier in suite.tiers()}
    wanted = config.getoption("--tier") or [tier for tier in [os.environ.get("KERNELPAIR_TIER")] if tier]
    for tier in wanted:
        if tier not in (*tiers, *own):
            others = {candidate.name for pair in loaded(suite)[0].values() for candidate in suite.candidates(pair)}
            if tier not in others:
                pytest.fail(unknown("tier", tier, tiers or sorted(others)), pytrace=False)
    if wanted and name not in wanted and (name in tiers or name == REFERENCE or not own.isdisjoint(wanted)):
        pytest.skip(f"only {', '.join(wanted)} asked for")
    if name in tiers and obstacle(tiers[name]):
        if name in wanted:
            pytest.fail(f"tier {name} cannot run here: {tiers[name].reason}", pytrace=False)
        pytest.skip(tiers[name].reason)


def _choose_seed(config: pytest.Config) -> int:
    """By option, by environment, 0 where the profile says derandomize, or a new one."""
    shared = getattr(config, "workerinput", {}).get(SEED_PROPERTY)
    if shared is not None:
        return int(shared)
    chosen = config.getoption("--kernelpair-seed")
    for text in (chosen, config.getoption("--hypothesis-seed", None), os.environ.get("KERNELPAIR_SEED")):
        if text is not None:
            return int(text) if str(text).isdecimal() else zlib.crc32(str(text).encode())  # Hypothesis takes any text
    return 0 if settings().derandomize else int.from_bytes(os.urandom(3), "big")


def seed_of(config: pytest.Config) -> int:
    """The run's seed, the same in all of its processes."""
    return config.stash[SEED]


def examples_of(config: pytest.Config) -> int:
    """Cases for each pair and tier."""
    chosen = config.getoption("--examples")
    return int(chosen) if chosen is not None else settings().max_examples


def database_of(config: pytest.Config) -> Path | None:
    """The folder of failing examples, wherever pytest was started; None where the profile wants no database."""
    if settings().database is None:
        return None
    elsewhere = os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY")
    return Path(elsewhere) / EXAMPLES.name if elsewhere else config.rootpath / EXAMPLES


def hold_trial(item: pytest.Item, subject: Subject, preload: Sequence[str], corpus: Sequence[Case]) -> Tally:
    """Put a subject on trial inside a test; fails the test with one line a failure and the command that replays it."""
    import torch

    torch.set_num_threads(1)
    config = item.config
    statistics: list[str] = []
    item.user_properties.append((SEED_PROPERTY, seed_of(config)))
    journal = Journal(STATE / f"running-pytest-{os.getpid()}.json")
    try:
        with Isolated(subject.candidate, preload=preload) as runner, described(statistics.append):
            search = Search(subject, runner, journal=journal, truths=config.stash.setdefault(TRUTHS, Truths()))
            search.replay(corpus)
            tally = search.run(examples_of(config), None, seed_of(config), database_of(config))
    finally:
        journal.close()
        journal.path.unlink(missing_ok=True)
        if statistics:
            item.hypothesis_statistics = f"{item.nodeid}:\n\n" + "\n\n".join(statistics)  # type: ignore[attr-defined]
    if not tally.passed:
        suite = config.getoption("--kernelpair-suite")
        pytest.fail("\n".join([*_lines(subject, tally, suite), f"  {_again(item)}"]), pytrace=False)
    return tally


def _again(item: pytest.Item) -> str:
    """The command that runs this one trial as it ran now, from pytest's root folder."""
    config = item.config
    words = ["pytest", item.nodeid, "--hypothesis-seed", str(seed_of(config)), "--examples", str(examples_of(config))]
    suite = config.getoption("--kernelpair-suite")
    return shlex.join([*words, *(["--kernelpair-suite", suite] if suite else [])])


def _lines(subject: Subject, tally: Tally, suite: str | None) -> Iterator[str]:
    pair, candidate = subject.pair, subject.candidate
    for verdict in tally.failures.values():
        yield f"Falsifying example: {verdict.case!r}"
        reports: list[FailureReport] = failures_of(verdict, candidate.name, suite=suite)
        yield from (f"{pair.name}[{candidate.name}] {report.kind}: {report.detail}" for report in reports)
        yield f"  {reports[0].replay}"
    yield from (f"{pair.name}[{candidate.name}] {failure}" for failure in tally.vacuous)
