"""The sizes that kernels branch on, collected from their sources: a pair's cases are to pass each of them.

A size is an integer constant of a kernel, its operator, or the headers of its family. The last word of its name says what it
counts (kMostBlockKeys: keys), or COUNTS does; a pair measures its cases in the same words (`Coverage.measures`).
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import properties
from kernelpair.changes import closure

DEFINITION = re.compile(r"^constexpr (?:int|int64_t) (k[A-Z]\w* = [^;]+);", re.MULTILINE)
EACH = re.compile(r"(k[A-Z]\w*) = ((?:[^,(]|\([^)]*\))+)")
LAYERS = ("core", "simd", "tiles")  # they know no kernel: their constants are the machine's
NO_SIZE = 2**31  # from here on a constant is an end of a range
REGISTERS = (
    "Sums", "Vectors", "Quads", "Stride", "Depth", "Ahead", "Step", "Floats", "Tile", "Tiles", "Pairs", "Piece", "Auto", "Widest",
)  # fmt: skip
"""Last words of constants that count registers, lines and lanes, of which any call has enough."""
COUNTS = {
    "kBlock": "width", "kBlockK": "width", "kStrip": "columns", "kChunk": "tokens", "kHalf": "tokens", "kRow": "tokens",
    "kLeastChunk": "channels", "kLeastSplit": "keys", "kMostSplits": "requests", "kPanel": "columns", "kLeastPage": "page",
    "kGrain": "elements", "kRowBlock": "rows", "kRunPanels": "panels", "kMostUnits": "units", "kPackedBytes": "packed",
    "kGroupBytes": "group", "kBlocks": "blocks",
}  # fmt: skip
"""What a constant counts whose name does not say so."""
OF_FILE = {("conv_state.h", "kChunk"): "channels", ("causal_conv1d.h", "kConvBlock"): "channels",
           ("conv_state.h", "kMostColumns"): "history",
           ("chunk.h", "kBlocks"): "blocks of a chunk", ("chunk_tokens.h", "kMaxColumns"): "vectors",
           ("linear_tiles.h", "kTileBytes"): "elements", ("linear_tiles.h", "kSpreadBytes"): "elements"}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """A constant of the sources."""

    name: str
    value: int
    file: str

    @property
    def counts(self) -> str:
        """The measure that it is compared with; empty for one of registers."""
        named = OF_FILE.get((self.file, self.name)) or COUNTS.get(self.name)
        last = re.findall(r"[A-Z][a-z]*", self.name)[-1]
        return named or ("" if last in REGISTERS else last.lower())


class UnknownConstant(ValueError):
    """A constant's value cannot be read; the message names it."""


@cache
def sizes(kernels: tuple[str, ...]) -> tuple[Size, ...]:
    """Of the kernels of these names: every size, the largest of those that depend on the tier."""
    root = properties.ROOT
    sources = [root / "csrc" / room / f"{kernel}.cpp" for kernel in kernels for room in ("kernels", "ops")]
    files = sorted(file for file in closure(root, sources, ("csrc",)) if file.parent.name not in LAYERS)
    known: dict[str, int] = {}
    found = []
    for _ in range(2):  # a constant may be made of one in a later file
        found = [Size(name, value, file.name) for file in files for name, value in _constants(file, known)]
    return tuple(size for size in found if 1 < size.value < NO_SIZE and size.counts)


def branches(*kernels: str) -> Mapping[str, int]:
    """For `Coverage.branches`: what is counted -> the largest size that these kernels' code branches on."""
    largest: dict[str, int] = {}
    for size in sizes(kernels):
        largest[size.counts] = max(size.value, largest.get(size.counts, 0))
    return largest


def _constants(file: Path, known: dict[str, int]) -> Iterator[tuple[str, int]]:
    for several in DEFINITION.findall(file.read_text()):
        for name, expression in EACH.findall(re.sub(r"//.*", "", several)):
            try:
                known[name] = _value(expression, known)
            except (SyntaxError, KeyError) as error:
                if not re.search(r"\bk[A-Z]\w*|sizeof|decltype", expression):
                    raise UnknownConstant(f"{file.name}: the value of {name} = {expression} cannot be read") from error
                continue  # made of a constant of the machine
            yield name, known[name]


def _value(expression: str, known: Mapping[str, int]) -> int:
    """Of an expression of whole numbers; of a choice between several, which a tier makes, the largest."""
    if "?" in expression:
        return max(_value(part, known) for part in expression.split("?", 1)[1].replace("?", ":").split(":") if "==" not in part)
    return _number(ast.parse(re.sub(r"int64_t\{(\w+)\}", r"\1", expression).strip(), mode="eval").body, known)


def _number(node: ast.expr, known: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, known)
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, known), _number(node.right, known)
        for kind, result in ((ast.LShift, left << max(right, 0)), (ast.Mult, left * right), (ast.Add, left + right),
                             (ast.Sub, left - right), (ast.Div, left // (right or 1))):  # fmt: skip
            if isinstance(node.op, kind):
                return result
    raise KeyError(ast.dump(node))
