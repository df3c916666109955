"""A case: everything that a trial needs to be run again, as plain values on one line of JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from kernelpair.names import unknown

WRONG_CALL = "wrong_call:"  # a trial by this prefix expects an error instead of a result
FORMERLY = "rejects:"  # that prefix in lines saved before it had this name


@dataclass(frozen=True, kw_only=True)
class Case:
    """What every case says; a pair's own case adds its lengths, sizes and flags.

    The values of tensors are drawn from `seed` and the argument's name alone (`kernelpair.call.values`), so a case with another
    layout or another dtype of indices holds the same numbers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    seed: int = 0
    dtype: str = "float32"
    layout: Mapping[str, str] = field(default_factory=dict)
    """Argument -> layout (`kernelpair.call.layout.LAYOUTS`); arguments that are not named are dense."""
    int32: tuple[str, ...] = ()
    """The index arguments given as int32; the others are int64."""
    poison: Literal["nan", "outlier"] = "nan"
    """What lies in every byte that must not be read, and in outputs and scratch before the call."""
    guard: Literal["end", "start"] = "end"
    """Which end of each buffer touches a page that faults when it is touched."""
    trial: str = "value"
    """The trial's name: `value`, another built-in one such as `repeat`, a relation of the pair, or `wrong_call:<name>`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a number that no line can hold."""
        for name, value in vars(self).items():
            for number in value if type(value) is tuple else (value,):
                if type(number) is float and not math.isfinite(number):
                    raise ValueError(f"{name} = {value}: the line of a case holds no such number")


def at_least(least: int) -> Any:
    """Marks a field of a case: `Annotated[int, at_least(0)]`. A line with a smaller value is refused."""
    return Field(ge=least)


CaseT = TypeVar("CaseT", bound=Case)


class CaseError(ValueError):
    """A line that is no case of this version: the message says what is wrong with it."""


@cache
def _adapter(case_type: type[Case]) -> TypeAdapter[Any]:
    return TypeAdapter(case_type)


@cache
def _defaults(case_type: type[Case]) -> dict[str, Any]:
    """Field -> its default, in the order of the fields."""
    return {
        spec.name: spec.default if spec.default_factory is MISSING else spec.default_factory() for spec in fields(case_type)
    }


def to_line(pair: str, version: int, case: Case) -> str:
    """One line of JSON, the same for equal cases; fields at their defaults are left out."""
    values: dict[str, Any] = {"pair": pair, "v": version}
    for name, default in _defaults(type(case)).items():  # type: ignore[arg-type]
        value = getattr(case, name)
        if not _is(value, default):
            values[name] = dict(sorted(value.items())) if isinstance(value, Mapping) else value
    return json.dumps(values, separators=(",", ":"), default=_plain)


def own_fields(case_type: type[Case]) -> dict[str, str]:
    """The fields that a pair adds to those of every case -> as a line says them: the values to choose from, the one first that a
    line leaves out, or that one alone. What a limit looks at, and what one may write into a line."""
    hints, shared = get_type_hints(case_type), {spec.name for spec in fields(Case)}
    own = {name: default for name, default in _defaults(case_type).items() if name not in shared}  # type: ignore[arg-type]
    return {name: "|".join(_choices(hints[name], "" if own[name] is MISSING else own[name])) for name in own}


def _choices(hint: Any, default: Any) -> list[str]:
    others = get_args(hint) if get_origin(hint) is Literal else ()
    values = [default, *(value for value in others if value != default)]
    return [json.dumps(value, separators=(",", ":"), default=_plain) for value in values]


def _is(value: Any, default: Any) -> bool:
    """Equal, and no zero of the other sign."""
    if value != default:
        return False
    if isinstance(value, tuple):
        return all(map(_is, value, default))
    return type(value) is not float or math.copysign(1.0, value) == math.copysign(1.0, default)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__dataclass_fields__"):
        return {spec.name: getattr(value, spec.name) for spec in fields(value)}
    raise TypeError(f"a case holds plain values only, got {type(value).__name__}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of a key that stands twice, Python's reader would take the last."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise CaseError(f"{name!r} stands twice in an object of the case")
    return dict(pairs)


def pair_of_line(line: str) -> tuple[str, int, dict[str, Any]]:
    """The pair's name, the schema version and the remaining fields of a line. Raises CaseError."""
    try:
        values = json.loads(line, object_pairs_hook=_unique)
    except CaseError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python reads
        raise CaseError(f"not a line of JSON ({error}): {line[:80]!r}") from None
    if not isinstance(values, dict) or not isinstance(values.get("pair"), str):
        raise CaseError(f'a case is a JSON object with a "pair": {line[:80]!r}')
    name, version = values.pop("pair"), values.pop("v", None)
    if type(version) is not int:
        raise CaseError(f'the case of {name} lacks its schema version "v"')
    return name, version, values


def from_values(case_type: type[CaseT], pair: str, expected: int, version: int, values: dict[str, Any]) -> CaseT:
    """The case of these fields. Raises CaseError, naming the field, where they do not fit the type or the version."""
    if version != expected:
        raise CaseError(f"the case of {pair} has schema version {version}, this build reads version {expected}")
    if str(values.get("trial", "")).startswith(FORMERLY):
        values = values | {"trial": WRONG_CALL + values["trial"].removeprefix(FORMERLY)}
    adapter: TypeAdapter[CaseT] = _adapter(case_type)  # type: ignore[arg-type]
    try:
        case = adapter.validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "unexpected_keyword_argument" and len(first["loc"]) == 1:
            raise CaseError(f"{pair}: {unknown('field', str(first['loc'][0]), _defaults(case_type))}") from None  # type: ignore[arg-type]
        where = ".".join(map(str, first["loc"])) or "the case"
        raise CaseError(f"{pair}: {where}: {first['msg']} (got {first['input']!r})") from None
    return case
