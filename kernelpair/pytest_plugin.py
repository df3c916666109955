"""pytest: options --tier and --examples, profiles dev, ci and nightly, a header, and a replay line in every failure."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from kernelpair.candidate import Candidate
from kernelpair.check import Journal
from kernelpair.drive import Drive
from kernelpair.environment import cpu_model
from kernelpair.jobs import EXAMPLES, STATE
from kernelpair.pair import Pair
from kernelpair.report import FailureReport, command_for_pytest, failures_of
from kernelpair.run import Isolated
from kernelpair.tally import Tally
from optimized import tiers

PROFILES = {"dev": 50, "ci": 100, "nightly": 5000}  # cases for each pair and tier


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `kernelpair check` that make sense here."""
    group = parser.getgroup("kernelpair")
    group.addoption("--tier", action="append", default=[], help="put only this tier on trial (may be repeated)")
    group.addoption("--examples", type=int, default=None, help="cases for each pair and tier (default: by profile)")
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
    torch.set_num_threads(1)


def profile_name() -> str:
    """KERNELPAIR_PROFILE, or ci where CI is set, or dev."""
    return os.environ.get("KERNELPAIR_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """CPU, tiers, profile, seed."""
    runnable = " ".join(tier.name for tier in tiers() if tier.runnable)
    return [f"kernelpair: {cpu_model()}; tiers {runnable}; profile {profile_name()}, seed {seed_of(config)}"]


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


def hold_trial(config: pytest.Config, pair: Pair, candidate: Candidate, preload: tuple[str, ...], corpus: list) -> Tally:  # type: ignore[type-arg]
    """Put a candidate on trial inside a test; fails the test with one line a failure and the command that replays it."""
    journal = Journal(STATE / f"running-pytest-{os.getpid()}.json")
    try:
        with Isolated(candidate, preload=preload) as runner:
            drive = Drive(pair, candidate, runner, journal=journal)
            drive.replay(corpus)
            tally = drive.run(
                examples_of(config), None, seed_of(config), Path(EXAMPLES) / f"{pair.name}-{candidate.name}"
            )
    finally:
        journal.close()
        journal.path.unlink(missing_ok=True)
    if not tally.passed:
        pytest.fail("\n".join(_lines(pair, candidate, tally)), pytrace=False)
    return tally


def _lines(pair: Pair, candidate: Candidate, tally: Tally) -> Iterator[str]:
    for verdict in tally.failures.values():
        yield f"Falsifying example: {verdict.case!r}"
        reports: list[FailureReport] = failures_of(verdict, candidate.name)
        yield from (f"{pair.name}[{candidate.name}] {report.kind}: {report.detail}" for report in reports)
        yield f"  {reports[0].replay}"
    yield from (f"{pair.name}[{candidate.name}] vacuous: {failure.tensor}: {failure.detail}" for failure in tally.vacuous)
    yield f"  {command_for_pytest(pair.name, candidate.name)}"
