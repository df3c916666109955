"""The page of `kernelpair mutate --html`: what it says to type can be typed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = '''
from dataclasses import replace
from pathlib import Path

import mine
from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR

HERE = Path(__file__).resolve().parent
SUITE = PlainSuite(HERE, [replace(PAIR, optimized=mine.scaled, files={"kernel": "mine.py"}, tiers="python")])
'''
KERNEL = '''
def scaled(x, slots, out, scale):
    if len(slots) and (slots.min() < 0 or slots.max() >= len(out)):
        raise IndexError("slots lie outside")
    out[slots] = scale * x
'''
MUTANTS = '''
[[mutant]]
id = "no-scale"
says = "leaves the factor out"
class = "scale"
file = "mine.py"
find = "scale * x"
replace = "1.0 * x"
'''


def _run(folder: Path, *words: str) -> tuple[int, str]:
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"}
    environment.pop("KERNELPAIR_SUITE", None)
    command = [sys.executable, "-m", "kernelpair", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_noticed_bug_is_shown_again_by_the_command_on_the_page(tmp_path: Path) -> None:
    for name, text in (("kernelpair_suite.py", SUITE), ("mine.py", KERNEL), ("mutants.toml", MUTANTS)):
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    status, said = _run(tmp_path, "mutate", "--seconds", "10", "--html", "m.html")
    assert status == 0 and "seed 1; 1 mutant, at most 10 s" in said, said
    page = (tmp_path / "m.html").read_text()
    (again,) = set(re.findall(r"kernelpair mutate --[^<]+", page))
    assert "kernelpair replay" not in page and "--script" not in page, "a mutant is there only while it is on trial"
    status, said = _run(tmp_path, *shlex.split(again)[1:])
    assert status == 0 and "toy/no-scale" in said and '{"pair":"toy"' in said, said
