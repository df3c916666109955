"""What several test files share as fixtures, and the environment that all of them run in."""

import os
from pathlib import Path

import pytest
import torch

from kernelpair.call.fork_server import WAITING, WORKERS
from properties.suite import ON_TRIAL

# Kernels that a test calls in this process are on trial too; the library reads this when it is loaded. A waiting thread that
# spins would take the core from a worker, and OpenMP reads that when torch loads, in processes that tests start.
os.environ.update({"MALLOC_PERTURB_": WORKERS["MALLOC_PERTURB_"], **WAITING, **ON_TRIAL})
torch.set_num_threads(1)


@pytest.fixture
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Journals, example databases and reports go there; no tier is forced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELPAIR_TIER", raising=False)
