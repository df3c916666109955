"""What CONTRIBUTING says of sizes: functions fit on a screen, modules stay below 400 lines."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_once import CPP, FUNCTIONS, PYTHON, body, files_in, name_of

SCREEN = 60
"""Lines that are seen at once. A signature and a docstring do not count, nor do lines of an initializer in C++, `.name = value`
and `{...}`: a table is read entry by entry."""
MODULE = 400


def test_modules_stay_below_400_lines() -> None:
    modules = [*files_in(PYTHON, "*.py"), *files_in(CPP, "*.h"), *files_in(CPP, "*.cpp")]
    assert len(modules) > 500
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in modules}
    assert not {name: lines for name, lines in lengths.items() if lines >= MODULE}, "split these by what they are about"


def test_functions_fit_on_a_screen() -> None:
    measured = [(files_in(PYTHON, "*.py"), _python_functions)]
    measured += [(files_in(CPP, pattern), _cpp_functions) for pattern in ("*.h", "*.cpp")]
    lengths = [
        (f"{name_of(path)}: {function}", lines)
        for paths, functions in measured for path in paths for function, lines in functions(path)
    ]  # fmt: skip
    assert len(lengths) > 4000
    assert not [name for name, lines in lengths if lines > SCREEN], "split these where a part has a name of its own"


def test_the_lines_of_a_body_count(tmp_path: Path) -> None:
    """The test can fail."""
    python, cpp = tmp_path / "a.py", tmp_path / "a.cpp"
    python.write_text("def f(\n    x,\n):\n    \"\"\"What\n    it does.\"\"\"\n" + "    x += 1\n" * 61)
    cpp.write_text("void f(int x,\n       int y) {\n#pragma here\n" + "  g();\n\n" * 30 + "  h({.x = 1,\n     .y = 2});\n}\n")
    assert list(_python_functions(python)) == [("f", 61)]
    assert list(_cpp_functions(cpp)) == [("void f(int x,", 62)]


def _python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, FUNCTIONS):
            yield node.name, len(body(node))


def _cpp_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Those that stand in a namespace, as clang-format sets them: nothing but the first line and the last begins a line."""
    lines = path.read_text().splitlines()
    for end, line in enumerate(lines):
        if line == "}":
            first = next(n for n in reversed(range(end)) if lines[n] and lines[n][0] not in " #")
            opened = next((n for n in range(first, end) if "{" in lines[n]), end)  # none where it closes an extern "C"
            counted = [line for line in lines[opened + 1 : end] if not line.strip().startswith((".", "{"))]
            yield lines[first], len(counted)
