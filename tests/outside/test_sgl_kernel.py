"""The sgl_kernel provider, on a stand-in package that has the published schemas over our own kernels."""

import json
from pathlib import Path

import pytest
import torch

from kernelpair.cli import main
from kernelpair.providers.provider import Unsupported, provider

STANDINS = Path(__file__).parents[1] / "standins"
PAIRS = sorted(provider("sgl_kernel").adapters)


def test_without_the_package_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("KERNELPAIR_SGL_KERNEL", raising=False)
    assert main(["check", "--provider", "sgl_kernel"]) == 2
    assert "the package sgl_kernel is not installed; name its library with KERNELPAIR_SGL_KERNEL" in capsys.readouterr().err
    monkeypatch.setenv("KERNELPAIR_SGL_KERNEL", "nowhere.so")
    assert main(["check", "--provider", "sgl_kernel"]) == 2
    assert "KERNELPAIR_SGL_KERNEL names nowhere.so, which is no file" in capsys.readouterr().err


def test_every_kernel_of_the_stand_in_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STANDINS))
    assert main(["check", *PAIRS, "--provider", "sgl_kernel", "--examples", "60", "--seed", "1", "--json", "r.json"]) == 0
    results = {result["pair"]: result for result in json.loads(Path("r.json").read_text())["results"]}
    assert set(results) == set(PAIRS)
    assert all(result["verdict"] == "pass" and result["cases"] >= 10 for result in results.values()), results


def test_what_a_version_lacks_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STANDINS))
    from properties.providers.sgl_kernel import call, prepare

    prepare()
    tensor = torch.ones(2)
    for name, values, says in (
        ("no_such_operator", {}, "this version has no no_such_operator"),
        ("convert_weight_packed", {"weight": tensor, "scales": tensor}, "no argument scales"),
        ("convert_weight_packed", {"weight": None}, "needs weight"),
        ("weight_packed_linear", {"mat1": tensor, "mat2": tensor, "bias": None}, "wants an argument is_vnni"),
    ):
        with pytest.raises(Unsupported, match=says):
            call(name, **values)
    packed = call("convert_weight_packed", weight=torch.ones(2, 2), scales=None)  # nothing is asked for
    assert packed.shape == (1, 1, 2, 32, 16, 1)
