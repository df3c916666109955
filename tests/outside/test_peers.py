"""The providers that stand for peers of the contest: what they say of themselves holds, and what is timed is what is tried."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import properties
from kernelpair.call.form import bits_of
from kernelpair.providers.provider import Provider, Unsupported, provider, ready
from kernelpair.timing.cases import row_of
from kernelpair.timing.peers import arguments_of
from properties.providers.quantized_rows import quantized_rows
from reference.quantize_rows_int8 import quantize_rows_int8
from tests.command_line import kernelpair

PEERS = ("onednn", "onnxruntime", "zentorch")
FAILING = {("zentorch", pair) for pair in (  # see docs/findings
    "int8_linear", "int4_linear", "rms_norm", "causal_conv1d", "gated_delta_rule_update", "chunk_gated_delta_rule",
    "flash_attn_varlen", "fused_moe",
)}
ADAPTED = [(name, pair) for name in PEERS for pair in sorted(provider(name).adapters)]


def usable(name: str, pair: str = "") -> Provider:
    """The provider; the test is skipped, with the provider's reason, where this machine lacks it, or its kernel of the pair."""
    found = provider(name)
    reason = ready(found) or (found.lacks(pair) if pair else "")
    if reason:
        pytest.skip(reason)
    return found


@pytest.mark.parametrize(("name", "pair"), [each for each in ADAPTED if each not in FAILING])
def test_a_peer_passes_within_its_limits(name: str, pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    """But for the memory that every call of zentorch keeps (ZT-04)."""
    usable(name, pair)
    status = kernelpair("check", pair, "--provider", name, "--examples", "60", "--seed", "4")
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL ")]
    told = [line for line in failures if name == "zentorch" and " leak: heap: " in line]
    assert failures == told and status == bool(told), failures


@pytest.mark.parametrize(("name", "pair"), ADAPTED)
def test_what_is_timed_is_what_is_tried(name: str, pair: str) -> None:
    """On the pair's own case each way gives the adapter's bits. Arguments are made anew for each, for calls may change them."""
    found, judged = usable(name, pair), properties.pairs()[pair]
    getattr(found.module, "prepare", lambda: None)()
    case, adapter = row_of(judged, found.adapter(pair).fit(judged.bench.case)), found.adapter(pair)
    given = arguments_of(case)
    out = adapter.call(**given)
    for way in adapter.timed(arguments_of(case)):
        again = arguments_of(case)
        assert same(adapter.timed(again)[way](), out) and same(again, given), way


def same(one: Any, other: Any) -> bool:
    """Whether two results, or all arguments of two calls, have the same bits."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits_of(one) == bits_of(other)
    if isinstance(one, dict):
        return all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, (tuple, list)):
        return all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", PEERS)
def test_the_version_is_known_where_a_peer_can_be_used(name: str) -> None:
    assert re.fullmatch(r"\d+(\.\d+)+\S*", usable(name).module.version())


# --- onnxruntime ---


def test_onnxruntime_names_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    module = provider("onnxruntime").module
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert module.missing() == "not installed: onnxruntime, onnx; make peers"


def test_onnxruntime_has_a_session_for_each_number_of_threads() -> None:
    usable("onnxruntime")
    from properties.providers.onnxruntime import OneOperator

    weight = torch.eye(8)
    model = OneOperator("MatMul", {"x": torch.float32}, {"out": torch.float32}, ("x", "w"), {"w": weight})
    x, out, threads = torch.arange(16.0).view(2, 8), torch.zeros(2, 8), torch.get_num_threads()
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            model({"x": x}, {"out": out.zero_()})
            assert torch.equal(out, x)
    finally:
        torch.set_num_threads(threads)
    assert sorted(model.sessions) == [1, 2]


def test_onnxruntime_refuses_rows_of_bfloat16() -> None:
    found = usable("onnxruntime")
    for pair in ("packed_linear", "int4_linear"):
        judged = properties.pairs()[pair]
        with pytest.raises(Unsupported, match="no kernel for bfloat16"):
            found.adapter(pair).timed(arguments_of(row_of(judged, judged.bench.case)))


# --- zentorch ---


def test_zentorch_is_refused_beside_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = provider("zentorch").module
    monkeypatch.setattr(module, "version", lambda: "9.99.0.1")
    assert "zentorch 9.99.0.1 is built for torch 9.99, this is " in module.missing()
    monkeypatch.setattr(module, "version", lambda: "")
    assert module.missing() == "zentorch is not installed: make peers"


# --- onednn ---


def test_onednn_refuses_what_the_cpu_has_no_instructions_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both where a case is judged and where a row is timed."""
    found, pairs = usable("onednn"), properties.pairs()
    monkeypatch.setattr(found.module, "_dtypes", lambda: ["float32"])
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    case, adapter = pairs["packed_linear"].bench.case, found.adapter("packed_linear")
    assert any(outside(case) for outside in adapter.limits.values())
    with pytest.raises(Unsupported, match="instructions for bfloat16"):
        adapter.timed(arguments_of(row_of(pairs["packed_linear"], case)))
    assert "without VNNI" in found.lacks("int8_linear")
    with pytest.raises(Unsupported, match="without VNNI"):
        found.calls(pairs["int8_linear"], pairs["int8_linear"].bench.rows[0], {})
    single = replace(pairs["packed_linear"].bench.case, dtype="float32")
    assert not any(outside(single) for outside in found.adapter("packed_linear").limits.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_quantized_by_torch_have_the_bits_of_the_contract(dtype: torch.dtype) -> None:
    x = torch.randn(97, 130, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[3], x[4] = 0.0, x[4] * 1e-8
    q, scale = quantized_rows(x)
    expected, scales, _ = quantize_rows_int8(x)
    assert torch.equal(q, expected) and torch.equal(scale[:, 0], scales)
    x[5, 7], x[6, 1] = torch.nan, torch.inf
    _, scale = quantized_rows(x)
    assert scale[5].isnan() and not scale[6].isfinite() and scale[7].isfinite()
