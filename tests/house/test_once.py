"""One fact in one place: no block of ten lines stands twice, and no two classes have one name."""

import ast
import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("kernelpair", "properties", "reference", "optimized", "serving", "tests", "docs", "kernels")
CPP = ("csrc", "tests")
LINES = 10
"""So many lines in a row are a block; blank ones, comments, imports and lines without a word do not count."""

SIDES = ("reference/", "optimized/")
"""The two sides of a pair have classes of the same name: that they can be exchanged is what is tested."""
BASES = "serving/"
"""What both sides extend is called like them."""
PROTOCOLS = {"Tier"}
"""What a suite provides under the engine's own word."""

TOKEN = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\w+)|\S""")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Line = tuple[int, str]
Block = tuple[str, ...]


def test_no_block_of_ten_lines_stands_twice() -> None:
    twice = list(_twins({**_python(), **_cpp()}))
    assert not twice, "these blocks stand twice; let one serve both:\n" + "\n".join(twice)


def test_no_ten_lines_of_a_function_stand_twice_under_other_names() -> None:
    """Names, strings and numbers aside. Of Python's functions alone: what C++ repeats so are tables (a `case` for each dtype, a
    path for each way), as are a pair's declaration and the fields of its cases."""
    twice = list(_twins(_python_bodies(), _renamed))
    assert not twice, "these blocks differ in names alone; let one serve both:\n" + "\n".join(twice)


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in files_in(PYTHON, "*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))
    shared = {name: where for name, where in places.items() if len(where) > 1 and not _exchangeable(name, where)}
    assert not shared, f"one name for several classes: {shared}"


def test_a_block_that_stands_twice_is_found() -> None:
    """The test can fail: with other indentation, comments and blank lines between, a copied block is one."""
    block = [f"value_{i} = compute({i})" for i in range(LINES)]
    spread = [line for text in block for line in (f"    {text}", "    # why", "")]
    found = list(_twins({"a.py": list(_counted(["x = 1", *block], "#")), "b.py": list(_counted(spread, "#"))}))
    assert found == ["a.py:2 and b.py:1"]
    assert not list(_twins({"a.py": list(_counted(block[1:], "#")), "b.py": list(_counted(spread, "#"))}))


def test_a_block_under_other_names_is_found() -> None:
    """Names that stand for others throughout, and not where two become one."""
    block = [f"value_{i} = compute(value_{i // 2}, {i})" for i in range(LINES)]
    others = [line.replace("value", "number").replace("compute", "f") for line in block]
    mixed = [line.replace("number_1 ", "number_0 ") for line in others]
    files = [{"a.py": list(_counted(block, "#")), "b.py": list(_counted(lines, "#"))} for lines in (others, mixed)]
    assert [list(_twins(each, _renamed)) for each in files] == [["a.py:1 and b.py:1"], []]


def _exchangeable(name: str, where: Sequence[str]) -> bool:
    if name in PROTOCOLS:
        return True
    beside = [path for path in where if not path.startswith(BASES)]
    return len(beside) == len(SIDES) and all(any(path.startswith(side) for path in beside) for side in SIDES)


def _twins(files: Mapping[str, Sequence[Line]], form: Callable[[Block], Block] = tuple) -> Iterator[str]:
    """Where blocks of LINES stand that an earlier place has in the same form; of a longer block only its beginning."""
    seen: dict[Block, str] = {}
    for name, lines in files.items():
        said = -LINES
        for at in range(len(lines) - LINES + 1):
            block = form(tuple(text for _, text in lines[at : at + LINES]))
            first = seen.setdefault(block, f"{name}:{lines[at][0]}")
            if first != f"{name}:{lines[at][0]}" and at >= said + LINES:
                said = at
                yield f"{first} and {name}:{lines[at][0]}"


def _renamed(block: Block) -> Block:
    """With numbers for names and literals, in the order in which they first come."""
    numbers: dict[str, int] = {}
    return tuple(
        " ".join(f"<{numbers.setdefault(token, len(numbers))}>" if names else token for token, names in _tokens(line))
        for line in block
    )


@cache
def _tokens(line: str) -> list[tuple[str, bool]]:
    """Each with whether it is a name or a literal."""
    return [(found[0], bool(found[1]) and not keyword.iskeyword(found[1])) for found in TOKEN.finditer(line)]


def _counted(lines: Sequence[str], comment: str, skipped: Set[int] = frozenset()) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        text = " ".join(line.split())
        if number not in skipped and not text.startswith(comment) and any(letter.isalnum() for letter in text):
            yield number, text


def _python() -> dict[str, list[Line]]:
    counted = {}
    for path in files_in(PYTHON, "*.py"):
        source = path.read_text()
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
        skipped = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        counted[name_of(path)] = list(_counted(source.splitlines(), "#", skipped))
    return counted


def _python_bodies() -> dict[str, list[Line]]:
    """The statements of functions; a line that holds a single word is an entry of a table."""
    counted = {}
    for path in files_in(PYTHON, "*.py"):
        lines = path.read_text().splitlines()
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS)]
        inside = {line for node in functions for line in body(node)}
        inside -= {line for node in functions for line in range(node.lineno, body(node).start)}  # of one within another
        outside = set(range(1, len(lines) + 1)) - inside
        counted[name_of(path)] = [line for line in _counted(lines, "#", outside) if len(re.findall(r"\w+", line[1])) > 1]
    return counted


def body(function: FUNCTIONS) -> range:
    """The numbers of its lines from the first statement behind the docstring on."""
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return range(function.body[documented].lineno, (function.end_lineno or 0) + 1)


def _cpp() -> dict[str, list[Line]]:
    files = [*files_in(CPP, "*.h"), *files_in(CPP, "*.cpp")]
    includes = {path: {n for n, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("#")} for path in files}
    return {name_of(path): list(_counted(path.read_text().splitlines(), "//", includes[path])) for path in files}


def files_in(folders: Sequence[str], pattern: str) -> list[Path]:
    """All that match in these folders and below."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob(pattern))]


def name_of(path: Path) -> str:
    """Its path in the repository."""
    return path.relative_to(ROOT).as_posix()
