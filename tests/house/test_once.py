"""One fact in one place: no block of ten lines stands twice, and no two classes have one name."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("kernelpair", "properties", "reference", "optimized", "serving", "tests", "docs")
CPP = ("csrc",)
LINES = 10
"""So many lines in a row are a block; blank ones, comments, imports and lines without a word do not count."""

SIDES = ("reference/", "optimized/")
"""The two sides of a pair have classes of the same name: that they can be exchanged is what is tested."""
BASES = "serving/"
"""What both sides extend is called like them."""
PROTOCOLS = {"Tier"}
"""What a suite provides under the engine's own word."""

Line = tuple[int, str]


def test_no_block_of_ten_lines_stands_twice() -> None:
    twice = list(_twins({**_python(), **_cpp()}))
    assert not twice, "these blocks stand twice; let one serve both:\n" + "\n".join(twice)


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in _files(PYTHON, "*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_name(path))
    shared = {name: where for name, where in places.items() if len(where) > 1 and not _exchangeable(name, where)}
    assert not shared, f"one name for several classes: {shared}"


def test_a_block_that_stands_twice_is_found() -> None:
    """The test can fail: with other indentation, comments and blank lines between, a copied block is one."""
    block = [f"value_{i} = compute({i})" for i in range(LINES)]
    spread = [line for text in block for line in (f"    {text}", "    # why", "")]
    found = list(_twins({"a.py": list(_counted(["x = 1", *block], "#")), "b.py": list(_counted(spread, "#"))}))
    assert found == ["a.py:2 and b.py:1"]
    assert not list(_twins({"a.py": list(_counted(block[1:], "#")), "b.py": list(_counted(spread, "#"))}))


def _exchangeable(name: str, where: Sequence[str]) -> bool:
    if name in PROTOCOLS:
        return True
    beside = [path for path in where if not path.startswith(BASES)]
    return len(beside) == len(SIDES) and all(any(path.startswith(side) for path in beside) for side in SIDES)


def _twins(files: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Where blocks of LINES stand that an earlier place has too; of a longer block only its beginning."""
    seen: dict[tuple[str, ...], str] = {}
    for name, lines in files.items():
        said = -LINES
        for at in range(len(lines) - LINES + 1):
            block = tuple(text for _, text in lines[at : at + LINES])
            first = seen.setdefault(block, f"{name}:{lines[at][0]}")
            if first != f"{name}:{lines[at][0]}" and at >= said + LINES:
                said = at
                yield f"{first} and {name}:{lines[at][0]}"


def _counted(lines: Sequence[str], comment: str, skipped: Set[int] = frozenset()) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        text = " ".join(line.split())
        if number not in skipped and not text.startswith(comment) and any(letter.isalnum() for letter in text):
            yield number, text


def _python() -> dict[str, list[Line]]:
    counted = {}
    for path in _files(PYTHON, "*.py"):
        source = path.read_text()
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
        skipped = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        counted[_name(path)] = list(_counted(source.splitlines(), "#", skipped))
    return counted


def _cpp() -> dict[str, list[Line]]:
    files = [*_files(CPP, "*.h"), *_files(CPP, "*.cpp")]
    includes = {path: {n for n, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("#")} for path in files}
    return {_name(path): list(_counted(path.read_text().splitlines(), "//", includes[path])) for path in files}


def _files(folders: Sequence[str], pattern: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob(pattern))]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
