"""Per kernel: which cases its contract allows, how far it may be from the truth, what else must hold. One module a stem.

`pairs()` finds every module here that has a `PAIR`; no list is edited by hand.
"""

from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from kernelpair.pair import Pair

ROOT = Path(__file__).resolve().parent.parent


@cache
def pairs() -> dict[str, Pair]:
    """Every pair by name, in alphabetical order."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")) + sorted((Path(__file__).parent / "trials").glob("*.py")):
        package = "properties" if path.parent.name == "properties" else "properties.trials"
        if path.stem.startswith("_"):
            continue
        pair = getattr(import_module(f"{package}.{path.stem}"), "PAIR", None)
        if pair is not None:
            found[pair.name] = replace(pair, files=_files(path, pair.name))
    return dict(sorted(found.items()))


def _files(path: Path, name: str) -> dict[str, str]:
    """Role -> path relative to the project, for the files that exist."""
    wanted = {
        "reference": f"reference/{name}.py",
        "operator": f"csrc/ops/{name}.cpp",
        "kernel": f"csrc/kernels/{name}.cpp",
        "wrapper": f"optimized/{name}.py",
        "contract": f"docs/contracts/{name}.md",
    }
    here = {role: file for role, file in wanted.items() if (ROOT / file).exists()}
    return {"properties": str(path.relative_to(ROOT)), **here}
