"""Where the arguments of a case lie: in every layout, values survive, nothing overlaps, and what lies around them is known."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelpair.call.layout import DENSE_LAST, EXPANDED, FAR, FAR_COLUMNS, FLAT, FUSED, LAYOUTS, SHARED, Layout
from kernelpair.call.memory import CANARY, PAGE, Arena, OutOfMemory, Placed
from kernelpair.call.place import Placement, at_the_end, element_mask, over, place, resolve, settle
from kernelpair.call.values import poison
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Alias, Inputs
from kernelpair.trial import judge
from tests.selftest.toy import PAIR as TOY

SIZES = (0, 1, 2, 3)
SHAPES = [shape for rank in range(1, 5) for shape in product(SIZES, repeat=rank) if rank < 3 or shape.count(0) < 2]
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
PAIR = replace(TOY, reference=lambda **any: None, signature=replace(TOY.signature, fused=(("a", "b"),), indices=("i",)))
CAPACITY = 1 << 22
NEAR = [name for name in LAYOUTS if name not in (FAR, FAR_COLUMNS)]  # the others take as much memory as they reach


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(CAPACITY)


def numbered(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Every element another number, as far as the dtype goes."""
    return torch.arange(1, 1 + int(np.prod(shape))).to(dtype).reshape(shape)


def placed(arena: Arena, inputs: Inputs, **case: Any) -> Placement:
    of = Case(**case)
    return place(PAIR, of, settle(PAIR, of, inputs), arena)


def view(arena: Arena, argument: Placed) -> Tensor:
    return arena.tensor(argument.dtype, argument.start, argument.sizes, argument.strides)


def addresses(shape: tuple[int, ...], layout: Layout) -> list[int]:
    indices = product(*(range(size) for size in shape))
    return [layout.offset + sum(i * stride for i, stride in zip(index, layout.strides)) for index in indices]


def one_row_along(name: str, shape: tuple[int, ...]) -> int | None:
    """The dimension along which the layout has one row for all."""
    if name == SHARED and len(shape) > 2:
        return len(shape) - 2
    if name == FLAT and len(shape) > 1:
        return len(shape) - 1
    return 0 if name == EXPANDED else None


@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("shape", [(), *SHAPES[::7]], ids=str)
def test_a_tensor_of_this_layout_can_be_made(name: str, shape: tuple[int, ...]) -> None:
    layout = LAYOUTS[name](shape)
    assert torch.empty(layout.total).as_strided(shape, layout.strides, layout.offset).shape == shape


@pytest.mark.parametrize("name", NEAR)
def test_elements_stay_in_the_buffer_and_apart(name: str) -> None:
    for shape in SHAPES:
        layout = LAYOUTS[name](shape)
        assert len(layout.strides) == len(shape) and min(layout.strides) >= 0
        found = addresses(shape, layout)
        dim = one_row_along(name, shape)
        equal = 1 if dim is None else max(shape[dim], 1)
        assert len(set(found)) == len(found) // equal, shape
        assert all(0 <= address < layout.total for address in found), shape


@pytest.mark.parametrize("name", DENSE_LAST)
def test_the_last_dimension_stays_dense(name: str) -> None:
    for shape in SHAPES:
        assert shape[-1] < 2 or LAYOUTS[name](shape).strides[-1] == 1


def test_heads_side_by_side_have_tokens_apart() -> None:
    token, *within = LAYOUTS["apart"]((3, 2, 4)).strides
    assert within == [4, 1] and token > 8


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "dense"])
def test_a_layout_differs_from_dense(name: str) -> None:
    shape = (2, 3, 4)
    assert LAYOUTS[name](shape) != LAYOUTS["dense"](shape)


@pytest.mark.parametrize("guard", ["start", "end"])
@pytest.mark.parametrize("name", NEAR)
def test_values_survive_among_poison_and_canaries(arena: Arena, name: str, guard: str) -> None:
    for shape, dtype in product(SHAPES[::5], DTYPES):
        value = numbered(shape, dtype)
        placement = placed(arena, {"x": value}, layout={"x": name}, guard=guard)
        argument, (buffer,) = placement.arguments["x"], placement.buffers
        dim = one_row_along(name, shape)
        expected = value if dim is None else value.narrow(dim, 0, min(shape[dim], 1)).expand(shape)
        assert torch.equal(view(arena, argument), expected)
        assert torch.equal(placement.logical["x"], expected)

        mine = element_mask(buffer, argument, True)
        block = arena.bytes[buffer.block.first : buffer.block.last]
        left, right = buffer.block.start - buffer.block.first, buffer.block.start + buffer.block.nbytes - buffer.block.first
        assert block[:left].tobytes() == CANARY * left and block[right:].tobytes() == CANARY * (len(block) - right)
        gaps = poison("nan", (buffer.block.nbytes // dtype.itemsize,), dtype).view(torch.uint8).numpy()
        assert (block[left:right] == gaps)[~mine[left:right]].all()
        assert block.tobytes() == buffer.before


def far_apart(arena: Arena, shape: tuple[int, ...] = (3, 2, 5), layout: str = FAR) -> Placement:
    return placed(arena, {"x": numbered(shape, torch.bfloat16), "y": torch.ones(1)}, layout={"x": layout})


def test_rows_of_a_pool_may_lie_gigabytes_apart() -> None:
    arena = Arena.create()
    placement = far_apart(arena)
    argument, buffer = placement.arguments["x"], placement.buffers[0]
    assert argument.strides[0] * 2 > 2**31 and buffer.has_gaps
    assert torch.equal(view(arena, argument), numbered((3, 2, 5), torch.bfloat16))
    assert sum(last - first for first, last in buffer.pieces) <= 6 * PAGE
    taken = arena.resident(buffer.block.first, buffer.block.last)
    assert sum(last - first for first, last in taken) <= 8 * PAGE
    assert not judge.memory(placement, arena, {}, ())
    mask = torch.tensor([True, False, True])[:, None, None]
    assert element_mask(buffer, argument, mask).sum() == 2 * 2 * 5 * 2
    view(arena, argument)[1] = 7
    (failure,) = judge.memory(placement, arena, {"x": mask}, ())
    assert failure.kind == "untouched" and "20 bytes around the rows of x" in failure.detail
    placement.restore(arena)
    assert not judge.memory(placement, arena, {"x": mask}, ())
    arena.bytes[buffer.block.first + 2**30] = 1
    (failure,) = judge.memory(placement, arena, {}, ())
    assert failure.kind == "input_changed" and "between the rows of x" in failure.detail


@pytest.mark.parametrize("shape", [(3, 2, 5), (3, 300), (2,)])
def test_columns_may_lie_gigabytes_apart(shape: tuple[int, ...]) -> None:
    arena = Arena.create()
    placement = far_apart(arena, shape, FAR_COLUMNS)
    argument, buffer = placement.arguments["x"], placement.buffers[0]
    assert argument.strides[-1] * (shape[-1] - 1) > 2**31 and buffer.has_gaps
    assert torch.equal(view(arena, argument), numbered(shape, torch.bfloat16))
    assert sum(last - first for first, last in buffer.pieces) <= 2 * shape[-1] * PAGE
    assert not judge.memory(placement, arena, {}, ())
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 1] = False
    view(arena, argument)[..., 1] = 7
    (failure,) = judge.memory(placement, arena, {"x": mask}, ())
    assert failure.kind == "untouched" and "around the rows of x" in failure.detail
    placement.restore(arena)
    assert not judge.memory(placement, arena, {"x": mask}, ())


@pytest.mark.parametrize("shape", [(5000,), (50, 100), (2, 3, 900)])
@pytest.mark.parametrize("layout", ["dense", "padded"])
def test_what_is_long_and_has_no_wide_gaps_is_one_piece(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], layout: str
) -> None:
    """A row for each of half a billion bytes would take all of a machine's memory."""
    monkeypatch.setattr("kernelpair.call.place.GAPS", 4096)
    (buffer, _) = far_apart(arena, shape, layout).buffers
    assert len(buffer.pieces) == 1


def test_one_row_is_not_far_from_itself(arena: Arena) -> None:
    assert not far_apart(arena, (1, 2, 5)).buffers[0].has_gaps
    for columns in (1, 301, 0):
        assert not far_apart(arena, (3, columns), FAR_COLUMNS).buffers[0].has_gaps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 3, 511, 512, 513])
def test_a_buffer_touches_its_guard_page(arena: Arena, dtype: torch.dtype, length: int) -> None:
    for guard in ("start", "end"):
        placement = placed(arena, {"x": numbered((length,), dtype), "y": numbered((2,))}, guard=guard)
        for buffer in placement.buffers:
            begin, end = buffer.block.start, buffer.block.start + buffer.block.nbytes
            assert (begin if guard == "start" else end) % PAGE == 0
            assert (begin - PAGE if guard == "start" else end) in placement.guards
            assert {buffer.block.first - PAGE, buffer.block.last} <= set(placement.guards)
        assert arena.used > max(placement.guards)


@pytest.mark.parametrize("kind", ["nan", "outlier"])
def test_gaps_hold_the_poison_that_the_case_names(arena: Arena, kind: str) -> None:
    argument = placed(arena, {"x": torch.ones(2, 3)}, layout={"x": "padded"}, poison=kind).arguments["x"]
    gap = arena.tensor(torch.float32, argument.start + 3 * 4, (5,), (1,))
    assert bool(gap.isnan().all()) if kind == "nan" else gap.tolist() == [3.0e4] * 5


def test_the_halves_of_a_fused_buffer_take_turns(arena: Arena) -> None:
    a, b = numbered((2, 2, 3)), -numbered((2, 2, 5))
    placement = placed(arena, {"a": a, "b": b}, layout={"a": FUSED})
    (buffer,) = placement.buffers
    joint = arena.tensor(torch.float32, buffer.block.start, (2, 2, 8), (16, 8, 1))
    assert torch.equal(joint, torch.cat([a, b], dim=-1))
    assert torch.equal(view(arena, placement.arguments["a"]), a) and torch.equal(view(arena, placement.arguments["b"]), b)
    both = [element_mask(buffer, placement.arguments[name], True) for name in "ab"]
    assert not (both[0] & both[1]).any() and both[0].sum() + both[1].sum() == buffer.block.nbytes


def test_one_row_for_all_heads_stands_beside_the_first_of_them(arena: Arena) -> None:
    a, b = numbered((2, 2, 3)), -numbered((2, 2, 5))
    placement = placed(arena, {"a": a, "b": b}, layout={"a": FUSED, "b": SHARED})
    (buffer,) = placement.buffers
    joint = arena.tensor(torch.float32, buffer.block.start, (2, 2, 8), (16, 8, 1))
    assert torch.equal(joint[:, 0], torch.cat([a[:, 0], b[:, 0]], dim=-1))
    assert torch.equal(joint[:, 1, :3], a[:, 1]) and bool(joint[:, 1, 3:].isnan().all())
    assert placement.arguments["b"].strides == (16, 0, 1)
    assert torch.equal(view(arena, placement.arguments["b"]), b[:, :1].expand(b.shape))


def test_either_half_may_come_first(arena: Arena) -> None:
    a, b = numbered((2, 3)), -numbered((2, 5))
    both = replace(PAIR, signature=replace(PAIR.signature, fused=(("a", "b"), ("b", "a"))))
    for leader, joint in (("a", [a, b]), ("b", [b, a])):
        case = Case(layout={leader: FUSED})
        placement = place(both, case, settle(both, case, {"a": a, "b": b}), arena)
        (buffer,) = placement.buffers
        assert torch.equal(arena.tensor(torch.float32, buffer.block.start, (2, 8), (8, 1)), torch.cat(joint, dim=-1))
        assert torch.equal(view(arena, placement.arguments["a"]), a)


NO_PARTNERS = {"none": None, "dtype": torch.ones(2, 2, 5, dtype=torch.float64), "rows": torch.ones(3, 2, 5)}


@pytest.mark.parametrize("b", NO_PARTNERS.values(), ids=NO_PARTNERS)
def test_what_cannot_be_fused_lies_by_itself(arena: Arena, b: Tensor | None) -> None:
    placement = placed(arena, {"a": torch.ones(2, 2, 3), "b": b}, layout={"a": FUSED})
    assert len(placement.buffers) == (1 if b is None else 2)


def test_a_half_of_no_width_can_be_fused(arena: Arena) -> None:
    placement = placed(arena, {"a": torch.ones(2, 2, 0), "b": numbered((2, 2, 3))}, layout={"a": FUSED})
    assert torch.equal(view(arena, placement.arguments["b"]), numbered((2, 2, 3)))


@pytest.mark.parametrize("layout", DENSE_LAST)
def test_an_alias_is_a_view_of_what_was_placed(arena: Arena, layout: str) -> None:
    inputs: Inputs = {"a": numbered((3, 2, 4)), "b": Alias("a", lambda tensor: tensor[1:, :, 1:3])}
    placement = placed(arena, inputs, layout={"a": layout})
    assert torch.equal(view(arena, placement.arguments["b"]), inputs["a"][1:, :, 1:3])
    assert torch.equal(resolve(inputs)["b"], placement.logical["b"])
    assert len(placement.buffers) == 1


@pytest.mark.parametrize("guard", ["end", "start"])
def test_an_alias_may_begin_in_the_last_element_and_reach_behind(arena: Arena, guard: str) -> None:
    memory = numbered((2, 8))
    inputs: Inputs = {"a": memory.flatten()[:5], "b": Alias("a", lambda tensor: at_the_end(tensor, (4,), torch.float32), 3)}
    placement = placed(arena, inputs, guard=guard)
    assert torch.equal(view(arena, placement.arguments["b"]), memory.flatten()[4:8])
    assert placement.arguments["b"].start == placement.arguments["a"].start + 4 * 4
    assert torch.equal(placement.logical["b"], memory.flatten()[4:8])
    assert len(placement.buffers) == 1


@pytest.mark.parametrize("last", [False, True])
def test_nothing_lies_over_the_gaps_between_rows(last: bool) -> None:
    inputs: Inputs = {"a": numbered((2, 8)), "b": Alias("a", lambda tensor: over(tensor, (4,), torch.float32, last))}
    with pytest.raises(ValueError, match=r"\[4\] of torch.float32 does not fit over \[2, 8\]"):
        placed(Arena.create(), inputs, layout={"a": FAR})


def test_index_tensors_take_the_width_that_the_case_says(arena: Arena) -> None:
    inputs = {"i": torch.arange(3, dtype=torch.int32), "x": torch.arange(3)}
    assert placed(arena, inputs).arguments["i"].dtype == torch.int64
    placement = placed(arena, inputs, int32=("i", "x"))
    assert placement.arguments["i"].dtype == torch.int32
    assert placement.arguments["x"].dtype == torch.int64  # no index argument of the pair


def test_a_wrong_call_keeps_its_strides(arena: Arena) -> None:
    value = numbered((2, 6))[:, ::2]
    placement = place(PAIR, Case(), settle(PAIR, Case(), {"x": value}, keep_strides=True), arena)
    assert placement.arguments["x"].strides == (6, 2)
    assert torch.equal(view(arena, placement.arguments["x"]), value)


def test_plain_values_pass_through(arena: Arena) -> None:
    placement = placed(arena, {"scale": 0.5, "none": None, "x": torch.ones(1)})
    assert placement.arguments["scale"] == 0.5 and placement.arguments["none"] is None


def test_the_mask_of_elements_is_that_of_their_bytes(arena: Arena) -> None:
    mask = torch.tensor([[True], [False]])
    placement = placed(arena, {"x": numbered((2, 3))}, layout={"x": "padded"}, guard="start")
    allowed = element_mask(placement.buffers[0], placement.arguments["x"], mask)
    assert np.flatnonzero(allowed).tolist() == list(range(12))


def test_restore_brings_every_byte_back(arena: Arena) -> None:
    placement = placed(arena, {"x": numbered((2, 3)), "y": numbered((4,))}, layout={"x": "sliced"})
    before = arena.bytes[: arena.used].copy()
    for buffer in placement.buffers:
        arena.bytes[buffer.block.first : buffer.block.last] ^= 0xFF
    placement.restore(arena)
    assert np.array_equal(arena.bytes[: arena.used], before)


def test_the_same_case_is_placed_alike_again(arena: Arena) -> None:
    inputs = {"x": numbered((2, 3)), "y": numbered((4,))}
    first = placed(arena, inputs, layout={"x": "sliced"})
    assert placed(arena, inputs, layout={"x": "sliced"}).arguments == first.arguments


def test_more_than_the_arena_holds_is_an_error(arena: Arena) -> None:
    with pytest.raises(OutOfMemory, match="more than 4 MiB"):
        placed(arena, {"x": torch.empty(CAPACITY)})


def test_an_unknown_layout_is_an_error(arena: Arena) -> None:
    with pytest.raises(ValueError, match="unknown layout 'zigzag'"):
        placed(arena, {"x": torch.ones(1)}, layout={"x": "zigzag"})
