"""Imports go one way: reference and optimized know torch, the engine knows neither of them, properties join them.

The graph is drawn from the sources: no circle, and no arrow from the engine to the suite, nor one by a name in a string.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = ("serving", "reference", "optimized", "properties")
PACKAGES = (*SUITE, "kernelpair")
OURS = (*PACKAGES, "tests")
MAY_IMPORT = {  # beside the standard library
    "serving": {"torch", "serving"},
    "reference": {"torch", "serving", "reference"},
    "optimized": {"torch", "numpy", "serving", "optimized"},
    "kernelpair": {"torch", "numpy", "pydantic", "kernelpair"},
    "kernelpair.report": {"torch", "numpy", "rich", "kernelpair", "jinja2", "matplotlib", "PIL"},
    "kernelpair.search.examples": {"kernelpair", "redis"},
    "kernelpair.cli": {"torch", "rich", "kernelpair"},
    "kernelpair.cli.campaign": {"rich", "kernelpair", "ray"},
    "kernelpair.cli.completion": {"kernelpair", "shtab"},
    "kernelpair.timing": {"torch", "numpy", "pydantic", "rich", "matplotlib", "kernelpair"},
    "kernelpair.pytest_plugin": {"torch", "pytest", "kernelpair"},
    "properties": {"torch", "numpy", "hypothesis", "pydantic", "kernelpair", "serving", "reference", "optimized", "properties"},
    "properties.providers.onnxruntime": {"torch", "kernelpair", "reference", "properties", "onnx", "onnxruntime"},
}
OPTIONAL = ("jinja2", "matplotlib", "PIL", "ray", "redis", "shtab")  # of an extra: imported where they are used, and nowhere else
HYPOTHESIS = (
    "kernelpair.search.search", "kernelpair.search.drawing", "kernelpair.search.examples", "kernelpair.search.strategies",
    "kernelpair.search.hypothesis_internals", "kernelpair.pytest_plugin", "properties", "tests",
)
TEXT = {".py", ".md", ".cpp", ".h", ".in", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
FOLDERS = (*OURS, "csrc", "docs", ".ci")
ELSEWHERE = tuple("/".join(parts) for parts in (("..", "shared"), ("", "work", ""), ("", "home", ""), ("", "root", "")))


def modules(*packages: str) -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules(*OURS)


def within(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def nodes(tree: ast.AST, everywhere: bool) -> Iterator[ast.AST]:
    """All nodes that run: of `if TYPE_CHECKING` only the rest, and functions only with `everywhere`."""
    for child in ast.iter_child_nodes(tree):
        if _only_for_types(child) or (not everywhere and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        yield child
        yield from nodes(child, everywhere)


def imports_of(path: Path, everywhere: bool = True) -> set[str]:
    """The modules that a file imports, dotted; with `from package import module` the module."""
    found = set()
    for node in nodes(ast.parse(path.read_text()), everywhere):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


def offences(module: str, allowed: Callable[[str], bool]) -> list[str]:
    return [name for name in sorted(imports_of(MODULES[module])) if not allowed(name)]


def standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, PACKAGES)])
def test_a_package_imports_only_what_lies_below_it(module: str) -> None:
    place = max((place for place in MAY_IMPORT if within(module, (place,))), key=len)
    may = MAY_IMPORT[place] | ({"hypothesis"} if within(module, HYPOTHESIS) else set())
    assert not offences(module, lambda name: standard(name) or within(name, may))


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, ("kernelpair",))])
def test_the_engine_starts_without_its_extras(module: str) -> None:
    allowed = ("matplotlib",) if module == "kernelpair.timing.plot" else ()  # `kernelpair speed` imports it when it draws
    found = imports_of(MODULES[module], everywhere=False)
    assert not [name for name in found if within(name, OPTIONAL) and not within(name, allowed)]


def strings(path: Path) -> Iterator[str]:
    """The texts of a file, docstrings apart."""
    tree = ast.parse(path.read_text())
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    prose = {id(node.body[0].value) for node in ast.walk(tree)
             if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, ("kernelpair",))])
def test_the_engine_names_no_module_of_the_suite(module: str) -> None:
    """Neither imported, nor handed to import_module, nor as an entry `module:attribute`."""
    assert not offences(module, lambda name: not within(name, SUITE))
    named = re.compile(rf"^({'|'.join(SUITE)})(\.\w+)+(:\S+)?$")
    assert not [text for text in strings(MODULES[module]) if named.match(text)]


def test_nothing_but_tests_stands_above_the_command_line() -> None:
    command = ("kernelpair.cli", "kernelpair.__main__")
    below = [name for name in MODULES if within(name, PACKAGES) and not within(name, command)]
    assert not {name: found for name in below if (found := offences(name, lambda used: not within(used, ("kernelpair.cli",))))}


@pytest.mark.parametrize("module", [name for name in MODULES if not within(name, HYPOTHESIS)])
def test_hypothesis_stays_where_cases_are_drawn(module: str) -> None:
    assert not offences(module, lambda name: not within(name, ("hypothesis",)))


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, PACKAGES)])
def test_no_package_imports_the_tests(module: str) -> None:
    assert not offences(module, lambda name: not within(name, ("tests",)))


def test_no_module_needs_itself_to_be_imported() -> None:
    needs = {name: {found for found in imports_of(path, everywhere=False) if found in MODULES} for name, path in MODULES.items()}
    for name in needs:
        needs[name].discard(name)
    for name in ("kernelpair.cli", "optimized", "serving"):  # what a package hands on lies above its parts
        needs[name] = set()
    circle: list[str] = []
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle, " -> ".join(circle)


def test_the_rules_are_looked_at_where_they_matter() -> None:
    assert {"reference.store_cache", "optimized.tiers", "properties.store_cache", "kernelpair.search.search"} <= set(MODULES)
    assert "kernelpair.contract.pair" in imports_of(MODULES["kernelpair.trial.session"])
    assert "hypothesis" in imports_of(MODULES["kernelpair.search.search"])
    assert "torch" in imports_of(MODULES["kernelpair.environment"])  # inside of a function
    assert "torch" not in imports_of(MODULES["kernelpair.environment"], everywhere=False)
    assert "properties.suite:observe" in set(strings(MODULES["properties.suite"]))


def test_nothing_refers_outside_of_the_project() -> None:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix in TEXT and path.name != ".git" and "__pycache__" not in path.parts]
    texts = {path: path.read_text() for path in files}
    assert len(texts) > 50
    found = [f"{path.relative_to(ROOT)}: {word}" for path, text in texts.items() for word in ELSEWHERE if word in text]
    assert not found
