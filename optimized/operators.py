"""The operators as Python functions that raise TypeError, ValueError and IndexError as the contracts say."""

from functools import cache
from inspect import Parameter, Signature
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from optimized.library import load, marked_error


class Operator:
    """A callable operator: `store_cache = operator("store_cache"); store_cache(k, v, k_cache, v_cache, indices)`.

    Same parameters as torch.ops.kernelpair.<name>, which it calls; `raw` is that operator, whose errors are RuntimeErrors.
    """

    def __init__(self, name: str, schema: str) -> None:
        self.name = self.__name__ = name
        self.schema = schema
        self.raw = getattr(torch.ops.kernelpair, name).default
        self.__signature__ = _signature(self.raw)
        self._bools = [(i, each.name) for i, each in enumerate(self.raw._schema.arguments) if str(each.type) == "bool"]
        self._before_bools = self._bools[0][0] if self._bools else len(self.raw._schema.arguments)
        self._direct = getattr(self.raw, "_op", self.raw)  # what raw calls: a small call takes a twentieth less

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs or len(args) > self._before_bools:
                self._refuse_none(args, kwargs)
            if kwargs or is_dynamo_compiling():  # which knows raw alone
                return self.raw(*args, **kwargs)
            return self._direct(*args)
        except RuntimeError as error:
            marked = self._missing_tensor(args, kwargs) or marked_error(error)
            if marked is None:
                raise
            raise marked from None

    def _refuse_none(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """TypeError for None as a bool, which torch takes for False."""
        for i, name in self._bools:
            if (args[i] if i < len(args) else kwargs.get(name, False)) is None:
                raise TypeError(f"{self.name}: {name} must be a bool, got None")

    def _missing_tensor(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
        """None where the schema wants a tensor reaches the operator as an undefined one, with an error that names nothing."""
        parameters = self.raw._schema.arguments
        given = {parameter.name: value for parameter, value in zip(parameters, args)} | kwargs
        for parameter in parameters:
            if str(parameter.type) == "Tensor" and given.get(parameter.name, ...) is None:
                return TypeError(f"{self.name}: {parameter.name} must be a tensor, got None")
        return None

    def __repr__(self) -> str:
        return f"<operator {self.schema}>"


def _signature(raw: Any) -> Signature:
    """The schema's parameters, for `inspect.signature` and `help`."""
    return Signature([
        Parameter(
            parameter.name,
            Parameter.KEYWORD_ONLY if parameter.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=parameter.default_value if parameter.has_default_value() else Parameter.empty,
        )
        for parameter in raw._schema.arguments
    ])


def operators() -> list[str]:
    """Names of all operators of the library."""
    return sorted(load())


@cache
def operator(name: str) -> Operator:
    """The operator called `name`; ValueError lists those that exist."""
    schema = load().get(name)
    if schema is None:
        raise ValueError(f"there is no operator {name!r}; the operators are {', '.join(operators())}")
    return Operator(name, schema)
