"""Fake implementations: what an operator says of its results where it is traced, as by torch.compile, and not called; and its
schema, which says what it writes.

One that says another dtype, shape or strides than the call returns makes compiled code wrong where eager code is right. So does a
schema that keeps silent about an argument that is written: a compiler may read it later, or leave the call out. What
`torch.library.register_fake` registers serves the meta device too, and is asked there: fake tensors would load 800 modules more.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

TORCHS_OWN = ("aten", "prim", "prims")
MOST_KEPT = 2**22  # elements of an argument that is copied, to see whether the call writes it
NOT_SAID = RuntimeError  # as of a fake that would have to read elements; NotImplementedError is one, too


class Fakes(TorchFunctionMode):
    """While it is entered, every call of a custom operator is compared with what its fake implementation says, if it has one, and
    with what its schema says; but where a tracer records all that is called, which would then hold what is asked here."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        """Operator -> what is said wrongly, the first time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        asked = isinstance(func, OpOverload) and has_fake(func) and not torch._C._len_torch_dispatch_stack()
        before = list(only_read(func, args, kwargs or {})) if asked else []
        result = func(*args, **(kwargs or {}))
        if asked and (says := difference(func, args, kwargs or {}, result)):
            self.wrong.setdefault(func._schema.name, f"its fake implementation {says}")
        for name, tensor, bits in before:
            if not torch.equal(bits_of(tensor), bits):
                self.wrong.setdefault(func._schema.name, f"its schema does not say that it writes {name}")
        return result


def has_fake(operator: OpOverload) -> bool:
    """Whether a custom operator has an implementation for tensors without data. Others are never called with such tensors: what
    takes every device would read at address 0."""
    return operator.namespace not in TORCHS_OWN and torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta")


def only_read(
    operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, tensor and a copy of its bits for all that the schema does not mark as written; not of what shares memory with
    something that it does mark."""
    arguments = operator._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args)} | dict(kwargs)
    marked = {argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write}
    written = [extent(tensor) for name in marked for tensor in tensors(given.get(name))]
    for name, value in given.items():
        for tensor in tensors(value) if name not in marked else ():
            begin, end = extent(tensor)
            apart = all(end <= first or last <= begin for first, last in written)
            if apart and tensor.is_cpu and tensor.numel() <= MOST_KEPT:
                yield name, tensor, bits_of(tensor)


def extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first byte and behind its last one."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (1 + steps) * tensor.element_size() * (tensor.numel() > 0)


def bits_of(tensor: Tensor) -> Tensor:
    """A copy of its bytes: NaN equals itself."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def difference(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> str:
    """What the fake implementation says of a call otherwise than the call's result is; empty if nothing."""
    args, kwargs = tree_map_only(Tensor, without_data, (args, dict(kwargs)))
    try:
        said = tensors(operator(*args, **kwargs))
    except NOT_SAID:
        return ""
    except Exception as error:  # noqa: BLE001 - somebody else's code
        return f"raises {type(error).__name__}: {error}"
    returned = tensors(result)
    if len(said) != len(returned):
        return f"says {len(said)} tensors where the call returns {len(returned)}"
    for i, (one, other) in enumerate(zip(said, returned)):
        if form(one) != form(other):
            which = f" of result {i}" if len(returned) > 1 else ""
            return f"says {in_words(one)}{which} where the call returns {in_words(other)}"
    return ""


def tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def without_data(tensor: Tensor) -> Tensor:
    """A tensor of its dtype, shape and strides on the meta device."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def form(tensor: Tensor) -> tuple[Any, ...]:
    """Dtype, shape, and the strides that lead to another element."""
    steps = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]
    return tensor.dtype, tuple(tensor.shape), tuple(steps) if tensor.numel() else ()


def in_words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} with strides {list(tensor.stride())}"
