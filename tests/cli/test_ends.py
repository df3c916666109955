"""However a run ends, it leaves nothing behind but the files that were asked for."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernelpair.call.system import is_stopped
from kernelpair.pytest_plugin import profile_name
from tests.processes import ENDED_WITHIN, MARK, Run, run, wait_for

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHARED = Path("/dev/shm")  # noqa: S108 - looked at, not written to
MOMENTS = 200 if profile_name() == "nightly" else 12
LONGEST = 4.5  # seconds after the start; a run takes about as long
VICTIMS = ("main", "group", "judge", "work")
CHECK = ("check", "store_cache", "packed_linear", "--tier", "scalar", "--seconds", "1.5", "--json", "r.json", "--junit", "r.xml")
SUITE = ("--suite", "properties.suite")


def _strike(running: Run, victim: str, number: int, rng: random.Random) -> bool:
    """Send it; whether there was such a process."""
    with suppress(ProcessLookupError):
        if victim == "main":
            os.kill(running.pid, number)
        elif victim == "group":
            os.killpg(running.pid, number)
        elif found := running.processes(f"kernelpair-{victim}"):
            os.kill(rng.choice(found), number)
        else:
            return False
    return True


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_nothing_is_left_after_a_signal_at_a_random_moment(tmp_path: Path, moment: int) -> None:
    rng = random.Random(moment)
    victim = VICTIMS[moment % len(VICTIMS)]
    number = rng.choice((*ENDS, signal.SIGKILL) if victim in VICTIMS[:2] else (signal.SIGKILL, signal.SIGTERM))
    shared = set(os.listdir(SHARED))
    with run(tmp_path / "é folder", *CHECK, *SUITE) as running:
        running.handles_signals()
        time.sleep(rng.uniform(0, LONGEST))
        alive = running.process.poll() is None
        struck = _strike(running, victim, number, rng)
        out, err = running.end()
        status, left = running.process.returncode, running.left()
        says = f"{signal.Signals(number).name} to {victim}: status {status}\n{out}\n{err}"
    assert not left, f"{left} is left after {says}"
    assert not {name for name in set(os.listdir(SHARED)) - shared if "kernelpair" in name}
    if number in ENDS and victim in VICTIMS[:2] and alive and status != 0:
        assert status == 130 and "Traceback" not in err, says
        assert "results" in json.loads((running.folder / "r.json").read_text())
        assert ElementTree.fromstring((running.folder / "r.xml").read_text()).tag == "testsuite"  # noqa: S314 - our own
    elif victim not in VICTIMS[:2]:  # the run goes on, and tells what became of it
        assert status in ((0, 1, 70) if struck else (0,)), says
        assert (running.folder / "r.json").is_file()


SLEEPS = """
import pathlib, time
from kernelpair.providers.provider import adapts
@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    pathlib.Path("called").touch()
    time.sleep(3600)
"""
STRUCK_WHILE_IMPORTING = """
import os, signal, sys
class Striking:
    def find_spec(self, name, path=None, target=None):
        if name == "kernelpair.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Striking())
from kernelpair.__main__ import main
main()
"""


def test_an_interrupt_before_the_command_is_imported_shows_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", STRUCK_WHILE_IMPORTING, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kernelpair: interrupted before it began\n")


@pytest.mark.parametrize("command", ["check", "mutate", "premerge"])
def test_files_of_a_run_that_ended_before_it_began_are_not_those_of_an_earlier_one(tmp_path: Path, command: str) -> None:
    options = {"check": ("json", "junit"), "mutate": ("json", "markdown"), "premerge": ("junit", "markdown")}[command]
    files = [tmp_path / f"before.{option}" for option in options]
    for file in files:
        file.write_text("1 passed")
    named = [word for option, file in zip(options, files) for word in (f"--{option}", str(file))]
    with run(tmp_path / "run", command, *named, *SUITE) as running:
        assert wait_for(lambda: len(running.processes()) > 1, ENDED_WITHIN)  # its server is loading
        os.kill(running.pid, signal.SIGTERM)
        _, err = running.end()
    assert running.process.returncode == 130 and err == f"kernelpair {command}: interrupted before it began\n"
    assert not [file.name for file in files if "1 passed" in file.read_text()]


def test_a_limit_of_address_space_is_told_in_one_line() -> None:
    limited = f"""ulimit -v 20000000; exec {sys.executable} -m kernelpair replay '{{"pair":"rms_norm","v":1}}' --tier scalar"""
    ended = subprocess.run(["/bin/sh", "-c", limited], capture_output=True, text=True, check=False, timeout=ENDED_WITHIN)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and line.startswith("kernelpair replay: no address space: 192 GiB"), line
    assert line.endswith("ulimit -v is 20000000 KiB")


def test_a_run_that_is_interrupted_tells_its_results_and_its_seed(tmp_path: Path) -> None:
    long = ("check", "store_cache", "--tier", "scalar", "--seconds", "60", "--json", "r.json")
    with run(tmp_path / "run", *long, *SUITE) as running:
        journals = running.folder / ".kernelpair"
        assert wait_for(lambda: any(path.stat().st_size for path in journals.glob("running-*.json")), ENDED_WITHIN)
        os.kill(running.pid, signal.SIGTERM)
        out, err = running.end()
    assert running.process.returncode == 130 and not err
    told = json.loads((running.folder / "r.json").read_text())
    (result,) = told["results"]
    assert result["cases"] > 0 and told["environment"]["interrupted"] is True
    assert f"seed {told['environment']['seed']}" in out


def test_the_case_of_a_call_that_does_not_return_is_told_before_the_limit_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "sleeps.py").write_text(SLEEPS)
    with run(folder, "check", "store_cache", "--provider", "sleeps.py", *SUITE) as running:
        assert wait_for((folder / "called").is_file, ENDED_WITHIN)
        os.kill(running.pid, signal.SIGINT)
        out, _ = running.end()
    assert running.process.returncode == 130
    (line,) = (line for line in out.splitlines() if "interrupted in the middle of a call: kernelpair replay " in line)
    assert "--provider sleeps.py" in line and '"pair":"store_cache"' in line


def test_pairs_that_an_interrupted_run_did_not_reach_are_named(tmp_path: Path) -> None:
    pairs = ("store_cache", "merge_state", "gdn_gating", "act_and_mul", "rms_norm", "topk_gating")
    options = ("--tier", "scalar", "--seconds", "120", "--json", "r.json", "--junit", "r.xml")
    with run(tmp_path / "run", "check", *pairs, *options, *SUITE) as running:
        journals = running.folder / ".kernelpair"
        assert wait_for(lambda: any(path.stat().st_size for path in journals.glob("running-*.json")), ENDED_WITHIN)
        os.kill(running.pid, signal.SIGTERM)
        out, _ = running.end()
    told = json.loads((running.folder / "r.json").read_text())["results"]
    unreached = [result["pair"] for result in told if result["reason"] == "interrupted before it began"]
    assert unreached and {result["pair"] for result in told} == set(pairs)
    assert "(interrupted before it began)" in out and "Next: the same check again, which was interrupted" in out
    assert "interrupted before it began" in (running.folder / "r.xml").read_text()


def test_a_candidate_that_does_not_answer_does_not_delay_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    provider = _provider(tmp_path, "time.sleep(60)")
    with run(folder, "check", "store_cache", "--provider", provider, "--json", "r.json", *SUITE) as running:
        assert wait_for(lambda: (folder / "called").exists(), ENDED_WITHIN)
        os.kill(running.pid, signal.SIGINT)
        _, err = running.end()
        assert not running.left()
    assert running.process.returncode == 130 and "Traceback" not in err
    assert json.loads((folder / "r.json").read_text())["results"]


def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    with run(tmp_path / "run", "check", "store_cache", "--tier", "scalar", "--seconds", "3", *SUITE) as running:
        leader = _leader(running)
        for number, stopped in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
            os.kill(running.pid, number)
            for process in (running.pid, leader):
                assert wait_for(lambda: is_stopped(process) is stopped, ENDED_WITHIN), (process, number)
        out, err = running.end()
    assert running.process.returncode == 0 and "1 passed" in out, err


@pytest.mark.parametrize("victim", ["lead", "judge"])
def test_a_run_of_which_something_stops_a_process_goes_on_and_says_so(tmp_path: Path, victim: str) -> None:
    with run(tmp_path / "run", "check", "store_cache", "--tier", "scalar", "--examples", "400", *SUITE) as running:
        _leader(running)
        os.kill(running.processes(f"kernelpair-{victim}")[0], signal.SIGSTOP)
        out, err = running.end()
    assert running.process.returncode == 0 and "1 passed" in out, err
    name = f"kernelpair-{victim}"[:15]  # all that the system keeps
    assert f"kernelpair: something had stopped {name}, a process of this run; a kernel can do that. It goes on\n" in err


def test_a_run_whose_leader_is_killed_says_so_and_what_it_tried_and_leaves_nothing(tmp_path: Path) -> None:
    with run(tmp_path / "run", "check", "store_cache", "--tier", "scalar", "--seconds", "60", *SUITE) as running:
        leader, journals = _leader(running), tmp_path / "run" / ".kernelpair"
        assert wait_for(lambda: any(file.stat().st_size for file in journals.glob("running-*.json")), ENDED_WITHIN)
        os.kill(leader, signal.SIGKILL)
        _, err = running.end()
        assert not running.left()
    says = 'kernelpair check: the process that ran it ended before its time; it was trying {"pair":"store_cache",'
    assert running.process.returncode == 70 and err.startswith(says) and err.count("\n") == 1, err


def _leader(running: Run) -> int:
    """Once it judges."""
    assert wait_for(lambda: running.processes("kernelpair-work"), ENDED_WITHIN)
    (leader,) = running.processes("kernelpair-lead")
    return leader


@pytest.mark.parametrize("more", [(), ("--in-process",)], ids=["worker", "in process"])
def test_a_replay_that_is_interrupted_says_so(tmp_path: Path, more: tuple[str, ...]) -> None:
    folder = tmp_path / "run"
    provider = _provider(tmp_path, "time.sleep(60)")
    with run(folder, "replay", '{"pair":"store_cache","v":1}', "--provider", provider, *more, *SUITE) as running:
        assert wait_for(lambda: (folder / "called").exists(), ENDED_WITHIN)
        os.kill(running.pid, signal.SIGINT)
        out, err = running.end()
        assert not running.left()
    assert (running.process.returncode, out, err) == (130, "", "kernelpair replay: interrupted before it ended\n")


def test_what_a_candidate_starts_goes_with_it(tmp_path: Path) -> None:
    provider = _provider(tmp_path, "subprocess.Popen(['sleep', '300'], start_new_session=True)")
    with run(tmp_path / "run", "check", "store_cache", "--provider", provider, "--examples", "5", *SUITE) as running:
        running.end()
        assert not running.left()


def test_a_candidate_that_kills_its_judge_is_told_with_its_case(tmp_path: Path) -> None:
    provider = _provider(tmp_path, "kill_judge()")
    with run(tmp_path / "run", "check", "store_cache", "--provider", provider, "--examples", "5", *SUITE) as running:
        out, _ = running.end()
        assert not running.left()
    assert running.process.returncode == 70
    assert "the judging process died (SIGKILL); the case was {" in out


LEAVES_A_CHILD = "os._exit(0) if os.fork() else (os.closerange(0, 3), time.sleep(1000))"


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("os._exit(0)", "status 0"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", "signal 37"),
        (LEAVES_A_CHILD, "status 0"),  # and holds what the process would have said its end by
    ],
)
def test_a_candidate_that_leaves_in_process_does_not_end_the_run_as_passed(tmp_path: Path, does: str, how: str) -> None:
    command = ("check", "store_cache", "--provider", _provider(tmp_path, does), "--examples", "5", "--in-process")
    with run(tmp_path / "run", *command, *SUITE) as running:
        _, err = running.end()
    assert running.process.returncode == 70
    assert f"a kernel ended the process it ran in ({how}); .kernelpair/running-" in err


def test_a_run_whose_output_nobody_reads_has_its_status_and_its_files(tmp_path: Path) -> None:
    command = ("check", "store_cache", "--provider", _provider(tmp_path, "k.zero_()"), "--examples", "5", "--json", "r.json")
    with run(tmp_path / "run", *command, *SUITE) as running:
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.process.wait(ENDED_WITHIN) == 1
        assert json.loads((tmp_path / "run" / "r.json").read_text())["results"][0]["verdict"] == "fail"


def test_results_may_go_into_a_pipe(tmp_path: Path) -> None:
    with run(tmp_path, "check", "store_cache", "--tier", "scalar", "--examples", "2", "--json", "/dev/stdout", *SUITE) as running:
        out, err = running.end()
    assert running.process.returncode == 0 and '"verdict": "pass"' in out, err


def _provider(folder: Path, does: str) -> str:
    """A provider whose store_cache also does something else."""
    path = folder / "mine.py"
    path.write_text(PROVIDER.format(does=does, mark=MARK))
    return str(path)


PROVIDER = '''
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from kernelpair.providers.provider import adapts
from reference.store_cache import store_cache as stored

NAME = "mine"


def kill_judge():
    mark = os.environb[b"{mark}"]
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if (process / "comm").read_text() == "kernelpair-judg\\n" and mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    open("called", "w").close()
    stored(k, v, k_cache, v_cache, indices, pad_slot)
    {does}
'''
