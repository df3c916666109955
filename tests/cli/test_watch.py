"""`kernelpair watch` in a suite of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.command_line import ENVIRONMENT
from tests.processes import COMMAND, ENDED_WITHIN, heed_signals, wait_for

SUITE = """
from pathlib import Path

from kernelpair.contract.candidate import Candidate
from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR

SUITE = PlainSuite(Path(__file__).parent, [PAIR], {"toy": [Candidate("python", "tests.kernels:good")]})
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stat_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()


def test_a_changed_module_begins_the_command_anew(tmp_path: Path) -> None:
    suite, seen = tmp_path / "kernelpair_suite.py", tmp_path / "seen"
    suite.write_text(SUITE)
    with seen.open("w") as into, subprocess.Popen(
        [sys.executable, *COMMAND, "watch", "--keep-going", "--seconds", "1"], cwd=tmp_path, env=ENVIRONMENT,
        stdout=into, stderr=into, start_new_session=True, preexec_fn=heed_signals,
    ) as running:  # fmt: skip
        try:
            assert wait_for(lambda: seen.read_text().count("waiting for a change"), ENDED_WITHIN), seen.read_text()
            suite.write_text(SUITE.replace('"python"', '"anew"').replace("good", "off_from_three_rows"))
            wait_for(lambda: running.poll() or seen.read_text().count("waiting for a change") == 2, ENDED_WITHIN)
            assert "Z" not in {stat_of(pid).split(") ")[1][0] for pid in children_of(running.pid)}
            assert "changed: kernelpair_suite.py" in seen.read_text() and "FAIL toy[anew] value: " in seen.read_text()
            os.kill(running.pid, signal.SIGINT)
            assert running.wait(ENDED_WITHIN) == 130
        finally:
            running.kill()
