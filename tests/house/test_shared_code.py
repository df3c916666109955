"""docs/contracts/shared-code.md tells the truth: it lists what both sides import, and its tests notice errors there."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelpair.pytest_plugin import profile_name
from tests.house.test_imports import MODULES, ROOT, within

PAGE = ROOT / "docs/contracts/shared-code.md"
PLANTED = {  # id -> file, text, what stands there instead
    "metadata-default": ("metadata.py", "encoder_max_seq_len_k: int = 0", "encoder_max_seq_len_k: int = 1"),
    "mode-missing": ("batch.py", '("extend", "mixed", "draft_extend")', '("extend", "mixed")'),
    "static-mode-missing": ("static_metadata.py", '(*DECODE_MODES, "target_verify")', "DECODE_MODES"),
    "one-batch-too-many": ("static_metadata.py", "if bs > self.max_bs:", "if bs > self.max_bs + 1:"),
    "first-step-first": ("static_metadata.py", "for step in reversed(self.steps)][::-1]", "for step in self.steps]"),
    "negative-drafts": ("checks.py", 'check_count("num_draft_tokens", num_draft_tokens)', "pass"),
    "pages-cut": ("checks.py", "if attn_chunk_size % page_size:", "if False:"),
    "chunks-unasked": ("layers.py", "if attn_chunk_size is None and any", "if attn_chunk_size == 0 and any"),
    "bias-of-any-size": ("checks.py", "if bias is not None and list(bias.shape)", "if bias is None and list(weight.shape)"),
    "pad-by-default": ("metadata.py", "pad_slot: int | None = None", "pad_slot: int | None = -1"),
    "weight-not-frozen": ("packed.py", "@dataclass(frozen=True)\nclass PackedWeight", "@dataclass\nclass PackedWeight"),
    "fp8-weight-not-frozen": ("packed.py", "@dataclass(frozen=True)\nclass PackedFp8W", "@dataclass\nclass PackedFp8W"),
    "int8-weight-not-frozen": ("packed.py", "@dataclass(frozen=True)\nclass PackedInt8W", "@dataclass\nclass PackedInt8W"),
    "int4-weight-not-frozen": ("packed.py", "@dataclass(frozen=True)\nclass PackedInt4", "@dataclass\nclass PackedInt4"),
    "conv-weight-not-frozen": ("packed.py", "@dataclass(frozen=True)\nclass PackedConv", "@dataclass\nclass PackedConv"),
    "sizes-of-blocks": ("packed.py", "torch.tensor([self.N, self.K])", "torch.tensor([self.N, -(-self.K // 32) * 32])"),
    "expert-sizes-unchecked": ("packed.py", "_check_data(data, [E, _blocks(N), _blocks(K), 2, 32 // r, 16 * r], sizes)", "pass"),
    "int8-expert-sizes-unchecked": ("packed.py", "_check_data(data, [E, _blocks(N), -(-K // 64), 2, 16, 64], sizes)", "pass"),
    "fp8-expert-sizes-unchecked": ("packed.py", "_check_data(data, [E, _blocks(N), _blocks(K), 2, 16, 32], sizes)", "pass"),
    "conv-sizes-unchecked": ("packed.py", "_check_data(data, [_blocks(dim), (width + 1) // 2, 32, 2], sizes)", "pass"),
    "scales-of-any-number": ("checks.py", "if list(scale.shape) != list(shape):", "if scale.dim() != len(shape):"),
    "not-renormalized-by-default": ("experts.py", "renormalize: bool = True", "renormalize: bool = False"),
    "router-of-any-size": ("experts.py", "if list(router.shape) != [w13.E, w13.K]:", "if router.dim() != 2:"),
    "two-are-shared": ("experts.py", "if stack.E != 1:", "if stack.E < 1:"),
    "rows-of-the-first-dimension": ("experts.py", "x.reshape(-1, x.shape[-1])", "x.reshape(x.shape[0], -1)"),
    "window-by-default": ("layers.py", "sliding_window: int = -1", "sliding_window: int = 0"),
    "keys-of-any-dtype": ("layers.py", "        if not fits:", "        if fits is None:"),
    "one-new-request-is-enough": ("mla.py", "batch.extend_seq_lens).all())", "batch.extend_seq_lens).any())"),
    "projections-of-any-size": ("mla.py", "if value.dim() != 3 or (value", "if value.dim() != 3 and (value"),
    "rows-without-pads": ("batch.py", "return self.size if self.padded_size is None else self.padded_size", "return self.size"),
    "mode-unchecked": ("batch.py", "if batch.mode not in MODES:", "if not batch.mode:"),
    "values-unchecked": ("batch.py", "if (k is None) != (v is None):", "if k is None and v is not None:"),
    "any-step-of-a-draft": ("batch.py", "batch.speculative_step_id >= steps:", "batch.speculative_step_id > steps:"),
    "no-batch-needed": ("batch.py", "    if not kept:", "    if kept == ():"),
    "heads-unchecked": ("layers.py", "if layer.heads % layer.kv_heads:", "if layer.heads < layer.kv_heads:"),
    "prefills-nothing": ("backend.py", 'raise ValueError("forward_extend: the mla backend decodes only")', "return q"),
}
PLANT = '''
import importlib.util, sys

class Planted:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, "{path}") if name == "{module}" else None

assert "{module}" not in sys.modules
sys.meta_path.insert(0, Planted())
'''
TRIED = sorted(PLANTED) if profile_name() == "nightly" else ["first-step-first", "metadata-default"]  # 5 s each


def rows() -> Iterator[tuple[set[str], str, str]]:
    """The table of the page: shared names, the test, the id of the error."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "`" in cells[0]:
            yield set(re.findall(r"`(\w+)`", cells[0])), cells[2].strip("`"), cells[3].strip("`")


def taken(package: str) -> set[str]:
    """The names that the modules of a package take from serving, imported or read from the package."""
    found = set()
    for name, path in MODULES.items():
        if not within(name, (package,)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and within(node.module or "", ("serving",)):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "serving":
                found.add(node.attr)
    return found


def test_the_page_lists_what_both_sides_import() -> None:
    listed = set().union(*(names for names, _, _ in rows()))
    both = taken("reference") & taken("optimized")
    assert len(both) > 15
    assert not both - listed, "missing on the page"
    assert not listed - (taken("reference") | taken("optimized")), "on the page, but no side imports it"


def test_every_row_has_its_test_and_its_error() -> None:
    for names, test, error in rows():
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(), f"{names}: there is no {test}"
        assert error in PLANTED, f"{names}: {error} is not planted"
    assert sorted(error for _, _, error in rows()) == sorted(PLANTED)


@pytest.mark.parametrize("error", TRIED)
def test_an_error_in_shared_code_is_noticed(error: str, tmp_path: Path) -> None:
    file, text, instead = PLANTED[error]
    source = (ROOT / "serving" / file).read_text()
    assert source.count(text) == 1, f"{file} does not hold {text!r} once"
    (tmp_path / file).write_text(source.replace(text, instead))
    (tmp_path / "planted.py").write_text(PLANT.format(module=f"serving.{Path(file).stem}", path=tmp_path / file))
    test = next(test for _, test, planted in rows() if planted == error)
    command = [sys.executable, "-m", "pytest", "-p", "planted", "-p", "no:cacheprovider", "-x", "-q", test]
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    said = f"{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    assert ran.returncode == 1 and " failed" in ran.stdout, f"{test} does not notice it:\n{said}"
