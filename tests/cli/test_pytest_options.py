"""Pairs under pytest: Hypothesis's own options, the seed, and what a failure prints, each as a user sees it on a terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = f"""
from dataclasses import replace
from pathlib import Path
from kernelpair.suite import PlainSuite
from tests.kernels import kernel
from tests.selftest.toy import PAIR

PAIR = replace(PAIR, tiers="python")
named = {{"toy": [replace(kernel(name), name=name, ran="") for name in ("good", "off_from_three_rows")]}}
SUITE = PlainSuite(Path({str(ROOT)!r}), [PAIR], named)
"""
TEST = "def test_pair(kernelpair_trial):\n    kernelpair_trial()\n"
GOOD, BAD = "test_toy.py::test_pair[toy-good]", "test_toy.py::test_pair[toy-off_from_three_rows]"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's repository: a good kernel, and one that fails from three rows on."""
    (tmp_path / "kernelpair_suite.py").write_text(SUITE)
    (tmp_path / "test_toy.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p kernelpair.pytest_plugin -p no:cacheprovider\n")
    (tmp_path / "sub").mkdir()
    return tmp_path


def passing(said: str) -> int:
    """The cases that passed, over the phases of Hypothesis's statistics: a run's opening cases have statistics of their own."""
    assert "during generate phase" in said, said
    return sum(map(int, re.findall(r"- (\d+) passing", said)))


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit status, and what is on the terminal."""
    left_out = ("KERNELPAIR_", "PYTEST_", "CI", "HYPOTHESIS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**kept, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def replayed(said: str) -> str:
    """The shrunk case that a failure prints."""
    return next(line for line in said.splitlines() if line.strip().startswith("kernelpair replay"))


def test_seed_and_statistics_and_profile(project: Path) -> None:
    options = ("--hypothesis-profile", "ci", "--hypothesis-seed", "7", "--hypothesis-show-statistics")
    status, said = run(project, GOOD, *options)
    assert status == 0, said
    assert "kernelpair: seed 7; --hypothesis-seed 7 draws the same cases" in said  # with -q too
    assert f"{GOOD}:" in said and passing(said) == 100, said
    assert run(project, GOOD, "--kernelpair-seed", "8", *options)[1].count("kernelpair: seed 8;") == 1


def test_verbosity(project: Path) -> None:
    assert "ToyCase(" not in run(project, GOOD, "--examples", "3", "-s")[1]
    status, said = run(project, GOOD, "--examples", "3", "-s", "--hypothesis-verbosity", "verbose")
    assert status == 0 and said.count("ToyCase(") >= 3, said


@pytest.mark.parametrize("given", ["--hypothesis-profile=nowhere", ""])
def test_an_unknown_profile_is_a_usage_error(project: Path, given: str) -> None:
    arguments, environment = ([given], {}) if given else ([], {"KERNELPAIR_PROFILE": "nowhere"})
    status, said = run(project, GOOD, *arguments, **environment)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "there is no Hypothesis profile 'nowhere'; known are dev, ci, nightly" in said and "INTERNALERROR" not in said


@pytest.mark.parametrize("given", ["0", "-3", "many"])
def test_a_run_of_no_cases_is_a_usage_error(project: Path, given: str) -> None:
    status, said = run(project, GOOD, f"--examples={given}")
    assert status == pytest.ExitCode.USAGE_ERROR and f"must be a whole number, 1 or more, got {given}" in said, said


def test_a_profile_of_the_user_is_theirs(project: Path) -> None:
    ours = 'from hypothesis import settings\nsettings.register_profile("ci", max_examples=7, database=None)\n'
    (project / "conftest.py").write_text(ours + 'settings.load_profile("ci")\n')
    said = run(project, GOOD, "--hypothesis-show-statistics")[1]
    assert passing(said) == 7, said
    said = run(project, GOOD, "--hypothesis-show-statistics", "--hypothesis-profile", "dev")[1]
    assert passing(said) == 50, said
    (project / "conftest.py").write_text('from hypothesis import settings\nsettings.register_profile("calm", derandomize=True)\n')
    assert "kernelpair: seed 0;" in run(project, GOOD, "--hypothesis-profile", "calm", "--examples", "2")[1]


def test_a_failure_prints_what_reproduces_it_alone(project: Path) -> None:
    status, said = run(project)
    assert status == 1 and "1 failed, 2 passed" in said
    seed = re.search(r"kernelpair: seed (\d+);", said)
    again = re.search(r"pytest '(.*)' --hypothesis-seed (\d+) --examples 50$", said, re.MULTILINE)
    assert seed is not None and again is not None and again.group(1) == BAD and again.group(2) == seed.group(1)
    (project / ".hypothesis").rename(project / "forgotten")
    status, alone = run(project, again.group(1), "--hypothesis-seed", again.group(2), "--examples", "50")
    assert status == 1 and replayed(alone) == replayed(said)


def test_one_seed_for_all_workers(project: Path) -> None:
    pytest.importorskip("xdist")
    (project / "test_seed.py").write_text(
        "import pytest\nfrom kernelpair.pytest_plugin import seed_of\n"
        "@pytest.mark.parametrize('n', range(4))\n"
        "def test_seed(n, request, worker_id):\n    print('SEED', worker_id, seed_of(request.config))\n"
    )
    status, said = run(project, "test_seed.py", GOOD, "-n", "2", "-rP", "--examples", "2")
    seeds = dict(re.findall(r"SEED (gw\d) (\d+)", said))
    shown = re.search(r"kernelpair: seed (\d+);", said)
    assert status == 0 and shown is not None, said
    assert set(seeds) == {"gw0", "gw1"} and set(seeds.values()) == {shown.group(1)}


def test_the_database_is_that_of_the_project_wherever_pytest_starts(project: Path) -> None:
    assert run(project / "sub", f"../{BAD}", "--kernelpair-seed", "3")[0] == 1
    assert not (project / "sub" / ".hypothesis").exists()
    assert len(list((project / ".hypothesis" / "kernelpair").iterdir())) == 1
    failing = run(project, BAD, "--kernelpair-seed", "4", "--hypothesis-show-statistics", "--examples", "1")[1]
    assert "during reuse phase" in failing, failing


def test_a_tier_that_nobody_has_fails_by_name_also_where_the_suite_has_no_tiers(project: Path) -> None:
    status, said = run(project, GOOD, "--examples", "3", "--tier", "typo")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "unknown tier 'typo'; known are good, off_from_three_rows" in said
    assert "unknown tier 'goood' (did you mean good?)" in run(project, GOOD, "--examples", "3", KERNELPAIR_TIER="goood")[1]


def test_a_candidate_that_is_no_tier_may_be_asked_for(project: Path) -> None:
    status, said = run(project, "--examples", "3", "--tier", "good")
    assert status == 0 and "1 passed, 2 skipped" in said, said  # not the other candidate, and not the reference
