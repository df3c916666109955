"""What docs/contracts/defaults.md says of our own defaults, and that both sides have them."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import optimized
import properties
import reference.gdn_attention_core
from optimized.gdn_attention_core import gdn_attention_core
from serving import GdnLayer

PAGE = properties.ROOT / "docs" / "contracts" / "defaults.md"
OPERATORS = [name for name in optimized.operators() if not name.startswith("_")]


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not inspect.Parameter.empty}


def schema_defaults(name: str) -> dict[str, Any]:
    arguments = optimized.operator(name).raw._schema.arguments
    return {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}


def as_written(defaults: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).replace("e-05", "e-5") for name, value in defaults.items()}


def written() -> dict[str, dict[str, str]]:
    """Kernel -> argument -> what the page says that the default is."""
    said: dict[str, dict[str, str]] = {}
    for line in Path(PAGE).read_text().split("## All defaults")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[0] not in ("kernel", "---"):
            assert cells[1] not in said.setdefault(cells[0], {}), f"{line} stands twice"
            assert all(cells), f"{line}: an empty cell"
            said[cells[0]][cells[1]] = cells[2].strip("`")
    return said


def test_the_page_says_what_the_signatures_say() -> None:
    ours = {name: as_written(schema_defaults(name)) for name in OPERATORS if schema_defaults(name)}
    assert written() == {**ours, "gdn_attention_core": as_written(defaults_of(gdn_attention_core))}


def references() -> dict[str, Callable[..., Any]]:
    """The references that have an operator's name."""
    modules = [importlib.import_module(f"reference.{path.stem}") for path in (properties.ROOT / "reference").glob("[!_]*.py")]
    return {name: getattr(module, name) for module in modules for name in OPERATORS if hasattr(module, name)}


@pytest.mark.parametrize("name", references())
def test_a_reference_has_its_operators_defaults(name: str) -> None:
    schema = schema_defaults(name)
    theirs = {key: value for key, value in defaults_of(references()[name]).items() if key in schema}
    assert theirs == schema


def test_every_operator_with_defaults_has_a_reference() -> None:
    assert {name for name in OPERATORS if schema_defaults(name)} <= set(references())


def test_the_layer_and_what_it_calls_have_one_eps() -> None:
    values = {
        defaults_of(function)["eps"]
        for function in (GdnLayer, gdn_attention_core, reference.gdn_attention_core.gdn_attention_core)
    }
    assert values == {schema_defaults("chunk_gated_delta_rule")["eps"]} == {schema_defaults("gated_delta_rule_update")["eps"]}
