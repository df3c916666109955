"""Kernels compute on the processors that the process may use, with the threads that the environment allows."""

import os
import subprocess
import sys

import pytest

from properties import ROOT

CALL = """
import os, torch
from optimized import operator
if os.environ.get("ONLY"):
    os.sched_setaffinity(0, {int(os.environ["ONLY"])})
weight = operator("pack_linear_weight")(torch.ones(4096, 1024))
operator("packed_linear")(torch.ones(64, 1024), weight, 4096, 1024)
threads = [int(thread) for thread in os.listdir("/proc/self/task")]
print(torch.get_num_threads(), len(threads), sorted(set.union(*(os.sched_getaffinity(thread) for thread in threads))))
"""


def told(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split(maxsplit=2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of processes")
def test_threads_stay_on_the_processors_of_the_process() -> None:
    only = min(os.sched_getaffinity(0))
    assert told(ONLY=str(only))[2].strip() == f"[{only}]"


def test_a_number_of_threads_holds_for_kernels() -> None:
    threads, running, _ = told(OMP_NUM_THREADS="1")
    assert threads == "1"
    more, running_then, _ = told(OMP_NUM_THREADS="3")
    assert more == "3" and int(running_then) == int(running) + 2
