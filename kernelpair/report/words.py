"""The outcome of a run in sentences: what was proven, what was not tried, and what to do next."""

from collections.abc import Sequence

from kernelpair.names import count
from kernelpair.providers.provider import PREFIX
from kernelpair.report.lines import PairResult, chosen

FEW = 4  # names that a sentence lists; of more it says how many
LEAST_CASES = 20  # of a pair, from which it can be said that nothing needs doing
TOLD = "at fault, as told above"
LINE_OF_PAIRS = 8  # names that a command on one line may have


def proven(results: Sequence[PairResult], interrupted: bool = False) -> str:
    """One sentence: what failed, or on how many cases nothing did; of which pairs, on what."""
    failed = [result for result in results if result.verdict == "fail"]
    passed = [result for result in results if result.verdict == "pass"]
    early = " when it was interrupted" if interrupted else ""
    if failed:
        where = _several([f"{result.pair}[{result.shown}]" for result in failed], "trials")
        rest = f"; {count(len(passed), 'other trial')} found nothing in {_cases(passed)}" if passed else ""
        return f"Failed{early}: {where}{rest}."
    if not passed:
        return f"Nothing was tested{early}."
    pairs = _several(_distinct(result.pair for result in passed), "pairs")
    candidates = _several(_distinct(result.shown for result in passed), "candidates")
    return f"No failure{early} in {_cases(passed)} of {pairs} on {candidates}."


def not_tried(results: Sequence[PairResult]) -> str:
    """One sentence: what was skipped, by its reason; empty where nothing was."""
    reasons: dict[str, list[PairResult]] = {}
    for result in results:
        if result.verdict == "skip":
            reasons.setdefault(TOLD if result.fault else result.reason, []).append(result)
    if not reasons:
        return ""
    parts, tried = [], {result.shown for result in results if result.verdict != "skip"}
    for reason, skipped in reasons.items():
        candidates = _distinct(result.shown for result in skipped if result.candidate)
        every = len(_distinct(result.pair for result in skipped)) > 1 and tried.isdisjoint(candidates)
        names = candidates if every else [_trial(result) for result in skipped]
        parts.append(f"{_several(names, 'trials')} ({reason})")
    return f"Not tried: {'; '.join(parts)}."


def _trial(result: PairResult) -> str:
    """A pair and its candidate; a pair that cannot be read has none."""
    return f"{result.pair}[{result.shown}]" if result.candidate else result.pair


def thin(results: Sequence[PairResult]) -> str:
    """One sentence: pairs of which some edges were drawn on no tier, and what to run for more; empty where there are none."""
    drawn: dict[str, list[PairResult]] = {}
    for result in results:
        if result.verdict == "pass":
            drawn.setdefault(result.pair, []).append(result)
    missed = {pair: set.intersection(*(set(result.uncovered) for result in each)) for pair, each in drawn.items()}
    few = sorted((pair for pair in missed if missed[pair]), key=lambda pair: -len(missed[pair]))
    if not few:
        return ""
    said = _several([f"{pair} ({_cases(drawn[pair])}, {count(len(missed[pair]), 'edge')} never drawn)" for pair in few], "pairs")
    most = max(-(-sum(result.cases for result in drawn[pair]) // len(drawn[pair])) for pair in few)
    named = few if len(few) <= LINE_OF_PAIRS or 2 * len(few) <= len(drawn) else []  # most of very many: all of them
    return f"Thin: {said}. For more: {_check(results, named)} --examples {max(4 * most, 200)}"


def _check(results: Sequence[PairResult], pairs: Sequence[str]) -> str:
    """The command that tries these pairs again, with the provider whose kernels were tried."""
    foreign = next((result.candidate for result in results if result.candidate.startswith(PREFIX)), "")
    return " ".join(["kernelpair check", *pairs, *([chosen(foreign)] if foreign else [])])


def shortest_first(results: Sequence[PairResult]) -> list[PairResult]:
    """The results that failed: those with the shortest case first, since it is the quickest to understand."""
    failed = [result for result in results if result.verdict == "fail"]
    return sorted(failed, key=lambda result: min((len(failure.case) or 2**31 for failure in result.failures), default=2**31))


def next_steps(
    results: Sequence[PairResult], page: str | None = None, interrupted: bool = False, faults: bool = False, few: bool = False
) -> list[str]:
    """What to do now: about the first failure, or, where there is none, that nothing needs doing. `faults`: something ended
    without a verdict, and was told above; `few`: so was that some pairs had few cases."""
    failed = shortest_first(results)
    if not failed:
        if faults:
            return ["mend what is at fault (above), then the same check again"]
        if interrupted:
            return ["the same check again, which was interrupted"]
        if not any(result.verdict == "pass" for result in results):
            return ["see above why nothing was tried, and what this machine can run: kernelpair doctor"]
        if few:
            return ["more cases of what is thin (above)"]
        passed = [result for result in results if result.verdict == "pass"]
        sparse = _distinct(result.pair for result in passed if result.cases < LEAST_CASES)
        tried = sparse or _distinct(result.pair for result in passed)
        again = _check(results, tried if len(tried) <= LINE_OF_PAIRS else [])
        if sparse:
            return [f"more cases, for so few prove little: {again} --seconds 60"]
        return [f"nothing needs doing. More cases make it surer: {again} --seconds 600"]
    first = next((failure for result in failed for failure in result.failures if failure.kind != "vacuous"), None)
    if first is not None and first.kind == "unfinished":
        return ["fill it in, then the same check again"]
    if first is None:
        return ["sharpen the bound, or draw cases with power (docs/6-how-bounds-are-derived.md)"]
    steps = ["see every difference of the first: its replay with -v"]
    if not page:
        steps.append("see pictures of all of them: the same check with --html report.html")
    return [*steps, "keep the case for good, while it still fails: the replay with --save"]


def _cases(results: Sequence[PairResult]) -> str:
    return count(sum(result.cases for result in results), "case")


def _distinct(names: object) -> list[str]:
    return list(dict.fromkeys(names))  # type: ignore[call-overload]


def _several(names: Sequence[str], what: str) -> str:
    """The names, or, of many, how many there are and the first of them."""
    if len(names) > FEW + 1:
        return f"{len(names)} {what} ({', '.join(names[: FEW - 1])} …)"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
