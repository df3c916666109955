"""The command below a failure, copied into a shell as it is printed, shows the failure again."""

import subprocess
from pathlib import Path

import pytest

from tests.command_line import ENVIRONMENT
from tests.screens import usual_environment

SUITE = """
from pathlib import Path

from kernelpair.contract.candidate import Candidate
from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR

SUITE = PlainSuite(Path(__file__).parent, [PAIR], {"toy": [Candidate("my kernel", "tests.kernels:off_from_three_rows")]})
"""
PROVIDER = """
from kernelpair.providers.provider import adapts


@adapts("toy")
def toy(x, slots, out, scale):
    pass
"""


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("", "--tier 'my kernel' --suite 'a folder/my suite.py'"),
        (" --provider 'my kernels.py'", "--provider 'my kernels.py' --suite 'a folder/my suite.py'"),
    ],
)
def test_with_blanks_in_every_name(tmp_path: Path, options: str, printed: str) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "my suite.py").write_text(SUITE)
    (tmp_path / "my kernels.py").write_text(PROVIDER)

    def failing(command: str) -> str:
        variables = usual_environment(PYTHONPATH=ENVIRONMENT["PYTHONPATH"])
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return next(line.strip() for line in done.stdout.splitlines() if line.startswith("  kernelpair replay "))

    command = failing(f"kernelpair check --suite 'a folder/my suite.py' --seed 1 --examples 20{options}")
    assert printed in command
    assert failing(command) == f"{command} -v"
