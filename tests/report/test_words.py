"""What a run comes to, in sentences."""

from kernelpair.report.lines import FailureReport, PairResult
from kernelpair.report.words import next_steps, not_tried, proven, shortest_first, thin

LONG = FailureReport("value", "{" + "x" * 90 + "}", "kernelpair replay long", "out: 3 of 9")
SHORT = FailureReport("crash", "{x}", "kernelpair replay short", "SIGSEGV")
PASSED = PairResult("conv", "avx2", "pass", cases=1200, seconds=3)
FAILED = PairResult("decode", "avx2", "fail", cases=7, failures=[LONG])
CRASHED = PairResult("extend", "scalar", "fail", cases=2, failures=[SHORT])
SKIPPED = [PairResult(pair, "amx", "skip", "this CPU lacks AMX") for pair in ("conv", "decode", "extend")]


def test_a_pass_says_on_how_much() -> None:
    assert proven([PASSED, *SKIPPED]) == "No failure in 1,200 cases of conv on avx2."
    assert not_tried([PASSED, *SKIPPED]) == "Not tried: amx (this CPU lacks AMX)."


def test_what_a_provider_lacks_is_not_the_provider() -> None:
    lacks = [PairResult(pair, "provider:mine.py", "skip", "mine has no such kernel") for pair in ("conv", "extend")]
    one = PairResult("decode", "provider:mine.py", "pass", cases=1200, seconds=3)
    assert not_tried([one, *lacks]) == "Not tried: conv[mine.py] and extend[mine.py] (mine has no such kernel)."
    assert not_tried(lacks) == "Not tried: mine.py (mine has no such kernel)."


def test_a_failure_says_where_and_what_else_was_tried() -> None:
    assert proven([PASSED, FAILED]) == "Failed: decode[avx2]; 1 other trial found nothing in 1,200 cases."
    assert proven([FAILED], interrupted=True) == "Failed when it was interrupted: decode[avx2]."


def test_nothing_tested_is_no_pass() -> None:
    assert proven(SKIPPED) == "Nothing was tested."
    assert next_steps(SKIPPED) == ["see above why nothing was tried, and what this machine can run: kernelpair doctor"]


def test_the_shortest_failure_comes_first_and_is_the_next_step() -> None:
    assert shortest_first([FAILED, PASSED, CRASHED]) == [CRASHED, FAILED]
    steps = next_steps([FAILED, CRASHED])
    assert steps[0].endswith("replay with -v") and any("--html" in step for step in steps)
    assert not any("--html" in step for step in next_steps([FAILED], page="report.html"))


def test_a_pass_says_kindly_that_nothing_needs_doing() -> None:
    assert next_steps([PASSED])[0].startswith("nothing needs doing")


def test_a_pass_of_few_cases_asks_for_more() -> None:
    one = PairResult("conv", "avx2", "pass", cases=1, seconds=3)
    assert next_steps([PASSED, one]) == ["more cases, for so few prove little: kernelpair check conv --seconds 60"]
    many = [PairResult(f"pair{i}", "avx2", "pass", cases=900) for i in range(30)]
    assert next_steps(many)[0].endswith(": kernelpair check --seconds 600")
    assert next_steps([*many, one])[0].endswith(": kernelpair check conv --seconds 60")  # of that pair alone
    assert next_steps([PASSED], few=True) == ["more cases of what is thin (above)"]


def test_a_pair_of_which_edges_were_drawn_on_no_tier_is_thin() -> None:
    """What one tier drew counts for all: the strategy is theirs together."""
    rare = [
        PairResult("conv", "avx2", "pass", cases=60, uncovered=["empty", "long"]),
        PairResult("conv", "scalar", "pass", cases=40, uncovered=["empty", "wide"]),
        PairResult("store", "avx2", "pass", cases=9, uncovered=["far"]),
        PairResult("store", "scalar", "pass", cases=9),
    ]
    said = "Thin: conv (100 cases, 1 edge never drawn). For more: kernelpair check conv --examples 200"
    assert thin([*rare, *SKIPPED, FAILED]) == said
    assert thin([PASSED, *SKIPPED]) == ""


def test_what_asks_for_more_cases_asks_for_the_same_kernels() -> None:
    """`kernelpair check` alone would try our own."""
    foreign = PairResult("conv", "provider:my kernels.py on amx", "pass", cases=1200, seconds=3, uncovered=["empty"])
    command = "kernelpair check conv --provider 'my kernels.py' --cpu amx"
    assert next_steps([foreign, *SKIPPED])[0].endswith(f": {command} --seconds 600")
    assert thin([foreign]).endswith(f"For more: {command} --examples 4800")


def test_a_run_that_is_thin_throughout_is_repeated_without_a_line_of_names() -> None:
    rare = [PairResult(f"pair{i}", "avx2", "pass", cases=9, uncovered=["far"]) for i in range(30)]
    assert thin(rare).endswith("For more: kernelpair check --examples 200")
    many = [PairResult(f"other{i}", "avx2", "pass", cases=9) for i in range(30)]
    assert " pair17 " in thin([*rare, *many]), "the others need none"
