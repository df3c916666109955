"""Kernels compute on the processors that the process may use, on no more threads than the environment allows."""

import os
import subprocess
import sys

import pytest

from properties import ROOT

CALL = """
import os
if os.environ["ONLY"]:
    os.sched_setaffinity(0, {int(os.environ["ONLY"])})
import torch
from optimized import operator
weight = operator("pack_linear_weight")(torch.ones(4096, 1024))
operator("packed_linear")(torch.ones(64, 1024), weight, 4096, 1024)
threads = [int(thread) for thread in os.listdir("/proc/self/task")]
print(torch.get_num_threads(), len(threads), *set.union(*(os.sched_getaffinity(thread) for thread in threads)))
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of processes")


def told(only: str = "", **environment: str) -> list[int]:
    """Threads that torch may use, threads that there are after a product, and the processors that these may use."""
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=ROOT, env=os.environ | environment | {"ONLY": only}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


def test_threads_stay_on_the_processors_of_the_process() -> None:
    only = max(os.sched_getaffinity(0))
    assert told(str(only)) == [1, 1, only]


def test_one_thread_is_one_thread_for_kernels_too() -> None:
    assert told(OMP_NUM_THREADS="1")[:2] == [1, 1]
