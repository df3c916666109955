"""Ways to call a kernel wrongly that several pairs share. Each returns a `Bad`, or a function that spoils inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs

Spoil = Callable[[Any, Inputs], Inputs | None]
Condition = Callable[[Any], bool]


def always(case: Any) -> bool:
    """The error fits every case."""
    return True


def grown(name: str, dim: int, *against: str, when: Condition = always) -> Bad:
    """One more entry in one dimension; the message may name what it disagrees with instead."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not isinstance(given[name], Tensor) or not when(case):
            return None
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return Bad(spoil, ValueError, (name, *against))


def other_dtype(name: str, *against: str, when: Condition = always) -> Bad:
    """A float dtype that differs from the call's."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not isinstance(given[name], Tensor) or not when(case):
            return None
        return given | {name: given[name].to(torch.float16 if case.dtype == "float32" else torch.float32)}

    return Bad(spoil, TypeError, (name, *against))


def replaced(name: str, value: Any, error: type[Exception], *names: str, when: Condition = always) -> Bad:
    """The argument is `value`."""
    return Bad(lambda case, given: given | {name: value} if when(case) else None, error, names or (name,))


def sparse(name: str, when: Condition = always) -> Bad:
    """Every second element of rows twice as long."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        value = given[name]
        if not isinstance(value, Tensor) or value.shape[-1] < 2 or not value.numel() or not when(case):
            return None
        return given | {name: value.repeat_interleave(2, dim=-1)[..., ::2]}

    return Bad(spoil, ValueError, name)


def one_rank_more(name: str, when: Condition = always) -> Bad:
    """A leading dimension of size 1."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        return given | {name: given[name][None]} if isinstance(given[name], Tensor) and when(case) else None

    return Bad(spoil, ValueError, name)


def no_index(name: str) -> Bad:
    """An index tensor of floats."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        return given | {name: given[name].float()} if given[name] is not None else None

    return Bad(spoil, TypeError, name)


def entry(name: str, pick: Callable[[Any, Inputs], tuple[Any, int] | None], error: type[Exception], *names: str) -> Bad:
    """One entry of an index tensor set to a wrong value: `pick` says which and to what."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        chosen = pick(case, given) if given[name] is not None and given[name].numel() else None
        if chosen is None:
            return None
        where, value = chosen
        wrong = given[name].clone()
        wrong[where] = value
        return given | {name: wrong}

    return Bad(spoil, error, names or (name,))


def aliased(name: str, of: str, when: Condition = always) -> Bad:
    """A mutated argument takes the memory of another one."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        base, value = given[of], given[name]
        if not when(case) or not isinstance(base, Tensor) or not value.numel() or not base.numel():
            return None
        if any(n > m for n, m in zip(value.shape, base.shape)):
            return None
        region = tuple(slice(0, n) for n in value.shape)
        return given | {name: Alias(of, lambda tensor: tensor[region])}

    return Bad(spoil, ValueError, (name, of))


def with_sink(value: float) -> Bad:
    """A sink that is no number to add."""

    def spoil(case: Any, given: Inputs) -> Inputs:
        sinks = torch.zeros(case.heads)
        sinks[-1] = value
        return given | {"sinks": sinks}

    return Bad(spoil, ValueError, "sinks")
