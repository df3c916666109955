"""`kernelpair new-pair`: what it writes runs and fails at once, and passes when three functions are filled in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpair.cli import main
from kernelpair.suite import Place
from properties.suite import SUITE

COMMAND = (sys.executable, "-P", "-c", "import sys; from kernelpair.cli import main; sys.exit(main())")
FILLED = {
    "pairs/row_scale/reference.py": "return (x.to(torch.promote_types(x.dtype, torch.float32)) * 3).to(x.dtype)",
    "pairs/row_scale/bound.py": 'return {"out": (ROUNDOFF[case.dtype] + 2.0**-23) * truth["out"].abs() + 2.0**-24}',
    "pairs/row_scale/kernel.py": "return x.contiguous() * 3",
}

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def kernelpair(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a suite is loaded once in each."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELPAIR")}
    return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300)


def fill_in(name: str, text: str) -> None:
    """Put a body where the skeleton says that one is missing."""
    path = Path(name)
    lines = path.read_text().splitlines()
    (missing,) = (number for number, line in enumerate(lines) if "raise NotImplementedError" in line)
    lines[missing] = f"    {text}"
    path.write_text("\n".join(lines) + "\n")


def test_three_functions_make_a_pair() -> None:
    written = kernelpair("new-pair", "row_scale")
    assert written.returncode == 0 and "wrote kernelpair_suite.py" in written.stdout, written.stderr
    missing = dict(FILLED)
    while missing:
        before = kernelpair("check", "--examples", "40", "--seed", "1")
        assert before.returncode == 1, before.stdout + before.stderr
        (name,) = (name for name in missing if f"() in {name}" in before.stdout)
        assert f"fill in {'bound' if 'bound' in name else 'row_scale'}()" in before.stdout and name in written.stdout
        fill_in(name, missing.pop(name))
    filled = kernelpair("check", "--examples", "200", "--seed", "1")
    assert filled.returncode == 0 and "1 passed, 0 failed" in filled.stdout, filled.stdout + filled.stderr

    kernel = Path("pairs/row_scale/kernel.py")
    kernel.write_text(kernel.read_text().replace("* 3", "* 3.01"))
    wrong = kernelpair("check", "--examples", "40", "--seed", "1")
    assert wrong.returncode == 1 and "FAIL row_scale[optimized] value: out: " in wrong.stdout, wrong.stdout + wrong.stderr

    second = kernelpair("new-pair", "other")
    assert second.returncode == 0 and "kernelpair_suite.py" not in second.stdout, second.stderr
    assert kernelpair("list").stdout.startswith("other  ")


def test_what_is_not_filled_in_is_told_in_one_line_by_every_command() -> None:
    assert kernelpair("new-pair", "row_scale").returncode == 0
    line = '{"pair":"row_scale","v":1}'
    for command in (("replay", line), ("bench", "--case", line)):
        told = kernelpair(*command)
        says = f"kernelpair {command[0]}: fill in row_scale() in pairs/row_scale/reference.py: "
        assert told.returncode == 1 and told.stderr.startswith(says) and told.stderr.count("\n") == 1, told.stderr
    told = kernelpair("mutate")
    assert (told.returncode, told.stderr) == (2, "kernelpair mutate: there is no mutant of row_scale: [[mutant]] tables in "
                                                 "mutants.toml describe some\n")  # fmt: skip


@pytest.mark.parametrize("name", ["3x", "class", "Row", "row-scale", "_row", "a.b", ""])
def test_what_is_no_name_is_2(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["new-pair", name]) == 2
    assert f"NAME must be a Python name in lower case, such as row_scale, got {name!r}" in capsys.readouterr().err
    assert not list(Path.cwd().iterdir())


def test_the_installed_suite_that_a_new_one_hides_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernelpair.cli.new_pair.find", lambda spec: Place("pairs_of_others"))
    assert main(["new-pair", "row_scale"]) == 0
    assert "its own pairs alone; those that are installed: --suite pairs_of_others" in capsys.readouterr().out


def test_nothing_is_overwritten() -> None:
    assert kernelpair("new-pair", "row_scale").returncode == 0
    shutil.rmtree("pairs/row_scale/__pycache__", ignore_errors=True)
    twice = kernelpair("new-pair", "row_scale")
    assert twice.returncode == 2 and "has a pair 'row_scale' already" in twice.stderr
    Path("pairs/half").mkdir()
    Path("pairs/half/bound.py").write_text("mine")
    half = kernelpair("new-pair", "half")
    assert half.returncode == 2 and "NAME: 'half' would overwrite " in half.stderr and "half/bound.py" in half.stderr
    assert Path("pairs/half/bound.py").read_text() == "mine" and not Path("pairs/half/cases.py").exists()


def test_a_suite_that_lists_its_pairs_is_told(tmp_path: Path) -> None:
    Path("kernelpair_suite.py").write_text(
        "from pathlib import Path\nfrom kernelpair.suite import PlainSuite\nSUITE = PlainSuite(Path('.'), [])\n"
    )
    refused = kernelpair("new-pair", "row_scale")
    assert refused.returncode == 2 and "does not find pairs by their folders" in refused.stderr


def test_our_own_pair_is_known(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SUITE.root)
    assert main(["new-pair", "store_cache"]) == 2
    assert "has a pair 'store_cache' already" in capsys.readouterr().err
