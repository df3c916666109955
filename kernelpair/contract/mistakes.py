"""Mistakes in a pair, found when the pair is made: each is told by name, with the file and line where it was made."""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelpair.call.layout import FUSED, LAYOUTS

if TYPE_CHECKING:
    from kernelpair.contract.pair import Pair, Signature

ENGINE = Path(__file__).resolve().parents[1]
MACHINERY = (dataclasses.__file__, importlib.__file__)  # frames between a pair's own lines and ours
NO_FIELD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


class PairError(ValueError):
    """A pair names something that does not exist; the message says what, and where the pair was made."""


def refuse_mistakes(pair: "Pair") -> None:
    """PairError where the pair names an argument, a dtype, a layout or a field that does not exist."""
    mistakes = list(mistakes_in(pair))
    if mistakes:
        raise PairError(f"{_made_at()}: pair {pair.name}: {'; '.join(mistakes)}")


def mistakes_in(pair: "Pair", known: Sequence[str] | None = None) -> Iterator[str]:
    """What the pair names and does not exist, in words.

    `known` are the arguments there are; without it those of the reference, of which nothing is known where it takes `**kwargs`.
    """
    import torch

    signature = pair.signature
    for what, function in {"reference": pair.reference, "optimized": pair.optimized}.items():
        if not callable(function):
            yield f"{what} is {function!r}, which is no function"
    known = parameters(pair.reference) if known is None else known
    if known is not None:
        for what, names in arguments_named(signature).items():
            for name in names:
                if name not in known:
                    yield f"Signature.{what} names {name!r}, which is no argument; the arguments are {', '.join(known)}"
    for name in signature.dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            yield f"Signature.dtypes names {name!r}, which is no dtype of torch"
    for argument, layouts in signature.layouts.items():
        for name in layouts:
            if name not in LAYOUTS and name != FUSED:
                yield f"Signature.layouts[{argument!r}] names {name!r}, which is no layout; the layouts are {', '.join(LAYOUTS)}"
    case, there = pair.cases.type.__name__, [spec.name for spec in dataclasses.fields(pair.cases.type)]
    for name in pair.cases.constant:
        if name not in there:
            yield f"Cases.constant names {name!r}, which is no field of {case}; its fields are {', '.join(there)}"


def entry_of(pair: "Pair", what: str) -> str:
    """The place of the pair's function `what` ("optimized", "reference"), by which another process finds it: module:name.

    PairError for an object that no module keeps by a name. By the name that it says of itself there may be another one, as of a
    function that was wrapped the function within.
    """
    function = getattr(pair, what)
    for module in (getattr(function, "__module__", None), pair.cases.type.__module__):
        kept = vars(sys.modules[module]) if module in sys.modules else {}
        for name in (getattr(function, "__qualname__", ""), *(name for name, value in kept.items() if value is function)):
            first, *others = name.split(".")
            if reduce(lambda found, part: getattr(found, part, None), others, kept.get(first)) is function:
                return f"{module}:{name}"
    raise PairError(
        f"{inspect.getsourcefile(pair.cases.type)}: pair {pair.name}: {what} is {function!r}, which no module keeps by a name: "
        f"a worker does not find it. Write a function at the top of a module (def {pair.name}(...): ...)"
    )


def arguments_named(signature: "Signature") -> dict[str, list[str]]:
    """Field of the signature -> the arguments that it names."""
    return {
        "written": list(signature.written),
        "scratch": list(signature.scratch),
        "indices": list(signature.indices),
        "layouts": list(signature.layouts),
        "fused": [name for both in signature.fused for name in both],
    }


def parameters(function: Callable[..., Any]) -> list[str] | None:
    """The names that a function takes; None where it takes any."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
        return None
    return [parameter.name for parameter in found]


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a function, for a message; its name where it has neither."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def told(error: BaseException) -> str:
    """An error of somebody's module on one line, with the last place outside of the engine that it came from."""
    if isinstance(error, PairError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame.filename)] or list(frames[-1:])
    file, line = (theirs[-1].filename, theirs[-1].lineno) if theirs else ("", None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    says = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
    return f"{file}:{line}: {says}" if file else says


def raised_at(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """File, line and function of the innermost frame of a call that is neither the engine's nor a library's; where `function`
    did not take its arguments, the place of its parameters; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if of_the_user(frame.filename)]
    if theirs:
        return f"{short(theirs[-1].filename)}:{theirs[-1].lineno}, in {theirs[-1].name}"
    code = getattr(getattr(function, "call", function), "__code__", None)  # of an adapter its function
    if isinstance(error, TypeError) and code is not None and frames and ENGINE in Path(frames[-1].filename).parents:
        return f"{short(code.co_filename)}:{code.co_firstlineno}, its parameters: every argument comes by its name"
    named = NO_FIELD.match(str(error)) if isinstance(error, TypeError) else None
    return next(_strategies_with(*named.groups()), "") if named else ""


def _strategies_with(case: str, field: str) -> Iterator[str]:
    """Places that give the class `case` this field: Hypothesis calls the class when it draws, far from the line that says how."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py") or not _is_theirs(file) or not isinstance(vars(module).get(case), type):
            continue
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if not isinstance(node, ast.Call) or case not in [n.id for n in (node.func, *node.args) if isinstance(n, ast.Name)]:
                continue
            for given in node.keywords:
                if given.arg == field:
                    yield f"{short(file)}:{given.value.lineno}, which gives {case} this field"


def short(file: str) -> str:
    """A file as seen from the current folder, from which commands are typed; elsewhere its name alone."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def with_place(error: BaseException) -> str:
    """An error that the code of a pair has raised, and where."""
    says, at = f"{type(error).__name__}: {error}", raised_at(error)
    return f"{says}; raised at {at}" if at else says


def of_the_user(file: str) -> bool:
    """Whether a file is neither the engine's nor an installed library's."""
    return _is_theirs(file) and "site-packages" not in Path(file).parts


def _is_theirs(file: str) -> bool:
    return not file.startswith("<") and ENGINE not in Path(file).parents and file not in MACHINERY


def _made_at() -> str:
    """The place outside of the engine that made the pair."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_theirs(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
