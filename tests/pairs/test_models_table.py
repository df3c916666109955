"""The table of the model trial: layer by layer, with the first one beyond its bound marked, and end to end at its foot."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from kernelpair.cli import main
from kernelpair.cli.table import FIRST, remarks, show_table
from kernelpair.contract.case import to_line
from kernelpair.contract.pair import Outputs, Pair, Stepwise
from kernelpair.contract.verdict import Judged, PlaceRow, PlaceTable
from optimized import tiers
from optimized.backends.slot import SlotBackend
from properties import pairs
from properties.scenarios.models.bound import verdict
from properties.scenarios.models.cases import FAMILIES, ModelCase
from properties.scenarios.models.runner import serve_optimized
from properties.scenarios.models.sides import inputs
from properties.suite import subject
from serving import AttentionLayer

BEST = [tier.name for tier in tiers() if tier.runnable and not tier.name.startswith("amx")][-1]


def a_case(family: str, dtype: str, paged: bool = False) -> ModelCase:
    images = (4, 0, 7) if family == "mllama" else ()
    return ModelCase(  # type: ignore[arg-type]
        family=family, dtype=dtype, prompts=(5, 9, 3), decodes=4, chunk=4, paged=paged, page=4, images=images
    )  # fmt: skip


def served(case: ModelCase) -> tuple[dict[str, Any], Outputs]:
    given = inputs(case)
    return given, serve_optimized(**given)


def shown(table: PlaceTable, foot: str = "") -> str:
    text = io.StringIO()
    show_table(Console(file=text, width=60), table, foot)
    return text.getvalue()


def judged(case: ModelCase, given: dict[str, Any], outputs: Outputs) -> tuple[Judged, PlaceTable]:
    found = verdict(case, given, outputs)
    assert found.table is not None
    return found, found.table


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_layer_that_is_wrong_is_the_one_that_is_marked(family: str, dtype: str) -> None:
    case = a_case(family, dtype, paged=True)
    given, outputs = served(case)
    found, table = judged(case, given, outputs)
    layers = len(FAMILIES[family].kinds)
    assert not found.failures, found.failures
    assert [row.place for row in table.rows] == [*map(str, range(layers)), "head"]
    assert table.title == f"{family} {dtype}" and FIRST not in shown(table)
    for n in range(layers):
        found, table = judged(case, given, outputs | {f"out{n}": outputs[f"out{n}"] * 1.5})
        assert [bool(row.beyond) for row in table.rows] == [row.place == str(n) for row in table.rows]
        lines = [line for line in shown(table).splitlines() if FIRST in line]
        assert len(lines) == 1 and lines[0].split()[0] == str(n) and "fail  attention " in lines[0]
        assert all(one.tensor == f"out{n}" for one in found.failures)


def test_only_the_first_of_several_wrong_layers_is_marked() -> None:
    case = a_case("mllama", "float32")
    given, outputs = served(case)
    wrong = {name: outputs[name] * 1.5 for name in ("out1", "out2")}
    found, table = judged(case, given, outputs | wrong)
    assert [row.place for row in table.rows if row.beyond] == ["1", "2"]
    lines = shown(table).splitlines()
    assert [line.split()[0] for line in lines if FIRST in line] == ["1"] and sum("fail" in line for line in lines) == 2
    assert found.failures[0].tensor == "out1"


def test_a_linear_module_is_named_with_its_layer() -> None:
    case = a_case("gemma2", "float32")
    given, outputs = served(case)
    _, clean = judged(case, given, outputs)
    assert all(set(row.ratios) == {"attention", "linear modules"} for row in clean.rows[:-1])
    names = [name for name in outputs if name.startswith("linear")]
    wrong = {name: outputs[name] + 1 for name in names if given[f"w{name[6:]}"].shape[1] == 8}  # down_proj
    _, table = judged(case, given, outputs | wrong)
    assert [row.beyond.split()[0] for row in table.rows[:2]] == ["mlp.down_proj", "mlp.down_proj"] and not table.rows[2].beyond
    _, table = judged(case, given, outputs | {names[-1]: torch.full_like(outputs[names[-1]], torch.nan)})
    assert [row.place for row in table.rows if row.beyond] == ["head"] and "inf" in shown(table)


ABSORBED: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "queries without their rotary part": lambda q, k: (torch.cat([q[..., :16], 0 * q[..., 16:]], -1), k),
    "keys of the token before": lambda q, k: (q, k.roll(1, 0)),
    "a scale of the joint width": lambda q, k: (q * (16 / 24) ** 0.5, k),
    "latents rounded once more, to four bits": lambda q, k: (q, (k * 1.03).to(torch.float8_e4m3fn).to(k.dtype)),
}


@pytest.mark.parametrize("wrong", ABSORBED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_absorbed_layer_has_a_bound_with_power(dtype: str, wrong: str) -> None:
    case = a_case("deepseek_v3", dtype)
    given = inputs(case)
    spoilt = dict(zip(("q0", "k0"), ABSORBED[wrong](given["q0"], given["k0"])))
    _, table = judged(case, given, serve_optimized(**(given | spoilt)))
    assert [row.place for row in table.rows if row.beyond] == ["0"]


def test_the_larger_ratios_of_two_cases_are_kept() -> None:
    rows = PlaceRow("0", "a", {"attention": 0.5}), PlaceRow("head", "", {"linear modules": 0.2})
    worse = PlaceRow("0", "a", {"attention": 0.3, "linear modules": 2.0}, "x 2"), PlaceRow("head", "", {"linear modules": 0.1})
    one, two = PlaceTable("m", rows, "first"), PlaceTable("m", worse, "second")
    both = one.merged(two)
    assert both.rows[0] == PlaceRow("0", "a", {"attention": 0.5, "linear modules": 2.0}, "x 2")
    assert two.merged(one).rows[0].ratios == both.rows[0].ratios
    assert both.rows[1].ratios == {"linear modules": 0.2} and both.line == "first"


def test_a_backend_that_spoils_one_layer_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forward = SlotBackend.forward_decode

    def spoilt(self: SlotBackend, q: Tensor, k: Any, v: Any, layer: AttentionLayer, *more: Any) -> Tensor:
        return forward(self, q, k, v, layer, *more) * (1.01 if layer.layer_id == 1 else 1.0)

    monkeypatch.setattr(SlotBackend, "forward_decode", spoilt)
    line = to_line("models", pairs()["models"].cases.version, a_case("mllama", "float32"))
    assert main(["replay", line, "--tier", BEST, "--in-process"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [text.split()[0] for text in lines if FIRST in text] == ["1"]
    rows = {text.split()[0]: text for text in lines if text.endswith("pass") or FIRST in text}
    assert all(rows[place].endswith("pass") for place in ("0", "2", "head")) and "cross attention" in rows["1"]


def test_the_foot_says_how_near_a_whole_run_comes(capsys: pytest.CaptureFixture[str]) -> None:
    line = to_line("models", pairs()["models"].cases.version, a_case("gpt_oss", "float32"))
    assert main(["replay", line, "--tier", BEST, "-v"]) == 0
    out = capsys.readouterr().out
    assert "gpt_oss float32, largest error / bound" in out and "self attention, sliding window 6, sinks" in out
    assert "end to end (reported, not judged): logits differ by" in out.splitlines()[-1]


def with_remark(entry: str) -> Pair:
    models = pairs()["models"]
    assert isinstance(models.truth, Stepwise)
    return replace(models, truth=replace(models.truth, remark=entry))


def test_a_whole_run_that_dies_is_said_at_the_foot() -> None:
    pair = with_remark("tests.kernels:dies")
    case = a_case("gemma2", "float32")
    assert "nothing is known beyond this: SIGABRT" in remarks(subject(pair, BEST), [case], ())[0]
    assert remarks(subject(with_remark(""), BEST), [case], ()) == [""]
