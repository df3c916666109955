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
LOADS = (*SUITE.preload, "kernelpair.cli.replay", "kernelpair.cli.main", "kernelpair.cli.forked")


def _replay(program: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, "replay", LINE, "--tier", "scalar", *more]
    return subprocess.run(command, cwd=SUITE.root, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("more", "before", "here"), [((), f"starts the server, with {' '.join(LOADS)}\n", False), (("--in-process",), "", True)]
)
def test_replay_runs_beside_its_workers_and_loads_torch_once(more: tuple[str, ...], before: str, here: bool) -> None:
    done = _replay(SPIED, *more)
    says = f"{before}store_cache[scalar] pass\ntorch here: {here}\n"
    assert done.returncode == 0 and done.stdout == says, done.stderr


def test_a_command_whose_process_is_killed_says_so_and_has_the_status_of_a_broken_harness() -> None:
    done = _replay(COMMAND[-1], "--suite", "tests.cli.ends_itself")
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == "kernelpair replay: the process that ran it ended before its time\n"
