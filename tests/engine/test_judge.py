"""The judge: NaN never passes, a bound is a bound, bits are bits, and a byte that changed is told where it lies."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.call.fork_server import WORKERS
from kernelpair.call.memory import Arena
from kernelpair.call.place import Placement, place, settle
from kernelpair.contract.case import Case
from kernelpair.contract.pair import ROUNDED_ONCE, Exact, Inputs
from kernelpair.contract.verdict import KINDS, Failure, Tightness
from kernelpair.trial import judge
from kernelpair.trial.judge import same_bits, values
from tests.selftest.toy import PAIR as TOY

NAN, INF = math.nan, math.inf
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
ALL_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def wide(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def judged(got: Tensor, truth: Tensor, bound: Tensor | Exact | None, **others: Any) -> list[Failure]:
    return values("out", got, truth, bound, **others)[0]


def kinds(got: Tensor, truth: Tensor, bound: Tensor | Exact | None, **others: Any) -> list[str]:
    return [failure.kind for failure in judged(got, truth, bound, **others)]


# --- within a bound ---


@pytest.mark.parametrize("error", [0.0, 0.25, -0.25])
def test_an_error_within_the_bound_passes(error: float) -> None:
    assert not kinds(torch.tensor([1.0 + error]), wide(1), wide(0.25))


@pytest.mark.parametrize("error", [0.2501, -0.2501, 1e30])
def test_an_error_beyond_the_bound_fails(error: float) -> None:
    (failure,) = judged(torch.tensor([1.0, 1.0 + error]), wide(1, 1), wide(0.25, 0.25))
    assert failure.kind == "value" and "1 of 2 elements" in failure.detail and "[1]" in failure.detail


def test_the_bound_is_that_of_each_element() -> None:
    got = torch.tensor([1.5, 1.5])
    (failure,) = judged(got, wide(1, 1), wide(0.5, 0.4))
    assert [difference.index for difference in failure.differences] == [(1,)]


@pytest.mark.parametrize("got", [NAN, INF, -INF])
@pytest.mark.parametrize("bound", [0.0, 1.0, INF, NAN])
def test_what_is_not_finite_fails_whatever_the_bound(got: float, bound: float) -> None:
    assert kinds(torch.tensor([got]), wide(1), wide(bound)) == ["nonfinite"]


@pytest.mark.parametrize("got", [NAN, -INF, 3.0e38, 0.0])
def test_infinity_is_met_by_itself_alone(got: float) -> None:
    assert not kinds(torch.tensor([INF]), wide(INF), wide(1))
    assert kinds(torch.tensor([got]), wide(INF), wide(1)) == ["value"]


def test_a_nan_in_truth_is_met_by_nothing() -> None:
    assert kinds(torch.tensor([1.0]), wide(NAN), wide(1)) and kinds(torch.tensor([NAN]), wide(NAN), wide(1))


def test_a_bound_that_is_nan_admits_equality_alone() -> None:
    assert not kinds(torch.tensor([1.0]), wide(1), wide(NAN))
    assert kinds(torch.tensor([1.5]), wide(1), wide(NAN)) == ["value"]


def test_the_error_is_taken_in_float64() -> None:
    """In float32 the difference would round to nothing."""
    truth = wide(1 + 2.0**-30)
    assert not kinds(torch.tensor([1.0]), truth, wide(2.0**-30))
    assert kinds(torch.tensor([1.0]), truth, wide(2.0**-31)) == ["value"]


# --- exactly ---


@pytest.mark.parametrize("exact", [None, ROUNDED_ONCE])
def test_exact_means_rounded_once(exact: Exact | None) -> None:
    third = wide(1 / 3)
    assert not kinds(third.bfloat16(), third, exact)
    (failure,) = judged(third.bfloat16() + 2.0**-9, third, exact)
    assert failure.kind == "value" and "must be equal" in failure.detail


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_moved_zero_keeps_its_sign_and_a_computed_one_need_not(dtype: torch.dtype) -> None:
    assert kinds(torch.tensor([-0.0], dtype=dtype), wide(0.0), None) == ["value"]
    assert not kinds(torch.tensor([-0.0], dtype=dtype), wide(-0.0), None)
    assert not kinds(torch.tensor([-0.0], dtype=dtype), wide(0.0), ROUNDED_ONCE)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_payload_of_a_moved_nan_counts(dtype: torch.dtype) -> None:
    nan = torch.tensor([NAN], dtype=dtype)
    other = (nan.view(ALL_BITS[dtype]) ^ 1).view(dtype)
    assert kinds(other, nan, None) == ["value"]
    assert not kinds(other, other.clone(), None)


def test_a_nan_that_went_through_float64_has_no_payload() -> None:
    assert not kinds(torch.tensor([NAN]).neg(), wide(NAN), None)
    assert kinds(torch.tensor([1.0]), wide(NAN), None) == ["value"]
    assert kinds(torch.tensor([NAN]), wide(1), None) == ["nonfinite"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_integers_are_equal_or_wrong(dtype: torch.dtype) -> None:
    truth = torch.tensor([0, 1, 1]).to(dtype)
    assert not kinds(truth.clone(), truth, None)
    (failure,) = judged(torch.tensor([0, 1, 0]).to(dtype), truth, None)
    assert failure.kind == "value" and failure.differences[0].index == (2,)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_bytes_of_eight_bit_floats_compare(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    assert not kinds(every.clone(), every, None)
    (failure,) = judged(every.view(torch.uint8).roll(1).view(dtype), every, None)
    assert failure.detail.startswith("256 of 256")


# --- unwritten, not finite, wrong ---


def test_an_element_that_kept_its_content_is_unwritten() -> None:
    before = torch.tensor([NAN, NAN, NAN, 7.0])
    got = torch.tensor([1.0, NAN, INF, 7.0])
    assert kinds(got, wide(1, 2, 3, 4), wide(0.1, 0.1, 0.1, 0.1), before=before) == ["unwritten", "nonfinite"]


@pytest.mark.parametrize(
    ("old", "other", "found"),
    [
        (2.2, 9.0, ["value"]),  # computed, a little wrong, and by chance what it was
        (2.2, 1.0, ["unwritten"]),  # nothing else is wrong
        (2.2, 1.15, ["unwritten", "value"]),  # nor further off
        (6.0, 9.0, ["unwritten", "value"]),  # too far off for that
    ],
)
def test_a_wrong_element_may_be_the_old_one_by_chance(old: float, other: float, found: list[str]) -> None:
    before = torch.tensor([0.0, old])
    assert kinds(torch.tensor([other, old]), wide(1, 2), wide(0.1, 0.1), before=before) == found


@pytest.mark.parametrize(
    ("truths", "found"),
    [
        ((1.02, 1.02), "value"),  # less than three steps of bfloat16 from what it held
        ((1.02, 1.20), "unwritten"),  # the second is too far off: neither was written
    ],
)
def test_what_is_a_few_steps_of_the_grid_off_may_be_the_old_value(truths: tuple[float, ...], found: str) -> None:
    before = torch.ones(2, dtype=torch.bfloat16)
    assert kinds(before.clone(), wide(*truths), wide(0.005, 0.005), before=before) == [found]
    bytes_before = torch.ones(2, dtype=torch.int8)
    assert kinds(bytes_before.clone(), wide(2, 2), wide(0.5, 0.5), before=bytes_before) == ["unwritten"]


def test_a_computed_nan_is_not_taken_for_poison() -> None:
    poisoned = torch.tensor([0x7FE5A5A5], dtype=torch.int32).view(torch.float32)
    assert kinds(poisoned.clone(), wide(1), wide(1), before=poisoned) == ["unwritten"]
    assert kinds(torch.tensor([NAN]), wide(1), wide(1), before=poisoned) == ["nonfinite"]


def test_old_content_that_is_right_passes() -> None:
    assert not kinds(torch.tensor([2.0]), wide(2), ROUNDED_ONCE, before=torch.tensor([2.0]))


def test_each_kind_is_reported_once_with_its_elements() -> None:
    got, before = torch.tensor([9.0, 8.0, NAN, 0.0, 5.0]), torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    failures = judged(got, wide(1, 2, 3, 4, 5), wide(1, 1, 1, 1, 1), before=before)
    assert {failure.kind: [d.index for d in failure.differences] for failure in failures} == {
        "unwritten": [(3,)],
        "nonfinite": [(2,)],
        "value": [(0,), (1,)],  # the worst first
    }


def test_only_elements_of_the_mask_are_judged() -> None:
    got = torch.tensor([[1.0, NAN], [NAN, 1.0]])
    mask = torch.tensor([[True, False], [False, True]])
    truth, bound = torch.ones(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    assert not kinds(got, truth, bound, mask=mask) and not kinds(got, truth, ROUNDED_ONCE, mask=mask)
    assert kinds(got, truth, bound, mask=~mask) == kinds(got, truth, ROUNDED_ONCE, mask=~mask) == ["nonfinite"]


def test_nothing_to_judge_passes() -> None:
    nothing = torch.empty(0, 3)
    assert values("out", nothing, nothing.double(), nothing.double()) == ([], None)


def test_a_long_list_is_cut() -> None:
    (failure,) = judged(torch.zeros(1000), torch.ones(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64))
    assert "1000 of 1000" in failure.detail and len(failure.differences) == judge.SHOWN


@pytest.mark.parametrize(
    ("got", "truth", "says"),
    [
        (torch.tensor([0.25]), wide(1.5), "0.25 for 1.5,"),
        (torch.tensor([1.0 + 2.0**-23]), wide(1), "1.00000012 for 1,"),  # alike in six digits
        (torch.tensor([66_000_001]), wide(66_000_002), "66000001 for 66000002,"),
        (torch.tensor([0.25]), wide(INF), "0.25 for inf,"),
        (torch.tensor([-0.0]).double(), torch.tensor([0.0]).double(), "-0 for 0,"),
    ],
)
def test_two_numbers_that_differ_are_told_apart(got: torch.Tensor, truth: torch.Tensor, says: str) -> None:
    (failure,) = judged(got, truth, None)
    assert says in failure.detail, failure.detail


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_a_result_that_nobody_wrote_is_told_from_one_that_is_wrong(dtype: torch.dtype) -> None:
    fill = torch.full((1, 8), int(WORKERS["MALLOC_PERTURB_"]) ^ 0xFF, dtype=torch.uint8).view(dtype)
    (failure,) = judged(fill, torch.ones(fill.shape, dtype=torch.float64), None)
    assert failure.detail.endswith("; memory that nobody has written holds this")
    assert not any("nobody" in other.detail for other in judged(-fill, torch.ones(fill.shape, dtype=torch.float64), None))


# --- tightness ---


def test_tightness_says_how_close_an_error_came_and_how_loose_the_bound_is() -> None:
    _, tightness = values("out", torch.tensor([3.0, 4.5]), wide(3, 4), wide(1, 1))
    assert tightness == Tightness(largest=0.5, looseness=pytest.approx(1 / math.sqrt(12.5)))


def test_tightness_looks_at_written_elements_only() -> None:
    mask = torch.tensor([True, False])
    _, tightness = values("out", torch.tensor([1.0, 0.0]), wide(1, 1e9), wide(0.5, 1e9), mask=mask)
    assert tightness == Tightness(largest=0.0, looseness=0.5)


@pytest.mark.parametrize("truth", [(0.0, 0.0), (INF, 1.0)])
def test_no_tightness_where_the_output_has_no_size(truth: tuple[float, float]) -> None:
    assert values("out", torch.tensor(truth), wide(*truth), wide(1, 1)) == ([], None)


# --- bits ---


def test_same_bits() -> None:
    nan = torch.tensor([NAN])
    assert same_bits(nan, nan.clone()) and not same_bits(nan, -nan)
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2)) and not same_bits(torch.zeros(2), torch.zeros(2).int())
    assert same_bits(torch.ones(2, 2).t(), torch.ones(2, 2)) and same_bits(torch.empty(0), torch.empty(0))
    assert same_bits(torch.tensor(1.5), torch.tensor(1.5)) and not same_bits(torch.tensor(True), torch.tensor(False))


# --- memory ---


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(1 << 20)


def placed(arena: Arena, guard: str, **layout: str) -> Placement:
    inputs: Inputs = {"x": torch.ones(2, 3), "out": torch.zeros(3, 3), "work": torch.zeros(5), "n": 2}
    case = Case(layout=layout, guard=guard)  # type: ignore[arg-type]
    return place(TOY, case, settle(TOY, case, inputs), arena)


def change(arena: Arena, placement: Placement, name: str, byte: int) -> None:
    arena.bytes[placement.arguments[name].start + byte] ^= 0x10


def trespasses(arena: Arena, placement: Placement, mask: Tensor | bool = True) -> list[tuple[str, str]]:
    return [(failure.kind, failure.detail) for failure in judge.memory(placement, arena, {"out": mask}, ("work",))]


def test_untouched_memory_passes(arena: Arena) -> None:
    assert not trespasses(arena, placed(arena, "end"))


@pytest.mark.parametrize(("name", "kind"), [("x", "input_changed"), ("out", "untouched"), ("work", "untouched")])
@pytest.mark.parametrize("guard", ["start", "end"])
def test_a_byte_around_a_buffer_is_seen(arena: Arena, name: str, kind: str, guard: str) -> None:
    placement = placed(arena, guard)
    nbytes = placement.arguments[name].sizes[0] * placement.arguments[name].strides[0] * 4
    for byte, where in ((-1, "left of the buffer (byte -1)"), (-9, "left of the buffer (byte -9)")) if guard == "end" else (
        (nbytes, "right of the buffer (byte 0)"),
        (nbytes + 8, "right of the buffer (byte 8)"),
    ):
        placement.restore(arena)
        change(arena, placement, name, byte)
        ((found, detail),) = trespasses(arena, placement)
        assert found == kind and detail == f"1 byte of {name} changed that must not, the first {where}"


def test_a_changed_input_is_seen(arena: Arena) -> None:
    placement = placed(arena, "end")
    change(arena, placement, "x", 13)
    ((kind, detail),) = trespasses(arena, placement)
    assert kind == "input_changed" and "inside the buffer (element 3)" in detail


def test_only_written_elements_may_change(arena: Arena) -> None:
    mask = torch.tensor([[True], [False], [True]])
    placement = placed(arena, "end")
    for element in (0, 1, 2, 6, 7, 8):
        change(arena, placement, "out", 4 * element)
    assert not trespasses(arena, placement, mask)
    change(arena, placement, "out", 4 * 3 + 3)
    ((kind, detail),) = trespasses(arena, placement, mask)
    assert kind == "untouched" and "1 byte of out" in detail and "element 3" in detail


def test_scratch_may_hold_anything(arena: Arena) -> None:
    placement = placed(arena, "end")
    for byte in range(20):
        change(arena, placement, "work", byte)
    assert not trespasses(arena, placement)


@pytest.mark.parametrize("layout", ["padded", "sliced", "offset"])
def test_the_gaps_of_a_layout_may_not_change(arena: Arena, layout: str) -> None:
    placement = placed(arena, "end", out=layout)
    change(arena, placement, "out", -4 if layout == "offset" else 12)
    ((kind, detail),) = trespasses(arena, placement)
    assert kind == "untouched" and "inside the buffer" in detail


def test_every_kind_has_an_explanation() -> None:
    assert all(KINDS.values())
    with pytest.raises(ValueError, match="unknown kind of failure 'odd'"):
        Failure("odd", "", "")


def test_another_shape_is_a_failure_and_no_error() -> None:
    """Also where one would be stretched to the other."""
    wide, narrow = torch.ones(1, 32), torch.ones(1, 1, dtype=torch.float64)
    (failure,) = judge.judged(judge.Compared("out", wide, narrow, torch.zeros_like(narrow)))
    assert (failure.kind, failure.detail) == ("layout", "shape [1, 32], expected [1, 1]")


def test_strides_of_nothing_say_nothing() -> None:
    assert judge.is_contiguous((0, 4), (7, 3)) and not judge.is_contiguous((2, 4), (7, 3))


@pytest.mark.parametrize("exact", [None, ROUNDED_ONCE])
@pytest.mark.parametrize(("dtype", "step"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float8_e4m3fn, 2**-3)])
def test_what_is_just_past_the_middle_is_not_rounded_by_way_of_float32(
    dtype: torch.dtype, step: float, exact: Exact | None
) -> None:
    truth = wide(1 + step / 2 + 2.0**-40, 1 + step * 1.5 - 2.0**-40)
    for sign in (1.0, -1.0):
        assert not kinds((sign * wide(1 + step, 1 + step)).to(dtype), sign * truth, exact)


def test_elements_with_other_bits_are_counted_as_such() -> None:
    got, expected = torch.tensor([0.0, NAN, 1.0]), torch.tensor([-0.0, NAN, 2.0])
    assert judge.different_bits(got, expected) == 2 and judge.different_bits(got, expected[:2]) == 3
