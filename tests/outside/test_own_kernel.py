"""The scripts of docs/5-checking-your-own-kernel.md, taken from the page and run as it says."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "5-checking-your-own-kernel.md"


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_finds_the_bug_of_its_kernel(tmp_path: Path) -> None:
    for name, code in re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(code)
    found = _run(tmp_path, "try_mine.py")
    assert "cases, failed" in found
    written_pad = [line for line in found.splitlines() if line.startswith("{") and '"pads":' in line]
    assert written_pad, found
    again = _run(tmp_path, "replay_mine.py", written_pad[0])
    assert "untouched" in again or "IndexError" in again
