"""Ways to call a kernel wrongly that several pairs share. Each returns a `WrongCall` whose inputs are those of a valid case
except for one thing. A case is left out if it has no such argument, or if `when` is false for it.

A message may also name any of `against`: where two arguments disagree, either may be named. So may that of another error of the
same class that the call has as well and cannot be without: of several a kernel says any.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Alias, Inputs, WrongCall

Make = Callable[[Any, Inputs], Inputs | None]
Condition = Callable[[Any], bool]
Change = Callable[[Tensor], Tensor | None]
Pick = Callable[[Any, Inputs], tuple[Any, Any] | None]
Rows = Callable[[Any, Inputs], list[int]]
NAN, INF = float("nan"), float("inf")
NO_CAPS = (-1.0, -1e-6, INF, NAN, 2.0**-150, 2.0**128 - 2.0**103)  # the last: float32 rounds them to 0 and to infinity
NO_SCALES = (0.0, *NO_CAPS)  # of what is to be finite and above 0 in float32
NEXT_TO_0 = 2.0**-149  # the least number of float32, by which nothing can be divided
WRAPPED_FROM = 2**30  # an index from here on is wrong by itself, not by lying just behind its pool


def always(case: Any) -> bool:
    """The error is possible in every case."""
    return True


def made(make: Make, error: type[Exception], *names: str, when: Condition = always) -> WrongCall:
    """Any wrong inputs, of cases for which `when` holds."""
    return WrongCall(lambda case, given: make(case, given) if when(case) else None, error, names)


def setting(**values: Any) -> Make:
    """Arguments replaced by these values."""
    return lambda case, given: given | values


def changing(name: str, change: Change) -> Make:
    """A tensor replaced by what `change` makes of it; None: there is no room for the error."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        value = given.get(name)
        wrong = change(value) if isinstance(value, Tensor) else None
        return None if wrong is None else given | {name: wrong}

    return make


def larger(dim: int) -> Callable[[Tensor], Tensor]:
    """One more entry in one dimension."""

    def grow(value: Tensor) -> Tensor:
        shape = list(value.shape)
        shape[dim] += 1
        return value.new_zeros(shape)

    return grow


def other_float(value: Tensor) -> Tensor:
    """Of a float dtype that differs from the tensor's own; of two that do, half of the shapes have one."""
    others = [dtype for dtype in (torch.float32, torch.float16, torch.bfloat16) if dtype != value.dtype]
    return torch.zeros(value.shape, dtype=others[sum(value.shape) % 2])


def changed(name: str, change: Change, error: type[Exception], *against: str, when: Condition = always) -> WrongCall:
    """A tensor replaced by what `change` makes of it."""
    return made(changing(name, change), error, name, *against, when=when)


def grown(name: str, dim: int, *against: str, when: Condition = always) -> WrongCall:
    """One more entry in one dimension."""
    return changed(name, larger(dim), ValueError, *against, when=when)


def cast(name: str, dtype: torch.dtype, *against: str, when: Condition = always) -> WrongCall:
    """A dtype that the argument may not have."""

    def to(value: Tensor) -> Tensor | None:
        return None if value.dtype == dtype else torch.zeros(value.shape, dtype=dtype)

    return changed(name, to, TypeError, *against, when=when)


def beside_wide(call: WrongCall, *parameters: str) -> WrongCall:
    """The same with these parameters, which have the call's dtype or float32, in float32, which is right whatever the others
    have: beside a dtype that is none of a call they would be wrong as well, and a kernel might say that first."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        wrong = call.make(case, given)
        return wrong and wrong | {name: wrong[name].float() for name in parameters if isinstance(wrong.get(name), Tensor)}

    return replace(call, make=make)


def all_integers(*names: str, when: Condition = always) -> WrongCall:
    """All of these arguments, as far as they are given: they agree in their dtype, but it is one of integers."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        tensors = {name: value for name in names if isinstance(value := given.get(name), Tensor)}
        return given | {name: torch.zeros(value.shape, dtype=torch.int32) for name, value in tensors.items()} if tensors else None

    return made(make, TypeError, *names, when=when)


def other_dtype(name: str, *against: str, when: Condition = always) -> WrongCall:
    """A float dtype that differs from the argument's own."""
    return changed(name, other_float, TypeError, *against, when=when)


def other_half(name: str, *against: str, when: Condition = always) -> WrongCall:
    """A parameter that may be in float32, in a dtype of 16 bits that is not the call's."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        value = given.get(name)
        dtype = torch.bfloat16 if case.dtype == "float16" else torch.float16
        return given | {name: torch.zeros(value.shape, dtype=dtype)} if isinstance(value, Tensor) else None

    return made(make, TypeError, name, *against, when=when)


def no_index(name: str, when: Condition = always) -> WrongCall:
    """An index tensor of floats."""
    return cast(name, torch.float32, when=when)


def one_rank_more(name: str, when: Condition = always) -> WrongCall:
    """A leading dimension of size 1."""
    return changed(name, lambda value: value[None], ValueError, when=when)


def sparse(name: str, *against: str, when: Condition = always) -> WrongCall:
    """Every second element of rows twice as long."""

    def spread(value: Tensor) -> Tensor | None:
        room = value.shape[-1] > 1 and value.numel()
        return value.repeat_interleave(2, dim=-1)[..., ::2] if room else None

    return changed(name, spread, ValueError, *against, when=when)


def with_gaps(name: str, when: Condition = always) -> WrongCall:
    """Every second part of a tensor twice as long in its first dimension of more than one."""

    def spread(value: Tensor) -> Tensor | None:
        dim = next((dim for dim, size in enumerate(value.shape) if size > 1), None)
        if dim is None or not value.numel():
            return None
        return value.repeat_interleave(2, dim).unflatten(dim, (-1, 2)).select(dim + 1, 0)

    return changed(name, spread, ValueError, when=when)


def self_overlapping(*names: str, when: Condition = always) -> WrongCall:
    """One of these mutated arguments has rows that all lie in the memory of its first, or each begins in the last element of the
    one before."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        name = names[case.seed // 2 % len(names)]
        value = given.get(name)
        if not isinstance(value, Tensor) or len(value) < 2 or not value.numel():
            return None
        row, strides = value[0].numel(), list(value.stride())
        if row < 2 or not value.is_contiguous() or not case.seed % 2:
            return given | {name: value[:1].expand(value.shape)}
        strides[0] = row - 1
        memory = value.new_zeros((len(value) - 1) * (row - 1) + row)
        return given | {name: memory.as_strided(value.shape, strides)}

    return made(make, ValueError, *names, when=when)


def replaced(name: str, value: Any, error: type[Exception], *names: str, when: Condition = always) -> WrongCall:
    """The argument is `value`."""
    return made(setting(**{name: value}), error, *(names or (name,)), when=when)


def replaced_each(name: str, values: Iterable[Any], error: type[Exception] = ValueError) -> dict[str, WrongCall]:
    """The argument is each of these values, as `name_value`."""
    return {f"{name}_{value}": replaced(name, value, error) for value in values}


def one_entry(name: str, pick: Pick) -> Make:
    """One entry of an index tensor set to a wrong value: `pick` says which and to what."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        value = given.get(name)
        chosen = pick(case, given) if isinstance(value, Tensor) and value.numel() else None
        if chosen is None:
            return None
        where, wrong_entry = chosen
        wide = isinstance(wrong_entry, int) and wrong_entry >= 2**31
        wrong = value.to(torch.int64 if wide else value.dtype, copy=True)  # type: ignore[union-attr]
        wrong[where] = wrong_entry
        return given | {name: wrong}

    return make


def entry(name: str, pick: Pick, error: type[Exception], *names: str, when: Condition = always) -> WrongCall:
    """One entry of an index tensor set to a wrong value; far outside of a range at times to 2^32 more than the right one, which
    32 bits do not show."""

    def wrapped(case: Any, given: Inputs) -> tuple[Any, Any] | None:
        chosen = pick(case, given)
        if chosen is None or error is not IndexError or chosen[1] < WRAPPED_FROM or name in case.int32 or case.seed % 2:
            return chosen
        return chosen[0], int(given[name][chosen[0]]) + 2**32

    return made(one_entry(name, wrapped), error, *(names or (name,)), when=when)


def anywhere(name: str, *values: float) -> WrongCall:
    """One entry of a matrix, wherever it stands, set to one of these values."""

    def pick(case: Any, given: Inputs) -> tuple[tuple[int, int], float]:
        rows, columns = given[name].shape
        return divmod(any_of(case, range(rows * columns)), columns), values[case.seed // 2 % len(values)]

    return entry(name, pick, ValueError)


def beyond_32_bits(
    name: str, error: type[Exception], *against: str, live: Callable[[Any], Sequence[int]] | None = None, when: Condition = always
) -> WrongCall:
    """One entry, of those that are looked at, is larger by 2^32, which 32 bits do not show, or so large that 64 bits do not show
    the sum of it and any other."""

    def pick(case: Any, given: Inputs) -> tuple[int, int] | None:
        places = range(len(given[name])) if live is None else live(case)
        if name in case.int32 or not places:
            return None
        place = any_of(case, places)
        return place, 2**63 - 1 if case.seed // 2 % 2 else int(given[name][place]) + 2**32

    return entry(name, pick, error, name, *against, when=when)


def falling(name: str, *against: str, when: Condition = always) -> WrongCall:
    """An offset, any but the first, is less than the one before it."""

    def pick(case: Any, given: Inputs) -> tuple[int, int] | None:
        if len(given[name]) < 2:
            return None
        place = any_of(case, range(1, len(given[name])))
        return place, int(given[name][place - 1]) - 1

    return entry(name, pick, ValueError, name, *against, when=when)


def moved_to(name: str, at: int, value: Callable[[Inputs], int]) -> WrongCall:
    """All offsets are moved by as much as one of them, the first or the last, needs to be this: every request has as many tokens
    as before, which other arguments have room for."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        offsets = given.get(name)
        if not isinstance(offsets, Tensor) or not len(offsets):
            return None
        return given | {name: offsets + (value(given) - int(offsets[at]))}

    return made(make, ValueError, name)


def any_of(case: Any, places: Sequence[Any]) -> Any:
    """One of several places that may be made wrong: the first, the last or another."""
    return places[(0, -1, case.seed // 3 % len(places))[case.seed % 3]]


def any_column(case: Any, runs: Sequence[tuple[int, range]]) -> tuple[int, int] | None:
    """An entry of a table, of those that are looked at, a run of columns for each row: an end of some run or any entry of it."""
    runs = [(row, columns) for row, columns in runs if columns]
    if runs and case.seed // 5 % 3:
        row, columns = any_of(case, runs)
        return row, columns[case.seed // 7 % len(columns)]
    ends = [(row, end) for row, columns in runs for end in (columns[0], columns[-1])]
    return any_of(case, ends) if ends else None


def slot(name: str, live: Rows, value: int, size: Callable[[Inputs], int] | None = None) -> WrongCall:
    """A slot outside of its pool in one of the `live` rows: `value`, behind the pool's `size` if that is given. A negative one is
    not the call's pad."""

    def pick(case: Any, given: Inputs) -> tuple[int, int] | None:
        rows = live(case, given)
        if not rows:
            return None
        return any_of(case, rows), unlike_pad(given, value) if value < 0 else value + (size(given) if size is not None else 0)

    return entry(name, pick, IndexError)


def all_negative(name: str, live: Rows) -> WrongCall:
    """The slots of several rows all are -1, as of a batch of pads, which they are not: the call has another pad or none."""

    def pick(case: Any, given: Inputs) -> tuple[list[int], int] | None:
        rows = list(live(case, given))
        return (rows, -1) if 1 < len(rows) == len(given[name]) and given.get("pad_slot") != -1 else None

    return entry(name, pick, IndexError)


def unlike_pad(given: Inputs, value: int) -> int:
    """A negative number: this one, or where it is the call's pad the one below."""
    return value - int(value == given.get("pad_slot"))


def slot_twice(name: str, live: Rows) -> WrongCall:
    """A live row takes another one's slot: the last one the first one's, or any of them."""

    def pick(case: Any, given: Inputs) -> tuple[int, Tensor] | None:
        rows = live(case, given)
        if len(rows) < 2:
            return None
        at, of = (-1, 0) if case.seed % 3 == 0 else (case.seed // 3 % len(rows), case.seed // 5 % len(rows))
        return rows[at], given[name][rows[of if at != of else of - 1]]

    return entry(name, pick, ValueError)


def aliased(name: str, of: str, when: Condition = always) -> WrongCall:
    """An argument takes the memory of another one, where that has room for its shape."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        base, value = given.get(of), given.get(name)
        if not isinstance(base, Tensor) or not isinstance(value, Tensor) or not value.numel() or not base.numel():
            return None
        if any(n > m for n, m in zip(value.shape, base.shape)):
            return None
        region = tuple(slice(0, n) for n in value.shape)
        return given | {name: Alias(of, lambda tensor: tensor[region])}

    return made(make, ValueError, name, of, when=when)


def within(name: str, pool: str, when: Condition = always) -> WrongCall:
    """An argument of the pool's dtype is a view of its first elements, whatever its shape."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        memory, value = given.get(pool), given.get(name)
        if not isinstance(memory, Tensor) or not isinstance(value, Tensor) or value.dtype != memory.dtype:
            return None
        count, shape = value.numel(), value.shape
        if not 0 < count <= memory.numel():
            return None
        first = Alias(pool, lambda tensor: tensor.as_strided((count,), (1,), tensor.storage_offset()).view(shape))
        return given | {name: first}

    return made(make, ValueError, pool, name, when=when)


def with_sink(value: float) -> WrongCall:
    """A sink that is no number to add, of any head, in the call's dtype or in float32."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        if not case.heads:
            return None
        sinks = torch.zeros(case.heads, dtype=getattr(torch, case.dtype) if case.seed % 2 else torch.float32)
        sinks[case.seed // 2 % case.heads] = value
        return given | {"sinks": sinks}

    return made(make, ValueError, "sinks")
