"""A case is one line of JSON: it comes back as the same case, and a line that is no case is refused in words."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings

import properties
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL, Case, CaseError, from_values, pair_of_line, to_line
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.search.drawing import trials
from kernelpair.trial.check import known_trials, read_case
from properties.store_cache.cases import StoreCacheCase
from tests.selftest.toy import PAIR as TOY
from tests.selftest.toy import ToyCase

PAIRS = properties.pairs()
DRAWN = 30  # cases of each pair: enough for each of its fields to leave its default


def line_of(pair: Pair, case: Any) -> str:
    return pair.line(case)


def toy(**values: Any) -> str:
    """A line of the toy pair with these fields."""
    return json.dumps({"pair": "toy", "v": TOY.cases.version, **values})


def refusal(line: str, pairs: dict[str, Pair] | None = None) -> str:
    with pytest.raises(CaseError) as refused:
        read_case(pairs or {"toy": TOY}, line)
    return str(refused.value)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_drawn_case_comes_back_from_its_line(pair: Pair) -> None:
    @settings(max_examples=DRAWN, database=None, phases=[Phase.generate])
    @given(trials(Subject(pair, Candidate("any", ""))))
    def comes_back(case: Any) -> None:
        line = line_of(pair, case)
        assert "\n" not in line
        again = read_case(PAIRS, line)[1]
        assert again == case
        assert line_of(pair, again) == line

    comes_back()


def test_a_plain_case_is_a_short_line() -> None:
    assert line_of(TOY, ToyCase()) == '{"pair":"toy","v":1}'
    assert line_of(TOY, ToyCase(rows=3, seed=7, poison="outlier")) == '{"pair":"toy","v":1,"seed":7,"poison":"outlier","rows":3}'


def test_equal_cases_have_equal_lines() -> None:
    one = ToyCase(layout={"x": "padded", "out": "offset"}, rows=2)
    other = ToyCase(rows=2, layout={"out": "offset", "x": "padded"})
    assert one == other
    assert line_of(TOY, one) == line_of(TOY, other)


def test_every_trial_of_a_pair_can_be_named() -> None:
    pair = PAIRS["store_cache"]
    for trial in known_trials(pair):
        case = StoreCacheCase(trial=trial)
        assert read_case(PAIRS, line_of(pair, case))[1] == case
    assert f"{WRONG_CALL}index_negative" in known_trials(pair)


NO_CASES = ["", "{", "no json", "[1, 2]", "null", "7", '"toy"', "[" * 100_000, "9" * 5000, "{}", '{"pair": 3}']


@pytest.mark.parametrize("line", NO_CASES, ids=[line[:12] for line in NO_CASES])
def test_what_is_no_json_object_with_a_pair_is_refused(line: str) -> None:
    assert "JSON" in refusal(line)


def test_an_unknown_pair_is_refused_with_the_known_ones() -> None:
    assert refusal('{"pair":"tory","v":1}') == "unknown pair 'tory' (did you mean toy?); known are toy"


@pytest.mark.parametrize("version", [0, 2, -1, 10**30])
def test_another_version_is_refused(version: int) -> None:
    says = refusal(json.dumps({"pair": "toy", "v": version}))
    assert says == f"the case of toy has schema version {version}, this build reads version 1"


@pytest.mark.parametrize("rest", ["", ',"v":null', ',"v":"1"', ',"v":true', ',"v":1.0'])
def test_a_line_without_a_version_is_refused(rest: str) -> None:
    assert 'lacks its schema version "v"' in refusal(f'{{"pair":"toy"{rest}}}')


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rowz", 3),
        ("rows", "3"),
        ("rows", 1.5),
        ("rows", True),
        ("rows", None),
        ("rows", [1]),
        ("seed", "x"),
        ("dtype", 32),
        ("dtype", "float33"),
        ("dtype", "ones"),
        ("layout", "padded"),
        ("layout", {"x": 1}),
        ("layout", {"x": "zigzag"}),
        ("layout", {"x": "expanded"}),  # exists, but the contract does not allow it here
        ("layout", {"y": "padded"}),
        ("int32", "slots"),
        ("int32", ["x"]),
        ("poison", "zero"),
        ("guard", "middle"),
        ("trial", "magic"),
        ("trial", "wrong_call:magic"),
        ("trial", None),
        ("rows", -1),
        ("rows", -(10**30)),
        ("rows", 10**10),
        ("width", 10**30),
        ("spare", 10**12),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    assert field in refusal(toy(**{field: value}))


def test_a_saved_case_that_fits_is_read() -> None:
    pair, case = read_case({"toy": TOY}, toy(rows=2, width=3, layout={"x": "padded"}, guard="start"))
    assert pair is TOY
    assert case == ToyCase(rows=2, width=3, layout={"x": "padded"}, guard="start")


def test_too_large_is_judged_by_what_a_case_takes() -> None:
    plain = ToyCase(rows=1000, width=1000)
    assert read_case({"toy": TOY}, line_of(TOY, plain))[1] == plain
    assert "rows = 40000" in refusal(line_of(TOY, replace(plain, rows=40_000, width=40_000)))


@dataclass(frozen=True, kw_only=True)
class NumbersCase(Case):
    number: float = 0.0
    numbers: tuple[float, ...] = (0.0,)


@pytest.mark.parametrize("field", [{"number": -0.0}, {"numbers": (-0.0,)}])
def test_a_zero_keeps_its_sign_in_a_line(field: dict[str, Any]) -> None:
    line = to_line("numbers", 1, NumbersCase(**field))
    assert "-0.0" in line and to_line("numbers", 1, from_values(NumbersCase, "numbers", 1, *pair_of_line(line)[1:])) == line
    assert to_line("numbers", 1, NumbersCase()) == '{"pair":"numbers","v":1}'


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_number_that_no_line_holds_is_refused_in_a_tuple_too(number: float) -> None:
    for field in ({"number": number}, {"numbers": (1.0, number)}):
        with pytest.raises(ValueError, match="holds no such number"):
            NumbersCase(**field)  # type: ignore[arg-type]
