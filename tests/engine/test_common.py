"""What candidates have in common is loaded once, in the server of their workers, and nothing of one reaches the next."""

import ctypes
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernelpair.call import common
from kernelpair.call.memory import Arena
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.place import place, settle
from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate, elsewhere
from tests.selftest.toy import PAIR, ToyCase, reference

LEFT = "left by a worker"
loaded_in: list[int] = []


def load() -> None:
    loaded_in.append(os.getpid())


def flushes_denormals() -> None:
    load()
    torch.set_flush_denormal(True)


def starts_a_thread() -> None:
    load()
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def fails() -> None:
    load()
    raise OSError("libsomething.so.3: cannot open shared object file")


def dies() -> None:
    load()
    ctypes.string_at(0)


def good(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    reference(x, slots, out, scale)


def leaves_a_file(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    reference(x, slots, out, scale)
    Path(tempfile.gettempdir(), LEFT).touch()
    Path(tempfile.gettempdir(), f"{LEFT}, a folder").mkdir(exist_ok=True)


def leaves_a_mark(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    reference(x, slots, out, scale)
    loaded_in.append(-1)


def kills_its_parent(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10)


def segfaults(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    ctypes.string_at(0)


def told(before: bool) -> str:
    """How many processes have loaded it, whether this one did, and what stands in the folder of temporary files."""
    stands = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(LEFT)]
    return f"{[pid if pid < 0 else 'here' if pid == os.getpid() else 'server' for pid in loaded_in]} {sorted(stands)}"


def candidate(kernel: str, loads: str = "load") -> Candidate:
    here = __name__
    return Candidate("toy", f"{here}:{kernel}", ran=f"{here}:told", common=f"{here}:{loads}" if loads else "")


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(1 << 24)


@pytest.fixture(autouse=True)
def none_idle() -> Iterator[None]:
    """Each test begins and ends without servers that wait for a candidate."""
    close_all()
    yield
    close_all()


def close_all() -> None:
    while common._idle:
        common._idle.popitem()[1].close()


def outcome(of: Candidate, arena: Arena) -> Outcome:
    """Of one call by a worker of its own."""
    case = ToyCase(rows=3, width=5, spare=1, seed=4)
    with Isolated(of, arena=arena) as runner:
        placement = place(PAIR, case, settle(PAIR, case, PAIR.cases.inputs(case)), arena)
        return runner.run(CallRequest(placement.arguments, placement.guards, arena.used, ("out",), 1))


def test_candidates_after_one_another_have_a_server_that_has_loaded_it_once(arena: Arena) -> None:
    assert [outcome(candidate(name), arena).ran for name in ("good", "leaves_a_mark", "good")] == [
        "['server'] []", "['server', -1] []", "['server'] []",
    ]  # fmt: skip
    assert len(common._idle) == 1


def test_two_at_a_time_have_a_server_each(arena: Arena) -> None:
    with Isolated(candidate("good"), arena=arena) as one, Isolated(candidate("good"), arena=arena) as other:
        one.start(), other.start()
        assert one._server is not other._server
    assert len(common._idle) == 1


def test_one_that_names_nothing_in_common_has_a_server_of_its_own(arena: Arena) -> None:
    assert outcome(candidate("good", ""), arena).ran == "[] []"
    assert not common._idle


def test_a_copy_of_the_repository_shares_nothing(tmp_path: Path) -> None:
    assert elsewhere(candidate("good"), Path.cwd(), tmp_path).common == ""


@pytest.mark.parametrize("loads", ["flushes_denormals", "starts_a_thread", "fails", "dies"])
def test_what_changes_its_process_by_loading_is_not_shared(arena: Arena, loads: str) -> None:
    found = outcome(candidate("good", loads), arena)
    assert (found.status, found.ran, found.side_effects) == ("ok", "[] []", ())
    assert not common._idle


def test_a_module_that_changes_its_process_is_blamed_on_its_own_candidate(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(tmp_path, "flushing.py").write_text(
        f"import torch\nfrom {__name__} import good\n\ntorch.set_flush_denormal(True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bad = Candidate("toy", "flushing:good", common=f"{__name__}:load")
    for _ in range(2):
        assert [(effect.kind, effect.name) for effect in outcome(bad, arena).side_effects] == [("fp_state", "mxcsr")]
        assert not outcome(candidate("good"), arena).side_effects


@pytest.mark.parametrize(("bad", "status"), [("kills_its_parent", "kills_parent"), ("segfaults", "crash")])
def test_after_a_death_the_next_candidate_has_a_new_server(arena: Arena, bad: str, status: str) -> None:
    assert outcome(candidate("good"), arena).status == "ok"
    assert outcome(candidate(bad), arena).status == status
    assert not common._idle
    assert outcome(candidate("good"), arena).ran == "['server'] []"


def test_temporary_files_of_one_are_not_there_for_the_next(arena: Arena) -> None:
    assert LEFT in str(outcome(candidate("leaves_a_file"), arena).ran)
    assert outcome(candidate("good"), arena).ran == "['server'] []"
