"""A command begins what takes long before it needs it."""

import os
import subprocess
import sys

import pytest

from properties.suite import SUITE

SPIED = """
import sys
from kernelpair.call import fork_server
from kernelpair.cli.main import main

start = fork_server._start
def spied(preload):
    print("starts it", "with" if "torch" in sys.modules else "without", "torch, for", *preload)
    return start(preload)
fork_server._start = spied
sys.exit(main(sys.argv[1:]))
"""
LINE = '{"pair":"store_cache","v":1,"rows":2}'


@pytest.mark.parametrize(
    ("more", "says"), [((), f"starts it without torch, for {' '.join(SUITE.preload)}\n"), (("--in-process",), "")]
)
def test_replay_starts_the_server_of_the_workers_before_it_loads_torch_itself(more: tuple[str, ...], says: str) -> None:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-c", SPIED, "replay", LINE, "--tier", "scalar", *more]
    done = subprocess.run(
        command, cwd=SUITE.root, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout == f"{says}store_cache[scalar] pass\n", done.stderr
