"""Bugs that only machine code has: the assembled object of a kernel, with some instructions patched, linked into a library.

python -m properties.object_mutants      # tries each with `check`'s search, and says what noticed it
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.sources import BuildError
from properties.planting import Planted, library_with, object_of, planted
from properties.suite import SUITE, candidate, kernel_of

CASES, SEED = 300, 11
SECTION = re.compile(r"^ *\d+ (\S+) +[0-9a-f]+ +[0-9a-f]+ +[0-9a-f]+ +([0-9a-f]+) ", re.MULTILINE)
LINE = re.compile(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(.*)$")
NOP = b"\x90"


@dataclass(frozen=True)
class Site:
    """An instruction in an object file."""

    offset: int
    """In the file."""
    code: bytes
    text: str


Patch = Callable[[bytes], bytes]


def nothing(code: bytes) -> bytes:
    """The instruction is left out."""
    return NOP * len(code)


def other_index(code: bytes) -> bytes:
    """Another register for the index of an operand with SIB."""
    return code[:5] + bytes([code[5] ^ 0x10]) + code[6:]


def other_tile(code: bytes) -> bytes:
    """Another tile in ModRM.reg: what is loaded, stored or summed up."""
    return code[:4] + bytes([code[4] ^ 0x08]) + code[5:]


def operands_exchanged(code: bytes) -> bytes:
    """A for B: ModRM.rm and the inverted vvvv change places."""
    right, left = ~code[2] >> 3 & 15, code[4] & 7
    return code[:2] + bytes([code[2] & 0x87 | (~left & 15) << 3]) + code[3:4] + bytes([code[4] & 0xF8 | right])


def one_row_less(code: bytes) -> bytes:
    """Of A and of the sums: the rows of tiles 0 to 5 in an immediate of eight bytes."""
    return code[:2] + bytes([15] * 6 + [16] * 2)


@dataclass(frozen=True)
class ObjectMutant:
    """`pattern` finds instructions of the object in objdump's words; the one of this number is patched."""

    name: str
    says: str
    pair: str
    pattern: str
    number: int
    patch: Patch
    source: str = ""
    """The one that is compiled to the object, where it is not the pair's kernel but one that it calls."""


MUTANTS = (
    ObjectMutant("stride-register", "a tile is loaded with another register as stride", "packed_linear",
                 "tileloadd.*tmm7", 0, other_index),
    ObjectMutant("swapped-operands", "a product takes B for A", "packed_linear", "tdpbf16ps %tmm7,%tmm4", 0, operands_exchanged),
    ObjectMutant("wrong-sums", "a product goes to the neighbour's sums", "packed_linear", "tdpbf16ps %tmm7,%tmm5", 0, other_tile),
    ObjectMutant("wrong-load", "a load goes to the neighbour", "packed_linear", "tileloadd.*tmm5", 0, other_tile),
    ObjectMutant("wrong-store", "a store takes the neighbour", "packed_linear", "tilestored %tmm3", 0, other_tile),
    ObjectMutant("missing-release", "the tiles stay configured", "packed_linear", "tilerelease", 1, nothing),
    ObjectMutant("stale-configuration", "the tiles are configured for what ran before", "packed_linear", "ldtilecfg", 0, nothing),
    ObjectMutant("row-count", "tiles of sums and of A are one row short", "packed_linear", r"movabs \$0x1010101010101010", 1,
                 one_row_less),
    ObjectMutant("skipped-product", "one product of four is left out", "packed_linear", "tdpbf16ps %tmm6,%tmm5", 0, nothing),
    ObjectMutant("kept-sums", "sums begin with those of the panel before", "packed_linear", "tilezero %tmm1", 0, nothing),
    ObjectMutant("chunk-skipped-product", "a product of the chunk rule is left out", "chunk_gated_delta_rule", "tdpbf16ps", 3,
                 nothing),
    ObjectMutant("prefill-swapped-operands", "a product of prefill takes B for A", "extend_attention", "tdpbf16ps", 0,
                 operands_exchanged, "csrc/kernels/_prefill.cpp"),
)  # fmt: skip


def tier() -> str:
    """The one that multiplies with tile registers."""
    return next(known.name for known in SUITE.tiers() if known.products == "tile_registers")


def sites(path: Path, pattern: str) -> list[Site]:
    """The instructions of an object file that the pattern finds. Raises BuildError where nothing disassembles it."""
    try:
        table, listing = (
            subprocess.run(["objdump", *flags, str(path)], capture_output=True, text=True, check=True).stdout
            for flags in (["-h", "-w"], ["-d", "-w"])
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"objdump does not disassemble {path.name}: {error}") from None
    starts = {name: int(start, 16) for name, start in SECTION.findall(table)}
    return [site for site in _disassembled(listing, starts) if re.search(pattern, site.text)]


def _disassembled(listing: str, starts: dict[str, int]) -> Iterator[Site]:
    start = 0
    for line in listing.splitlines():
        if line.startswith("Disassembly of section "):
            start = starts[line.removeprefix("Disassembly of section ").rstrip(":")]
        elif found := LINE.match(line):
            yield Site(start + int(found[1], 16), bytes.fromhex(found[2]), found[3])


def build(mutant: ObjectMutant, folder: Path) -> Candidate:
    """The mutant as a candidate. Raises BuildError where its instruction is not there any more."""
    original = object_of(mutant.source or kernel_of(SUITE.pairs()[mutant.pair]), tier())
    found = sites(original, mutant.pattern)
    if mutant.number >= len(found):
        says = f"{original.name} has {len(found)} of {mutant.pattern!r}, wanted is number {mutant.number}"
        raise BuildError(f"{mutant.name}: {says}")
    content, site = bytearray(original.read_bytes()), found[mutant.number]
    changed = mutant.patch(site.code)
    assert content[site.offset : site.offset + len(site.code)] == site.code and len(changed) == len(site.code)
    content[site.offset : site.offset + len(site.code)] = changed
    folder.mkdir(parents=True, exist_ok=True)
    patched = folder / "patched.o"
    patched.write_bytes(content)
    library = library_with({original: patched}, folder / "_kernels.so")
    return planted(candidate(SUITE.pairs()[mutant.pair], tier()), Planted(str(library.resolve())))


def tried(mutant: ObjectMutant, folder: Path, cases: int = CASES, seed: int = SEED) -> Tally:
    """The search of `check` on a mutant, up to its first failure."""
    subject = Subject(SUITE.pairs()[mutant.pair], build(mutant, folder))
    with Isolated(subject.candidate, preload=SUITE.preload) as runner:
        return Search(subject, runner, shrink_seconds=0.0).run(cases, None, seed, None)


def main() -> int:
    """A line a mutant; 1 if one survives."""
    survivors = 0
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            tally = tried(mutant, Path(folder))
        survivors += tally.passed
        first = tally.first
        end = f"{first.kind} after {first.cases} cases" if first else f"SURVIVED {tally.cases} cases"
        print(f"{mutant.pair:24} {mutant.name:26} {end:30} {mutant.says}", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} killed on {tier()}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
