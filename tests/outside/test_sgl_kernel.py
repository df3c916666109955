"""The sgl_kernel provider, on a stand-in package that has the published schemas over our own kernels."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelpair.cli import main
from kernelpair.contract.case import Case, to_line
from kernelpair.providers.provider import Unsupported, provider
from properties.decode_attention.cases import DecodeAttentionCase
from properties.flash_attn_varlen.cases import INDICES, VarlenCase
from properties.fp8_linear.cases import Fp8LinearCase
from properties.fused_moe.cases import MoeCase
from properties.int4_linear.cases import Int4Case
from properties.int8_linear.cases import Int8Case
from properties.quantize_rows_int8.cases import QuantizeCase
from properties.topk_gating.cases import TopkCase

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


def scaled(result: Tensor) -> Tensor:
    return result * 1.02


def without_the_last_column(result: Tensor) -> Tensor:
    result[..., -1:] = 0
    return result


def row_before(result: Tensor) -> Tensor:
    return result.roll(1, 0)


def one_code_more(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    q, scale = result
    q[..., -1:] += 1
    return q, scale


def weights_of_a_neighbour(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return result[0].roll(1, -1), result[1]


BF16: dict[str, Any] = {"dtype": "bfloat16"}
TOKENS: dict[str, Any] = {**BF16, "tokens": 3, "D": 32, "I": 32}
BIASED: dict[str, Any] = {"bias": "float32", "scoring": "sigmoid"}
FAULTS: list[tuple[str, Case, str, Callable[[Any], Any]]] = [
    ("quantize_rows_int8", QuantizeCase(**BF16, rows=3, width=64), "per_token_quant_int8_cpu", one_code_more),
    ("int8_linear", Int8Case(**BF16, outer=(4,), N=64, K=64), "int8_scaled_mm_with_quant", scaled),
    ("int8_linear", Int8Case(**BF16, form="matmul", outer=(4,), N=64, K=64), "int8_scaled_mm_cpu", row_before),
    ("fp8_linear", Fp8LinearCase(**BF16, outer=(4,), N=64, K=256, block="128x128"), "fp8_scaled_mm_cpu", without_the_last_column),
    ("int4_linear", Int4Case(**BF16, outer=(4,), N=64, K=128, group=64, activation="int8", points="nibble", scale="bfloat16"),
     "int4_scaled_mm_cpu", scaled),
    ("fused_moe", MoeCase(**TOKENS, experts=2, topk=2, int32=("topk_ids",)), "fused_experts_cpu", row_before),
    ("fused_moe", MoeCase(**TOKENS, experts=2, int8=True, int32=("topk_ids",)), "fused_experts_cpu", without_the_last_column),
    ("fused_moe", MoeCase(**TOKENS, form="shared", block="128x128", routed=True), "shared_expert_cpu", without_the_last_column),
    ("flash_attn_varlen", VarlenCase(**BF16, rows=(5,), lens=(5,), width=32, width_v=32, causal="all", int32=INDICES),
     "flash_attn_varlen_func", scaled),
    ("topk_gating", TopkCase(**BF16, **BIASED, tokens=3, experts=16, topk=4), "topk_sigmoid_cpu", weights_of_a_neighbour),
    ("topk_gating", TopkCase(**BF16, **BIASED, tokens=3, experts=128, groups=8, kept=4, topk=8, scaling=2.5),
     "biased_grouped_topk_cpu", weights_of_a_neighbour),
]  # fmt: skip


@pytest.mark.parametrize(("pair", "case", "operator", "fault"), FAULTS)
def test_a_fault_of_the_stand_in_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pair: str, case: Case, operator: str, fault: Callable[[Any], Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STANDINS))
    replay = ["replay", to_line(pair, 1, case), "--provider", "sgl_kernel", "--in-process"]
    assert main(replay) == 0
    monkeypatch.setitem(importlib.import_module("sgl_kernel").FAULTS, operator, fault)
    assert main(replay) == 1


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


NAMES = [("k_buf_scale", "v_buf_scale"), ("k_cache_scale", "v_cache_scale")]


@pytest.mark.parametrize(("kind", "stands_for_none"), [("Tensor?", None), ("float", 1.0)])
@pytest.mark.parametrize("names", NAMES)
def test_scales_of_a_cache_in_float8_are_named(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], kind: str, stands_for_none: float | None
) -> None:
    """Newer versions have them as arguments without a default, under one name in extend and under another in decode; the newest
    as numbers."""
    from properties.providers.sgl_kernel import attention, calling

    schema = torch._C.parse_schema(f"attention(Tensor q, {kind} {names[0]}, {kind} {names[1]}) -> ()")
    given: list[dict[str, object]] = []

    class Operator:
        _schema = schema

        def __call__(self, **values: object) -> None:
            given.append(values)

    monkeypatch.setattr(calling, "_operator", lambda name: Operator())
    calling.call("attention", q=torch.ones(1), **attention.NO_SCALES)
    assert [given[0][name] for name in names] == [stands_for_none, stands_for_none]


def test_a_decode_step_without_a_new_key_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator wants slots even where there is nothing to store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STANDINS))
    line = to_line("decode_attention", 1, DecodeAttentionCase(**BF16, lens=(3,), width=32, width_v=32))
    assert main(["replay", line, "--provider", "sgl_kernel", "--in-process"]) == 0
    said = capsys.readouterr().out
    assert "unsupported" not in said and "pass" in said, said


def test_a_prefix_wants_a_cache_of_the_new_keys_shape() -> None:
    """Also that of a request which fills up the batch."""
    from properties.providers.sgl_kernel import attention

    rows, cache, ones = torch.ones(1, 2, 32), torch.ones(1, 1, 32), torch.ones(2, dtype=torch.int64)
    with pytest.raises(Unsupported, match="prefix"):
        attention.extend_attention.call(
            rows, rows, rows, rows, cache, cache, ones[None], ones, ones, torch.tensor([1, 0]), ones, None, None, sm_scale=1.0
        )


@pytest.mark.parametrize(("takes_a_scale", "alignment"), [(True, "bottom_right"), (False, "top_left")])
def test_causal_rows_stand_where_the_version_has_them(
    monkeypatch: pytest.MonkeyPatch, takes_a_scale: bool, alignment: str
) -> None:
    from properties.providers.sgl_kernel import varlen

    asked: list[bool] = []
    monkeypatch.setattr(varlen, "takes", lambda name, argument: takes_a_scale)
    monkeypatch.setattr(varlen, "call", lambda name, **values: asked.append(values["causal"]))
    given = {name: torch.ones(4, 1, 2) for name in "qkv"} | dict(zip(INDICES, (torch.tensor([0, 2]), torch.tensor([0, 4]))))
    for wanted in ("bottom_right", "top_left"):
        if wanted == alignment:
            varlen.flash_attn_varlen.call(**given, causal=True, alignment=wanted)
        else:
            with pytest.raises(Unsupported, match="in versions that take a scale"):
                varlen.flash_attn_varlen.call(**given, causal=True, alignment=wanted)
    assert asked == [True]
    turned = given | dict(zip(INDICES, (torch.tensor([0, 4]), torch.tensor([0, 2]))))
    with pytest.raises(Unsupported, match="every row sees a key"):
        varlen.flash_attn_varlen.call(**turned, causal=True, alignment=alignment)
