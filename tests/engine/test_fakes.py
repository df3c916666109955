"""Fake implementations are compared with what calls return, and schemas with what they write; operators without a fake
implementation are left alone."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kernelpair.call.fakes import Fakes

NAMES = "kernelpair_fakes"


@pytest.fixture(scope="module")
def ops() -> Iterator[object]:
    """Operators: of these, `of_any_device` would read at address 0 where it is called without data."""
    library = torch.library.Library(NAMES, "DEF")
    returns = {
        "right": ("Tensor", lambda x: x.t().contiguous(), lambda x: x.new_empty(x.shape[::-1])),
        "turned": ("Tensor", lambda x: x.t(), lambda x: x.new_empty(x.shape[::-1])),
        "another_dtype": ("(Tensor, Tensor)", lambda x: (x + 1, x.double()), lambda x: (torch.empty_like(x),) * 2),
        "one_too_few": ("Tensor[]", lambda x: [x + 1, x + 2], lambda x: [x.new_empty(x.shape)]),
        "takes_nothing": ("Tensor", lambda x: x + 1, lambda: None),
        "reads": ("Tensor", lambda x: x.nonzero(), lambda x: x.new_empty((int(x.sum()), 2), dtype=torch.int64)),
    }
    for name, (result, call, fake) in returns.items():
        library.define(f"{name}(Tensor x) -> {result}")
        library.impl(name, call, "CPU")
        torch.library.register_fake(f"{NAMES}::{name}", fake, lib=library)
    library.define("fills(Tensor(a!) x) -> ()")
    library.impl("fills", lambda x: (x.fill_(1), None)[1], "CPU")
    torch.library.register_fake(f"{NAMES}::fills", lambda x: None, lib=library)
    library.define("writes(Tensor x, Tensor(a!) y, Tensor[] z) -> ()")
    library.impl("writes", lambda x, y, z: [each.fill_(2) for each in (x, y, *z)] and None, "CPU")
    torch.library.register_fake(f"{NAMES}::writes", lambda x, y, z: None, lib=library)
    library.define("without(Tensor x) -> Tensor")
    library.impl("without", lambda x: x + 1, "CPU")
    library.define("of_any_device(Tensor x) -> Tensor")
    library.impl("of_any_device", address, "CompositeImplicitAutograd")
    yield getattr(torch.ops, NAMES)
    library._destroy()


def address(x: Tensor) -> Tensor:
    assert x.data_ptr(), "called without data"
    return x + 1


@pytest.mark.parametrize("name", ["right", "reads", "without", "of_any_device"])
def test_nothing_is_said_of_what_is_right_or_unknown(ops: object, name: str) -> None:
    with Fakes() as fakes:
        getattr(ops, name)(torch.ones(2, 3))
        torch.ones(3).cumsum(0)
    assert not fakes.wrong


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("turned", "says float32 [3, 2] with strides [2, 1] where the call returns float32 [3, 2] with strides [1, 3]"),
        ("another_dtype", "of result 1 where the call returns float64"),
        ("one_too_few", "says 1 tensors where the call returns 2"),
        ("takes_nothing", "raises TypeError"),
    ],
)
def test_what_is_wrong_is_said_with_both_sides(ops: object, name: str, says: str) -> None:
    with Fakes() as fakes:
        getattr(ops, name).default(torch.ones(2, 3))
    assert says in fakes.wrong[f"{NAMES}::{name}"]


@pytest.mark.parametrize(
    ("x", "z", "name"),
    [(torch.full((2,), torch.nan), [], "x"), (torch.full((2,), 2.0), [torch.ones(3, dtype=torch.bool), torch.ones(3)], "z")],
)
def test_a_schema_that_is_silent_about_what_is_written_is_told(ops: object, x: Tensor, z: list[Tensor], name: str) -> None:
    with Fakes() as fakes:
        ops.writes.default(x, torch.ones(2), z)  # type: ignore[attr-defined]
    assert fakes.wrong == {f"{NAMES}::writes": f"its schema does not say that it writes {name}"}


def test_what_is_marked_is_not_told_by_another_name(ops: object) -> None:
    pool = torch.ones(4, 3)
    with Fakes() as fakes:
        ops.writes.default(torch.full((2,), 2.0), pool, [pool[1:3, :2], pool[:0]])  # type: ignore[attr-defined]
    assert not fakes.wrong


def test_strides_that_lead_nowhere_do_not_count(ops: object) -> None:
    with Fakes() as fakes:
        ops.turned(torch.ones(1, 3))  # type: ignore[attr-defined]
        ops.turned(torch.ones(0, 3))  # type: ignore[attr-defined]
    assert not fakes.wrong


def test_what_is_asked_is_in_no_trace(ops: object) -> None:
    with Fakes():
        graph = make_fx(lambda x: ops.fills.default(x))(torch.ones(2, 3))  # type: ignore[attr-defined]
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == [f"{NAMES}.fills.default"]
