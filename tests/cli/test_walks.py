"""Two walks as a person takes them, kept as text: a new user in a fresh checkout, and the author of a kernel at six."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from optimized.library import library_path
from tests.outside.test_stranger import steps
from tests.screens import ROOT, assert_as_kept, usual_environment, walked

LINE = """'{"pair":"store_cache","v":1,"dtype":"bfloat16","rows":2}'"""
NEW_USER = (
    "make",
    "kernelpair --help | head -n 12",
    "kernelpair list store_cache",
    "kernelpair check store_cahce",
    "kernelpair check store_cache --tier sclar",
    "kernelpair check store_cache --tier scalar --seed 1 --examples 60",
    f"kernelpair replay {LINE} --tier scalar -v",
    "kernelpair check store_cache --tier scalar --seed 1 --examples 1 --json no/such/folder.json",
)
BAD = """'{"pair":"add_scaled","v":1}'"""
AUTHOR = (
    "sed -i 's/i < width;/i < width - 1;/' add_scaled.c",
    "kernelpair check --seed 1",
    f"kernelpair replay {BAD} -v",
    f"kernelpair replay {BAD} --script bug.py",
    "python bug.py",
    f"kernelpair replay {BAD} --save",
    "sed -i 's/i < width - 1;/i < width/' add_scaled.c",
    f"kernelpair replay {BAD}",
    "sed -i 's/i < width/i < width;/' add_scaled.c",
    f"kernelpair replay {BAD}",
    f"kernelpair replay {BAD} --script bug.py",
    "python bug.py",
    "kernelpair check --seed 1 --examples 60",
)
LISTED = re.compile(r"^(  candidates |.*known are) .*$", re.MULTILINE)  # other machines and later pairs have others


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What git knows, or would, and nothing that was built."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():  # it may be deleted and not yet committed
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_first_minutes_of_a_new_user(checkout: Path) -> None:
    environment = usual_environment(PYTHONPATH=str(checkout), KERNELPAIR_LIBRARY=str(library_path()))
    assert_as_kept("new-user", LISTED.sub(r"\1 …", walked(NEW_USER, checkout, environment)))


def test_an_author_finds_a_dropped_tail_and_mends_it(tmp_path: Path) -> None:
    """In the repository of docs/5: a mistake, its failure, why, a script for others, a word that does not compile, the cure."""
    for name, text in steps():
        if name:
            (tmp_path / name).write_text(text)
    # Without a sanitizer, under which memory that nobody wrote holds other bytes.
    environment = usual_environment(CFLAGS="", LD_PRELOAD="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert_as_kept("author", walked(AUTHOR, tmp_path, environment))
