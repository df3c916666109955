"""What several test files share as fixtures."""

from pathlib import Path

import pytest


@pytest.fixture
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Journals, example databases and reports go there; no tier is forced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELPAIR_TIER", raising=False)
