"""What the native sources keep to: switches on the tier in two rooms, a list of tiers in one place, nothing written twice."""

import errno
import re
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import optimized
import properties
from kernelpair.sources import TELL_SECONDS, BuildError, run_told
from properties.suite import NativeSources

CSRC = properties.ROOT / "csrc"
SOURCES = {path: path.read_text().splitlines() for path in sorted(CSRC.rglob("*")) if path.suffix in {".h", ".cpp"}}
SWITCH = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b(.*)")
INSTRUCTIONS = re.compile(r"__(AVX|FMA|F16C|SSE|AMX)|KP_PRODUCTS")
HELPERS = ("least", "most", "clamp", "round_up", "divide_up", "load_pair", "load_split", "json_string")
BLOCK = 10


def room(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def switches() -> list[tuple[Path, str]]:
    return [(path, found[2]) for path, lines in SOURCES.items() for line in lines if (found := SWITCH.match(line))]


def test_tiers_differ_in_two_rooms() -> None:
    assert {room(path) for path, _ in switches()} == {"core", "simd", "tiles"}
    elsewhere = [(path.name, asked) for path, asked in switches() if room(path) == "core" and INSTRUCTIONS.search(asked)]
    assert not elsewhere
    assert any(INSTRUCTIONS.search(asked) for _, asked in switches())


def test_the_list_of_tiers_stands_in_cmake() -> None:
    rare = "|".join(tier.name for tier in optimized.tiers() if "_" in tier.name)  # names that mean nothing else
    python = [path for folder in ("optimized", "properties") for path in (properties.ROOT / folder).rglob("*.py")]
    named = re.compile(rf"[\"']({rare})[\"']|\b(Tier::|namespace )({rare})\b")
    found = [path.name for path in [*SOURCES, *python] if named.search(path.read_text())]
    assert rare and not found


def homes_of(helper: str) -> set[str]:
    """The files that define a function of this name."""
    definition = rf"^[ \t]*(?:(?!return\b|else\b)[\w:<>*&]+[ \t]+)+{helper}\([^;{{}}]*\)\s*(?:const\s*)?\{{"
    return {path.name for path, lines in SOURCES.items() if re.search(definition, "\n".join(lines), re.MULTILINE)}


def test_a_helper_is_defined_once() -> None:
    found = {helper: homes_of(helper) for helper in HELPERS}
    assert all(len(homes) == 1 for homes in found.values()), found
    assert len(homes_of("load")) > 1  # which overloads in several: a second home is seen


def test_no_block_stands_twice() -> None:
    blocks: Counter[tuple[str, ...]] = Counter()
    for lines in SOURCES.values():
        code = [line.strip() for line in lines if line.strip() and not line.strip().startswith(("//", "#include"))]
        blocks.update({tuple(code[i : i + BLOCK]) for i in range(len(code) - BLOCK + 1)})
    twice = ["\n".join(block) for block, count in blocks.items() if count > 1]
    assert not twice, twice[0]


def test_a_checkout_that_cannot_be_written_is_taken_as_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.delenv("KERNELPAIR_LIBRARY", raising=False)
    monkeypatch.setattr("properties.suite.open", refuse, raising=False)
    NativeSources().bring_up_to_date(properties.ROOT)
    (tmp_path / "CMakeLists.txt").write_text("# newer than what was built")
    with pytest.raises(BuildError, match=r"csrc has changed, and .* cannot be written: Read-only file system"):
        NativeSources().bring_up_to_date(tmp_path)


# --- a build says how far it is ---


def test_a_build_says_how_far_it_is(tmp_path: Path) -> None:
    """After its first step, then now and then: the clock goes on by half of that for each line."""
    said: list[str] = []
    ninja = "for step in 1 2 3 4 5; do echo \"[$step/5] Building CXX object $step.o\"; done; echo done"
    run_told(["sh", "-c", ninja], tmp_path, said.append, count(0.0, TELL_SECONDS / 2 + 0.5).__next__)
    assert said == [f"building what has changed: {done} of 5 steps, {left} s left" for done, left in ((1, 12), (3, 6), (5, 0))]


def test_a_build_that_has_nothing_to_do_is_silent(tmp_path: Path) -> None:
    said: list[str] = []
    run_told(["sh", "-c", "echo '[0/2] Re-checking globbed directories...'; echo 'ninja: no work to do.'"], tmp_path, said.append)
    assert said == []


def test_a_build_that_fails_says_its_first_error(tmp_path: Path) -> None:
    broken = "echo '[1/2] Building a.o'; echo 'a.cpp:3:1: error: expected ;' >&2; echo 'a.cpp:9:1: error: more'; exit 1"
    with pytest.raises(BuildError, match=r"^a.cpp:3:1: error: expected ;$"):
        run_told(["sh", "-c", broken], tmp_path, lambda says: None)
    with pytest.raises(BuildError, match=r"^no/such/program: "):
        run_told(["no/such/program"], tmp_path, lambda says: None)
    with pytest.raises(BuildError, match=r"^no message$"):
        run_told(["false"], tmp_path, lambda says: None)
