"""Two arguments in one storage: kernels that refuse neighbours are blamed, and those that accept a shared element."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.place import resolve
from kernelpair.call.runner import HarnessError, InProcess, Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import NotFuzzed, every_argument
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.providers.bug_script import write_script
from kernelpair.search.drawing import drawn_cases
from kernelpair.trial.check import check, known_trials, read_case
from kernelpair.trial.judge import same_bits
from kernelpair.trial.neighbours import neighbours
from reference.checks import disjoint
from tests.selftest import toy

CASES = [toy.ToyCase(rows=3, width=5, seed=seed, trial="neighbours") for seed in range(12)]


def strict(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """The toy's reference with the check of memory."""
    disjoint({"out": out}, {"x": x, "slots": slots})
    toy.reference(x, slots, out, scale)


def right(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    disjoint({"out": out}, {"x": x, "slots": slots})
    toy.good(x, slots, out, scale)


def refuses_one_storage(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    if any(value.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() and _touch(value, out) for value in (x, slots)):
        raise ValueError("out overlaps another argument")
    right(x, slots, out, scale)


def refuses_rows_in_turn(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    (x0, x1), (out0, out1) = _extent(x), _extent(out)
    if max(x0, out0) < min(x1, out1):
        raise ValueError("x and out overlap")
    right(x, slots, out, scale)


def accepts_one_element(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    disjoint({"out": out[:-1]}, {"x": x[:-1]})
    disjoint({"out": out}, {"slots": slots})  # which it would spoil, and then go by
    toy.good(x, slots, out, scale)


def adds_up(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """Wrong only where out begins behind x."""
    right(x, slots, out, scale)
    if _extent(x)[1] == _extent(out)[0]:
        out[slots] += 1


def _extent(value: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return value.data_ptr(), value.data_ptr() + (reach + 1) * value.element_size()


def _touch(a: Tensor, b: Tensor) -> bool:
    (a0, a1), (b0, b1) = _extent(a), _extent(b)
    return max(a0, b0) <= min(a1, b1)


PAIR = replace(toy.PAIR, reference=strict, fuzz=every_argument)


def tried(kernel: Callable[..., None], reference: Callable[..., None] = strict) -> list[Verdict]:
    candidate = Candidate("toy", f"{__file__}:{kernel.__name__}")
    subject = Subject(replace(PAIR, reference=reference), candidate)
    runner = InProcess(candidate)
    return [check(subject, case, runner) for case in CASES]


def details(verdicts: Iterable[Verdict]) -> list[str]:
    return [f"{failure.kind}: {failure.detail}" for verdict in verdicts for failure in verdict.failures]


def test_a_right_kernel_passes() -> None:
    assert not details(tried(right))


def test_a_kernel_that_refuses_neighbours_is_blamed() -> None:
    found = details(tried(refuses_one_storage))
    assert any(says.startswith("exception: out begins at the end of x") for says in found), found
    assert any(says.startswith("exception: x begins at the end of out") for says in found), found


def test_a_kernel_that_refuses_rows_in_turn_is_blamed() -> None:
    found = details(tried(refuses_rows_in_turn))
    assert found and all("lie in turn" in says for says in found)


def test_a_kernel_that_accepts_an_overlap_of_one_element_is_blamed() -> None:
    found = details(tried(accepts_one_element))
    assert any(says.startswith("missing_error: out begins in the last element of x") for says in found), found
    assert any(says.startswith("missing_error: x begins in the last element of out") for says in found), found


def test_other_bits_beside_another_argument_are_noticed() -> None:
    assert any(says.startswith("nondeterministic: out begins at the end of x") for says in details(tried(adds_up)))


def test_a_reference_that_accepts_a_shared_element_is_a_fault_of_the_pair() -> None:
    with pytest.raises(HarnessError, match="the reference of toy accepts that"):
        tried(right, toy.reference)


def test_a_line_replays_what_was_drawn_and_a_script_shows_it(tmp_path: Path) -> None:
    candidate = Candidate("toy", "tests.selftest.toy:good")  # it checks no memory
    with Isolated(candidate) as runner:
        verdicts = [check(Subject(PAIR, candidate), case, runner) for case in CASES]
        bad = next(verdict for verdict in verdicts if [failure.kind for failure in verdict.failures][:1] == ["missing_error"])
        pair, case = read_case({"toy": PAIR}, bad.line)
        again = check(Subject(pair, candidate), case, runner)
    assert details([again]) == details([bad])
    write_script(tmp_path / "bug.py", PAIR, candidate, again, "")
    done = subprocess.run([sys.executable, tmp_path / "bug.py"], capture_output=True, text=True, cwd=tmp_path)
    assert "wrong: a result where the contract demands an error" in done.stdout, done.stderr


def test_pairs_without_written_arguments_or_checks_have_no_such_trial() -> None:
    assert "neighbours" in known_trials(PAIR)
    assert "neighbours" not in known_trials(replace(PAIR, fuzz=NotFuzzed("it checks nothing")))
    assert "neighbours" not in known_trials(properties.pairs()["packed_linear"])


@pytest.mark.parametrize("name", [name for name, pair in properties.pairs().items() if pair.has_trial("neighbours")])
def test_what_is_placed(name: str) -> None:
    """The given numbers, where nothing is shared; else at most one element of a row of either is other."""
    pair, seen = properties.pairs()[name], set()
    for case in drawn_cases(pair.cases.strategy, 8, 1):
        for each in neighbours(pair, case, pair.cases.inputs(case)):
            placed, wanted = resolve(each.inputs), resolve(each.apart)
            first, second = (placed[argument] for argument in each.names)
            assert first.data_ptr() != second.data_ptr()  # which is the shared form of two caches
            if max(first.numel(), second.numel()) < 10_000:
                assert _share(first, second) == each.shared
            if not each.shared:
                assert all(_same(placed[argument], wanted[argument]) for argument in wanted)
            seen.add(each.shared)
    assert seen == {False, True}


def _same(a: object, b: object) -> bool:
    return same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether they have a byte in common, byte for byte."""
    return bool(_bytes(a) & _bytes(b))


def _bytes(value: Tensor) -> set[int]:
    places = torch.zeros(value.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride())):
        places += (torch.arange(size) * stride).view(-1, *[1] * (value.dim() - dim - 1))
    begin = (places.flatten() + value.storage_offset()) * value.element_size()
    return {int(first) + byte for first in begin.tolist() for byte in range(value.element_size())}
