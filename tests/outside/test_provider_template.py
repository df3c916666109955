"""The template of docs/8-somebody-elses-kernels.md, copied and run as the page says."""

import shutil
from pathlib import Path

import pytest

import properties
from kernelpair.cli import main


def test_the_template_gives_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(properties.ROOT / "docs" / "provider_template.py", "my_provider.py")
    assert main(["list", "--provider", "my_provider.py"]) == 0
    out = capsys.readouterr().out
    assert "store_cache  my_store\n  unsupported  no pads\n  unsupported  float dtypes\n" in out
    assert main(["check", "store_cache", "--provider", "my_provider.py", "--examples", "80", "--seed", "1"]) == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out
    text = Path("my_provider.py").read_text()
    Path("my_provider.py").write_text(text.replace("v_cache[indices.long()] = v", "v_cache[indices.long()] = -v"))
    monkeypatch.setattr("sys.modules", dict(__import__("sys").modules))
    assert main(["check", "store_cache", "--provider", "my_provider.py", "--examples", "80", "--seed", "1"]) == 1
