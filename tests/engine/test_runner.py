"""Running a candidate: whatever it does to its process is an outcome, and the next call has a new process."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelpair.call.fork_server import fork_server
from kernelpair.call.memory import Arena
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.place import place, settle
from kernelpair.call.runner import CLOSES, HarnessError, InProcess, Isolated
from kernelpair.call.system import waited_for_processor
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.trial.check import Journal, check
from tests.kernels import PAGE, kernel
from tests.processes import wait_for
from tests.selftest.toy import PAIR, ToyCase, library, toy_candidate

ROWS = ToyCase(rows=3, width=5, spare=1, seed=4)
Make = Callable[..., Isolated]


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(1 << 24)


@pytest.fixture
def isolated(arena: Arena) -> Iterator[Make]:
    """Makes a runner that is closed at the end of the test."""
    made: list[Isolated] = []

    def make(candidate: Candidate | str, **options: Any) -> Isolated:
        subject = kernel(candidate) if isinstance(candidate, str) else candidate
        made.append(Isolated(subject, preload=("properties.suite",), arena=arena, **options))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def request_of(case: ToyCase, arena: Arena) -> CallRequest:
    placement = place(PAIR, case, settle(PAIR, case, PAIR.cases.inputs(case)), arena)
    return CallRequest(placement.arguments, placement.guards, arena.used, ("out",), 1)


def call(runner: Any, case: ToyCase = ROWS) -> Outcome:
    return runner.run(request_of(case, runner.arena))


def judged(runner: Any, name: str, case: ToyCase = ROWS) -> Verdict:
    return check(Subject(PAIR, kernel(name)), case, runner)


def kinds(verdict: Verdict) -> list[str]:
    return [failure.kind for failure in verdict.failures]


# --- outcomes ---


def test_a_good_call_leaves_its_result_in_the_arena(isolated: Make) -> None:
    runner = isolated("good")
    assert call(runner).status == "ok"
    assert judged(runner, "good").passed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("segfaults", "SIGSEGV"),
        ("aborts_with_words", "SIGABRT: first | *** corrupted ***"),
        ("leaves", "exits with status 3"),
        ("real_time_signal", "signal 37"),
        ("closes_all", CLOSES),
        ("puts_others_in_their_place", CLOSES),
        ("closes_all_and_sleeps", CLOSES),
    ],
)
def test_a_death_is_an_outcome_with_its_cause(isolated: Make, name: str, says: str) -> None:
    runner = isolated(name)
    assert ((outcome := call(runner)).status, outcome.message) == ("crash", says)
    assert kinds(judged(runner, name)) == ["crash"]


def test_after_a_crash_comes_a_new_worker(isolated: Make) -> None:
    runner = isolated("segfaults")
    assert call(runner, ToyCase(rows=0)).status == "ok"
    for restarts in range(3):
        assert runner.restarts == restarts
        assert call(runner).status == "crash"
        assert call(runner, ToyCase(rows=0)).status == "ok"


def test_a_signal_to_its_group_ends_a_candidates_own_server_alone(isolated: Make) -> None:
    first = fork_server(("properties.suite",))
    assert call(isolated("kills_its_group")).status == "kills_parent"
    assert first.serves() and fork_server() is first


def test_a_hang_is_an_outcome_and_then_costs_less(isolated: Make) -> None:
    runner = isolated("sleeps", hang_seconds=0.3)
    assert (outcome := call(runner)).status == "hang" and outcome.message.startswith("no answer within 0.3 s")
    assert call(runner, ToyCase(rows=0)).status == "ok"
    assert kinds(judged(runner, "sleeps")) == ["hang"]


def test_a_hang_says_where_the_call_is(isolated: Make) -> None:
    library()  # in this process: a worker that compiled it would be ended before it had
    compiled, interpreted = isolated(toy_candidate("loops_forever"), hang_seconds=0.3), isolated("sleeps", hang_seconds=0.3)
    says = r"no answer within 0\.3 s, in "
    assert re.fullmatch(rf"{says}loops_forever, called from run \(tests/selftest/toy\.py:\d+\)", call(compiled).message)
    assert re.fullmatch(rf"{says}<lambda> \(tests/kernels\.py:\d+\)", call(interpreted).message)
    assert compiled.printed() == interpreted.printed() == "", "what was asked of the worker is nothing that the kernel prints"


def test_a_hang_deeper_than_the_100_frames_that_python_prints_says_where_in_a_library(isolated: Make, tmp_path: Path) -> None:
    packages, kernels = tmp_path / "site-packages", tmp_path / "kernel.py"
    packages.mkdir()
    (packages / "down.py").write_text("import time\ndef deep(n):\n    return deep(n - 1) if n else time.sleep(60)\n")
    path = f"import sys\nsys.path.insert(0, {str(packages)!r})\nfrom down import deep\n"
    kernels.write_text(f"{path}def shallow(**given):\n    deep(1)\ndef far_down(**given):\n    deep(150)\n")
    for name, says in (("shallow", r"shallow \(kernel\.py:5\)"), ("far_down", r"deep \(down\.py:3\)")):
        message = call(isolated(Candidate(name, f"{kernels}:{name}"), hang_seconds=0.3)).message
        assert re.fullmatch(rf"no answer within 0\.3 s, in {says}", message), message


def test_a_hang_of_a_call_that_takes_no_signal_is_a_hang(isolated: Make) -> None:
    outcome = call(isolated("sleeps_behind_a_mask", hang_seconds=0.3))
    assert outcome.status == "hang" and outcome.message.startswith("no answer within 0.3 s")


def test_a_process_that_is_stopped_is_told_from_one_that_does_not_come_to_an_end(isolated: Make) -> None:
    outcome = call(isolated("stops", hang_seconds=0.3))
    assert (outcome.status, outcome.message) == (
        "hang", "no answer within 0.3 s, for a signal or a debugger has stopped its process"
    )


def test_after_a_hang_calls_that_come_back_late_have_their_time(isolated: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.call.runner.HANG_SECONDS_AGAIN", 0.05)
    runner, brief = isolated("sleeps_from_three_rows", hang_seconds=1.5), ToyCase(rows=1)
    assert [call(runner, case).status for case in (brief, ROWS, brief, ROWS)] == ["ok", "hang", "ok", "hang"]


@pytest.mark.parametrize("name", ["stops_its_group", "stops_its_parent_and_dies"])
def test_a_server_that_a_call_stops_goes_on(isolated: Make, name: str) -> None:
    runner = isolated(name, hang_seconds=3.0)
    for _ in range(2):
        outcome = call(runner)
        assert (outcome.status, outcome.error) == (("hang", "Hang") if name == "stops_its_group" else ("crash", "SIGKILL"))
        assert call(runner, ToyCase(rows=0)).status == "ok"


def test_a_hang_in_which_a_process_that_the_call_has_started_still_runs_names_it(isolated: Make) -> None:
    outcome = call(isolated("waits_for_a_compiler", hang_seconds=1.0))
    says = "no answer within 1 s, while a process that it has started still runs: sh, sleep"
    assert (outcome.status, outcome.message) == ("hang", says)


@pytest.mark.parametrize("what", ["processor", "memory"])
def test_a_call_that_waits_for_what_others_have_is_no_hang(isolated: Make, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    told = iter(range(100))
    monkeypatch.setattr(f"kernelpair.call.runner.waited_for_{what}", lambda *pid: float(next(told)))
    assert call(isolated("sleeps_two_seconds", hang_seconds=1.0)).status == "ok"


def test_a_call_whose_compiler_waits_for_a_processor_is_no_hang(isolated: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(range(100))
    for name, instead in (("below", lambda pid: [1]), ("waited_for_processor", lambda pid: next(told) if pid == 1 else 0.0)):
        monkeypatch.setattr(f"kernelpair.call.runner.{name}", instead)
    assert call(isolated("sleeps_two_seconds", hang_seconds=1.0)).status == "ok"
    assert call(isolated("sleeps", hang_seconds=0.3)).status == "hang"


class StoppedWhileItWaits:
    """What `select.poll` makes, in a process that is stopped for all but the first quarter of a second of each wait."""

    def __init__(self) -> None:
        self.real = select.poll()
        self.register = self.real.register

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        return self.real.poll(min(milliseconds, 250))


def test_a_stop_of_the_whole_machine_is_no_hang(isolated: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.call.runner.select", SimpleNamespace(poll=StoppedWhileItWaits, POLLIN=select.POLLIN))
    assert call(isolated("sleeps_two_seconds", hang_seconds=5.0)).status == "ok"
    assert call(isolated("sleeps", hang_seconds=0.3)).status == "hang"


def test_patience_with_a_call_that_waits_has_an_end(isolated: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(range(100))
    monkeypatch.setattr("kernelpair.call.runner.waited_for_processor", lambda pid: 0.5 * next(told))
    assert call(isolated("sleeps", hang_seconds=0.3)).status == "hang"
    assert next(told) < 10


def test_two_that_share_a_core_wait_for_it() -> None:
    command = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(flush=True)\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for each in both:
            assert each.stdout is not None and each.stdout.readline()
        assert wait_for(lambda: all(waited_for_processor(each.pid) > 0.05 for each in both), 60.0)
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert waited_for_processor(both[0].pid) == 0.0  # gone


@pytest.mark.parametrize("where", [Isolated, InProcess])
def test_an_exception_is_an_outcome_with_its_classes(isolated: Make, arena: Arena, where: type) -> None:
    runner = isolated("raises") if where is Isolated else InProcess(kernel("raises"), arena)
    outcome = call(runner)
    assert (outcome.status, outcome.error, outcome.message) == ("exception", "OddError", "no more than 3")
    assert {"IndexError", "LookupError", "Exception"} <= set(outcome.bases)


@pytest.mark.parametrize("where", [Isolated, InProcess])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("exits", "SystemExit: 3"),
        ("returns_two", "TypeError: the call returned a tuple of 2 values, the contract names one value: out"),
        ("returns_one_in_a_tuple", "TypeError: the call returned a tuple of 1 value, the contract names one value: out"),
        ("returns_strange_thing", "result out is a function, not a tensor or a plain value"),
    ],
)
def test_a_wrong_way_to_return_is_the_candidates_fault(
    isolated: Make, arena: Arena, where: type, name: str, says: str
) -> None:
    runner = isolated(name) if where is Isolated else InProcess(kernel(name), arena)
    (failure,) = judged(runner, name).failures
    assert failure.kind == "exception" and says in failure.detail


def test_a_result_that_is_an_argument_is_seen(isolated: Make) -> None:
    runner = isolated("returns_its_argument")
    outcome = call(runner)
    assert outcome.results["out"].aliases == "out"


@pytest.mark.parametrize("name", ["returns_a_number", "returns_its_argument"])
def test_a_result_that_the_contract_does_not_know_is_seen(isolated: Make, name: str) -> None:
    (failure,) = judged(isolated(name), name).failures
    assert (failure.kind, failure.tensor, failure.detail) == ("layout", "out", "a result where the contract has none")


def test_what_a_kernel_prints_does_not_pile_up(isolated: Make) -> None:
    runner = isolated("prints_much")
    for _ in range(12):
        assert call(runner).status == "ok"
    assert os.fstat(runner._log).st_size < 3 << 19


def test_no_line_of_a_message_looks_like_one_of_ours(isolated: Make) -> None:
    outcome = call(isolated("raises_a_message_that_looks_like_ours"))
    assert outcome.message == "no\n    FAIL other[avx2] value: wrong\n    \\x1b[31mred"


def test_what_a_call_prints_without_an_end_does_not_pile_up(isolated: Make) -> None:
    runner = isolated("prints_without_an_end", hang_seconds=3.0)
    assert call(runner).status == "hang"  # some 300 MB later
    assert os.fstat(runner._log).st_size < 100 << 20


def test_a_message_that_is_no_text_is_told(isolated: Make) -> None:
    outcome = call(isolated("raises_a_name_that_is_no_text"))
    assert (outcome.status, outcome.message) == ("exception", "cannot open \\udcff.bin")


def test_what_a_kernel_prints_goes_nowhere(isolated: Make, capfd: pytest.CaptureFixture[str]) -> None:
    assert judged(isolated("prints"), "prints").passed
    assert capfd.readouterr() == ("", "")


# --- guard pages ---


@pytest.mark.parametrize(
    ("name", "guard", "kind"),
    [
        ("writes_past_end", "end", "crash"),
        ("writes_past_end", "start", "untouched"),
        ("writes_before_start", "start", "crash"),
        ("writes_before_start", "end", "untouched"),
        ("reads_past_end", "end", "crash"),
    ],
)
def test_one_byte_beyond_either_end_is_seen(isolated: Make, name: str, guard: Any, kind: str) -> None:
    case = ToyCase(rows=3, width=5, guard=guard)
    runner = isolated(name)
    verdict = judged(runner, name, case)
    assert kinds(verdict) == [kind]
    if kind == "crash":
        assert "SIGSEGV" in verdict.failures[0].detail or "SIGBUS" in verdict.failures[0].detail
        guards = request_of(case, runner.arena).guards
        assert all(runner.arena.bytes[page : page + PAGE].sum() >= 0 for page in guards)  # this process may still read


def test_the_page_beyond_a_full_page_is_guarded(isolated: Make) -> None:
    case = ToyCase(rows=1, width=PAGE // 4)
    for name, guard in (("writes_past_end", "start"), ("writes_before_start", "end")):
        verdict = judged(isolated(name), name, ToyCase(rows=1, width=PAGE // 4, guard=guard))  # type: ignore[arg-type]
        assert kinds(verdict) == ["crash"]
    assert judged(isolated("good"), "good", case).passed


# --- in this process ---


@pytest.mark.parametrize("name", ["good", "off_by_an_eighth", "raises"])
@pytest.mark.parametrize("trial", ["value", "repeat", "threads", "poison", "wrong_call:slot_too_large"])
def test_in_process_says_what_a_worker_says(isolated: Make, arena: Arena, name: str, trial: str) -> None:
    case = ToyCase(rows=4, width=3, spare=2, seed=9, layout={"x": "padded"}, trial=trial)
    there, here = judged(isolated(name), name, case), judged(InProcess(kernel(name), arena), name, case)
    assert (there.failures, there.tightness, there.calls) == (here.failures, here.tightness, here.calls)


# --- a harness that fails says so ---


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        (Candidate("toy", "tests.kernels:nothing_like_it"), "has no attribute 'nothing_like_it'"),
        (Candidate("toy", "tests.no_such_module:good"), "No module named 'tests.no_such_module'"),
        (Candidate("toy", "tests.kernels:PAGE"), "tests.kernels:PAGE is a int, not a callable"),
        (kernel("good", prepare="fails_to_load"), "libsomething.so.3"),
        (kernel("good", prepare="dies_on_loading"), "died at its start: exits with status 4"),
    ],
)
def test_a_candidate_that_does_not_load_is_no_verdict(isolated: Make, candidate: Candidate, says: str) -> None:
    with pytest.raises(HarnessError, match=says):
        call(isolated(candidate))


@pytest.mark.parametrize("waits", [True, False], ids=["busy", "idle"])
def test_a_worker_that_waits_for_a_processor_may_take_longer_to_start(
    isolated: Make, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    isolated("good").start()  # the server loads torch, which takes as long
    told = iter(range(100))
    monkeypatch.setattr("kernelpair.call.runner.START_SECONDS", 1.5)
    monkeypatch.setattr("kernelpair.call.runner._late", set())
    monkeypatch.setattr("kernelpair.call.runner.waited_for_processor", lambda pid: float(next(told)) if waits else 0.0)
    slow = isolated(kernel("good", prepare="takes_three_seconds_to_load"))
    if waits:
        assert call(slow).status == "ok"
    else:
        with pytest.raises(HarnessError, match=r"the worker of toy did not start within 1\.5 s"):
            call(slow)


def test_a_candidate_that_has_not_started_once_is_not_waited_for_as_long_again(
    isolated: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated("good").start()
    monkeypatch.setattr("kernelpair.call.runner.START_SECONDS", 1.0)
    monkeypatch.setattr("kernelpair.call.runner.START_SECONDS_AGAIN", 0.5)
    monkeypatch.setattr("kernelpair.call.runner.waited_for_processor", lambda pid: 0.0)
    monkeypatch.setattr("kernelpair.call.runner._late", set())
    for says in (r"the worker of toy did not start within 1 s", r"the worker of toy did not start within 0\.5 s"):
        with pytest.raises(HarnessError, match=says):
            call(isolated(kernel("good", prepare="takes_three_seconds_to_load")))


# --- the journal ---


def test_the_journal_holds_the_line_while_the_case_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state" / "running.json")
    seen: list[str] = []

    class Spy(InProcess):
        def run(self, request: CallRequest) -> Outcome:
            seen.append(journal.path.read_text())
            return super().run(request)

    long, short = ToyCase(rows=3, width=7, seed=123456), ToyCase(rows=2)
    with Spy(kernel("good")) as runner:
        lines = [check(Subject(PAIR, kernel("good")), case, runner, journal).line + "\n" for case in (long, short)]
    journal.close()
    assert seen == lines
    assert journal.path.read_text() == lines[-1]
