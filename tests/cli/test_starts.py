"""A command begins what takes long before it needs it, and once."""

import subprocess
import sys

import pytest

from properties.suite import SUITE
from tests.command_line import COMMAND, ENVIRONMENT

SPIED = """
import sys
from kernelpair.call import fork_server
from kernelpair.cli.main import main

start = fork_server._start
def spied(preload):
    print("starts the server, with", *preload, flush=True)
    return start(preload)
fork_server._start = spied
status = main()
print("torch here:", "torch" in sys.modules)
sys.exit(status)
"""
LINE = '{"pair":"store_cache","v":1,"rows":2}'


def _replay(program: str, *more: str) -> subprocess.CompletedProcess[str]:
    return _run(program, "replay", LINE, "--tier", "scalar", *more)


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=SUITE.root, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [("replay", LINE), ("check", "store_cache", "--examples", "1")], ids=["replay", "check"])
def test_a_command_runs_beside_its_workers_and_loads_torch_once(command: tuple[str, ...]) -> None:
    done = _run(SPIED, *command, "--tier", "scalar")
    loads = (*SUITE.preload, f"kernelpair.cli.{command[0]}", "kernelpair.cli.main", "kernelpair.cli.forked")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"starts the server, with {' '.join(loads)}\n")
    assert done.stdout.endswith("torch here: False\n") and done.stdout.count("starts the server") == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("mutate", "--mutant", "store_cache/gone"), "unknown mutant 'store_cache/gone'"),
        (("premerge", "--base", "gone"), "--base: git knows no revision 'gone'"),
        (("findings", "gone.md"), "there is no page gone.md"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_so_does_one_that_is_refused_once_its_suite_has_loaded(command: tuple[str, ...], says: str) -> None:
    done = _run(SPIED, *command)
    assert (done.returncode, done.stdout.count("starts the server")) == (2, 1), done.stderr
    assert done.stdout.endswith("torch here: False\n") and done.stderr.startswith(f"kernelpair {command[0]}: {says}")


def test_a_replay_in_process_starts_no_server() -> None:
    done = _replay(SPIED, "--in-process")
    assert (done.returncode, done.stdout) == (0, "store_cache[scalar] pass\ntorch here: True\n"), done.stderr


def test_a_command_whose_process_is_killed_says_so_and_has_the_status_of_a_broken_harness() -> None:
    done = _replay(COMMAND[-1], "--suite", "tests.cli.ends_itself")
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == "kernelpair replay: the process that ran it ended before its time\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "stor_cache"), "check: unknown pair 'stor_cache' (did you mean store_cache?)"),
        (("list", "stor_cache"), "list: unknown pair 'stor_cache' (did you mean store_cache?)"),
        (("bench", "stor_cache"), "bench: unknown pair 'stor_cache' (did you mean store_cache?)"),
        (("replay", LINE.replace("store", "stor")), "replay: unknown pair 'stor_cache' (did you mean store_cache?)"),
        (("check", "--provider", "vlm_cpu"), "check: unknown provider 'vlm_cpu'; known are "),
        (("replay", LINE, "--provider", "gone.py"), "replay: there is no provider file gone.py"),
        (("check", "--tier", "sclar"), "check: unknown tier 'sclar' (did you mean scalar?); known are scalar, avx2, "),
        (("replay", LINE, "--tier", "sclar"), "replay: unknown tier 'sclar' (did you mean scalar?)"),
        (("check", "--total", "5", "--seconds", "5"), "check: --total and --seconds both say when to stop"),
        (("check", "--json", "no/such/r.json"), "check: --json: the folder of no/such/r.json does not exist"),
        (("bench", "--json", "."), "bench: --json: . is a folder"),
        (("premerge", "--junit", "/proc/r.xml"), "premerge: --junit: cannot write /proc/r.xml: "),
        (("replay", LINE, "--script", "/proc/bug.py"), "replay: --script: cannot write /proc/bug.py: "),
    ],
)
def test_wrong_usage_is_told_before_torch_has_loaded(arguments: tuple[str, ...], says: str) -> None:
    done = _run(SPIED, *arguments)
    assert (done.returncode, done.stdout) == (2, "torch here: False\n")
    assert done.stderr.startswith(f"kernelpair {says}")


def test_a_page_that_lacks_its_packages_is_refused_with_what_pip_is_to_be_given() -> None:
    without = "import sys; sys.modules['jinja2'] = None\n"
    done = _run(without + SPIED, "check", "--html", "r.html")
    assert (done.returncode, done.stdout) == (2, "torch here: False\n")
    says = "jinja2 cannot be imported: pip install 'kernelpair[report]'"
    assert done.stderr == f"kernelpair check: --html r.html: {says}\n"
    assert "needs pip install 'kernelpair[report]'" in " ".join(_run(SPIED, "check", "--help").stdout.split())


def test_the_tiers_that_are_known_before_the_library_has_loaded_are_all() -> None:
    assert list(SUITE.tier_names()) == [*(tier.name for tier in SUITE.tiers()), "python"]
