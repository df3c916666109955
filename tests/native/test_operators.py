"""Every operator, discovered: torch's own checks of a custom operator, torch.compile, and the exception classes."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import optimized
from kernelpair.call.place import resolve
from kernelpair.call.values import FLOAT8
from kernelpair.contract.pair import Inputs, Pair, Stepwise
from kernelpair.search.drawing import drawn_cases
from properties import pairs

FEW_AND_MANY = (20, 300)  # cases of each pair until all operators are called: most are in a few
SEED = 1


OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
Call = tuple[tuple[Any, ...], dict[str, Any]]


class OperatorRecorder(TorchDispatchMode):
    """Keeps the arguments of the first call that each of our operators answers, one without float8 rather than one with it."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[str, Call] = {}
        self.float8: dict[str, Call] = {}

    @property
    def calls(self) -> dict[str, Call]:
        return self.float8 | self.plain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func._schema.name.split("::")
        kept = self.float8 if any(map(is_float8, leaves([args, kwargs or {}]))) else self.plain
        wanted = namespace == "kernelpair" and name not in kept
        given = (finite(args), finite(kwargs or {})) if wanted else ((), {})
        result = func(*args, **(kwargs or {}))
        if wanted:
            kept[name] = given
        return result


def is_float8(tensor: Tensor) -> bool:
    """Torch has no arithmetic in these, which opcheck's test of a schema needs."""
    return tensor.dtype in FLOAT8


def leaves(given: Any) -> list[Tensor]:
    found: list[Tensor] = []
    each_tensor(lambda tensor: found.append(tensor) or tensor, given)  # type: ignore[func-returns-value]
    return found


def each_tensor(change: Callable[[Tensor], Tensor], given: Any) -> Any:
    if isinstance(given, dict):
        return {name: each_tensor(change, value) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(each_tensor(change, value) for value in given)
    return change(given) if isinstance(given, Tensor) else given


def copied(given: Any) -> Any:
    return each_tensor(Tensor.clone, given)


def finite(given: Any) -> Any:
    """Copies without poison: opcheck holds NaN unequal to itself."""

    def change(value: Tensor) -> Tensor:
        if value.dtype == torch.uint8:
            return value & 0x77  # as codes of float8 none of them is NaN
        if not value.is_floating_point():
            return value.clone()
        return value.double().nan_to_num(nan=1.0, posinf=1.0, neginf=1.0).to(value.dtype)

    return each_tensor(change, given)


def arguments(pair: Pair, examples: int) -> Iterator[Inputs]:
    """Those of cases in float32 whose first tensors are not empty, of so many that are drawn."""
    for case in drawn_cases(pair.cases.strategy, examples, SEED):
        if case.dtype == "float32":
            inputs = pair.cases.inputs(case)
            if all(tensor.numel() for tensor in first_tensors(inputs)):
                yield inputs


def first_tensors(inputs: Inputs) -> list[Tensor]:
    return [value for value in inputs.values() if isinstance(value, Tensor)][:2]


def sample(pair: Pair) -> Inputs:
    """Arguments of a case whose first tensors have at least two of everything, where the pair has one; else of its plainest."""
    large = (
        inputs for examples in FEW_AND_MANY for inputs in arguments(pair, examples)
        if all(min(tensor.shape, default=2) > 1 for tensor in first_tensors(inputs))
    )  # fmt: skip
    return resolve(next(large, None) or pair.cases.inputs(pair.cases.type()))


@cache
def recorded() -> dict[str, Call]:
    """Operator -> the arguments with which the pairs' kernels call it."""
    recorder = OperatorRecorder()

    def call(pair: Pair, inputs: Inputs) -> None:
        with recorder:
            pair.optimized(**inputs)

    for pair in pairs().values():
        call(pair, sample(pair))
    for examples, pair in product(FEW_AND_MANY, pairs().values()):
        if isinstance(pair.truth, Stepwise):
            continue  # a life of many calls, of operators that are pairs of their own
        for inputs in arguments(pair, examples):
            if set(optimized.operators()) <= set(recorder.calls):
                return recorder.calls
            call(pair, resolve(inputs))
    return recorder.calls


def call_of(operator: str) -> Call:
    """Fresh copies of sample arguments of an operator."""
    if operator not in recorded():
        pytest.fail(f"no pair's sample case calls {operator}")
    args, kwargs = recorded()[operator]
    return copied(args), copied(kwargs)


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for entry in result for leaf in tensors(entry)] if isinstance(result, (list, tuple)) else []


def assert_same_bits(one: Any, other: Any) -> None:
    assert tensors(one), "nothing to compare"
    for left, right in zip(tensors(one), tensors(other), strict=True):
        assert left.shape == right.shape and left.dtype == right.dtype
        assert not left.numel() or torch.equal(left.flatten().view(torch.uint8), right.flatten().view(torch.uint8))


@pytest.mark.parametrize("name", optimized.operators())
def test_opcheck(name: str) -> None:
    args, kwargs = call_of(name)
    tests = [each for each in OPCHECKS if each != "test_schema" or not any(map(is_float8, leaves([args, kwargs])))]
    torch.library.opcheck(optimized.operator(name).raw, args, kwargs, test_utils=tests)


@pytest.mark.parametrize("name", optimized.operators())
def test_compiles_into_one_graph(name: str) -> None:
    torch._dynamo.reset()  # each operator its own compilations: they count against one limit
    raw = optimized.operator(name).raw
    compiled = torch.compile(
        lambda args, kwargs: raw(*args, **kwargs), fullgraph=True, backend="aot_eager", dynamic=True
    )
    eager, graph = call_of(name), call_of(name)
    results = raw(*eager[0], **eager[1]), compiled(*graph)
    if not tensors(results[0]):
        assert results[0] == results[1]
    assert_same_bits([results[0], *eager[0], *eager[1].values()], [results[1], *graph[0], *graph[1].values()])


def test_inductor_runs_an_operator() -> None:
    raw = optimized.operator("packed_linear").raw
    x, *others = call_of("packed_linear")[0]
    compiled = torch.compile(lambda x: raw(x + 0, *others) * 2, fullgraph=True)
    assert_same_bits(compiled(x), raw(x, *others) * 2)


def test_wrong_types_are_type_errors() -> None:
    store = optimized.operator("store_cache")
    row, cache, index = torch.ones(1, 1, 4), torch.zeros(2, 1, 4), torch.tensor([0])
    for call in (
        lambda: store(row, row, cache, 3, index),
        lambda: store(row, row, cache),
        lambda: store(row, row, cache, cache.clone(), index, pad_slot="x"),
        lambda: store(row, row, cache, cache.clone(), index, pad=1),
        lambda: store(row, row, cache, cache.clone(), index, None, None),
        lambda: store(row.double(), row, cache, cache.clone(), index),
    ):
        with pytest.raises(TypeError):
            call()


def test_none_is_no_bool() -> None:
    """torch takes it for False."""
    for name, call in (
        ("symmetric", lambda: optimized.operator("quantize_rows_int8")(torch.ones(1, 3), None)),
        ("renormalize", lambda: optimized.operator("topk_gating")(torch.ones(1, 8), 2, renormalize=None)),
    ):
        with pytest.raises(TypeError, match=f"{name} must be a bool, got None"):
            call()


def test_a_raw_operator_says_the_same_as_a_runtime_error() -> None:
    row, cache = torch.ones(1, 1, 4), torch.zeros(2, 1, 4)
    with pytest.raises(RuntimeError, match=r"^IndexError: store_cache: indices\[0\] = 2 is outside \[0, 2\)"):
        torch.ops.kernelpair.store_cache(row, row, cache, cache.clone(), torch.tensor([2]))


def test_an_unknown_operator_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"no operator 'conv3d'; the operators are .*store_cache"):
        optimized.operator("conv3d")


def test_a_tensor_on_the_meta_device_among_others_is_refused() -> None:
    """torch would ask the fake implementation, which writes nothing, and the caller would not be told."""
    rows, cache, indices = torch.ones(2, 1, 2), torch.zeros(4, 1, 2), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="indices must be on the CPU"):
        optimized.operator("store_cache")(rows, rows, cache, cache.clone(), indices.to("meta"))
    assert not cache.any()
    everywhere = [tensor.to("meta") for tensor in (rows, rows, cache, cache, indices)]
    assert optimized.operator("store_cache")(*everywhere) is None
