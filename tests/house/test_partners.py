"""Every kernel has all its parts, in every folder under the same stem."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import properties

ROOT = properties.ROOT
PAIRS = properties.pairs()
NATIVE = ("csrc/ops/{}.cpp", "csrc/kernels/{}.h", "csrc/kernels/{}.cpp")
EVERYWHERE = ("reference/{}.py", "properties/{}/__init__.py", "docs/contracts/{}.md")
NO_STEMS = {  # files of a folder that are no kernel: shared between kernels, or the folder's own
    "reference": {"__init__", "checks", "attention_core", "gated_delta_rule_prefill"},
    "optimized": {
        "__init__", "checks", "gated_delta_rule_prefill", "huge_pages", "library", "operators", "peak", "tiers", "trapped",
        "workspace",
    },
}
FORMS = {  # a pair of its own for a form of another's kernel
    "causal_conv1d_update_spec": "causal_conv1d",
    "gated_delta_rule_update_spec": "gated_delta_rule_update",
}


def stems(folder: str, suffix: str) -> set[str]:
    found = {path.stem for path in (ROOT / folder).glob(f"*{suffix}")}
    return {stem for stem in found - NO_STEMS.get(folder, set()) if not stem.startswith("_")}


def missing(stem: str, root: Path = ROOT) -> list[str]:
    """The partner files that this stem lacks; a kernel is native, or Python alone in optimized/."""
    lacking = [file.format(stem) for file in EVERYWHERE if not (root / file.format(stem)).exists()]
    native = [file.format(stem) for file in NATIVE if not (root / file.format(stem)).exists()]
    wrapped = (root / f"optimized/{stem}.py").exists()
    return lacking + (native if len(native) < len(NATIVE) or not wrapped else [])


def complaint(stems: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{stem} lacks {', '.join(files)}" for stem, files in stems.items() if files)


STEMS = sorted(
    set(PAIRS) - {name for name, pair in PAIRS.items() if "/scenarios/" in pair.files["properties"]}
    | stems("reference", ".py")
    | stems("optimized", ".py")
    | stems("csrc/ops", ".cpp")
)


@pytest.mark.parametrize("stem", STEMS)
def test_a_kernel_has_all_its_parts(stem: str) -> None:
    base = FORMS.get(stem)
    kept = {file.format(stem) for file in (*NATIVE, EVERYWHERE[0])} if base else set()
    lacking = [file for file in missing(stem) if file not in kept]
    assert not lacking and not (base and missing(base)), complaint({stem: lacking})


def test_every_pair_is_named_as_its_room() -> None:
    wrong = {name: pair.files["properties"] for name, pair in PAIRS.items() if Path(pair.files["properties"]).parent.name != name}
    assert not wrong


def test_the_complaint_names_the_file(tmp_path: Path) -> None:
    for file in ("reference/k.py", "properties/k/__init__.py", "csrc/ops/k.cpp", "docs/contracts/k.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert complaint({"k": missing("k", tmp_path)}) == "k lacks csrc/kernels/k.h, csrc/kernels/k.cpp"
    (tmp_path / "csrc/kernels").mkdir()
    (tmp_path / "csrc/kernels/k.h").touch()
    assert complaint({"k": missing("k", tmp_path)}) == "k lacks csrc/kernels/k.cpp"
    (tmp_path / "csrc/kernels/k.cpp").touch()
    assert not missing("k", tmp_path)
    (tmp_path / "docs/contracts/k.md").unlink()
    assert complaint({"k": missing("k", tmp_path)}) == "k lacks docs/contracts/k.md"


def test_a_kernel_in_python_alone_needs_no_native_file(tmp_path: Path) -> None:
    for file in ("reference/k.py", "properties/k/__init__.py", "optimized/k.py", "docs/contracts/k.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert not missing("k", tmp_path)
