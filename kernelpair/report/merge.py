"""Results of many blocks of one trial as one result, and results as they were written to disk."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kernelpair.report.lines import FailureReport, PairResult

SUMS = ("executed", "ratios", "edges", "crossed", "trials", "unsupported")
LARGEST = ("tightness", "sizes", "looseness")


def block_file(pair: str, candidate: str, number: str) -> str:
    """The name of a block's file; with a pattern for the number that of all of a trial."""
    return f"{pair}-{candidate.replace('/', '_').replace(':', '_')}-{number}.json"


def results_on_disk(
    folder: Path, trials: Iterable[tuple[str, str]], reasons: Mapping[tuple[str, str], str]
) -> list[PairResult]:
    """The results of the blocks in a folder, one for each trial; and for a trial without a block the reason."""
    found = []
    for pair, candidate in trials:
        files = sorted(folder.glob(block_file(pair, candidate, "[0-9]" * 6)))
        blocks = [result_from(json.loads(file.read_text())) for file in files]
        reason = reasons.get((pair, candidate), "no block of it has ended")
        found.append(merged(blocks) if blocks else PairResult(pair, candidate, "skip", reason))
    return found


def result_from(document: Mapping[str, Any]) -> PairResult:
    """A result out of its JSON. Raises ValueError where it is none; tables of places are left out."""
    known = {spec.name for spec in fields(PairResult)} - {"tables", "failures"}
    try:
        failures = [FailureReport(**failure) for failure in document["failures"]]
        result = PairResult(**{name: value for name, value in document.items() if name in known}, failures=failures)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no result of a trial: {error}") from None
    result.gaps = {name: (cases, worst, line) for name, (cases, worst, line) in result.gaps.items()}
    result.ratios = {name: {int(power): count for power, count in powers.items()} for name, powers in result.ratios.items()}
    return result


def merged(results: Sequence[PairResult]) -> PairResult:
    """One result of several of the same pair and candidate: cases add up, of each group of failures the shortest case stays."""
    first = results[0]
    whole = PairResult(first.pair, first.candidate, "skip", first.reason)
    whole.cases = sum(result.cases for result in results)
    whole.seconds = round(sum(result.seconds for result in results), 3)
    whole.failures = _failures(result.failures for result in results)
    for name in LARGEST:
        values: dict[str, float] = {}
        for result in results:
            for key, value in getattr(result, name).items():
                values[key] = max(values.get(key, value), value)
        setattr(whole, name, values)
    for name in SUMS:
        setattr(whole, name, _added(getattr(result, name) for result in results))
    for result in results:
        for name, (largest, branch) in result.measures.items():
            whole.measures[name] = max(largest, whole.measures.get(name, (largest, 0))[0]), branch
        for name, (cases, worst) in result.groups.items():
            before, most = whole.groups.get(name, (0, worst))
            whole.groups[name] = before + cases, None if worst is None or most is None else max(worst, most)
        for name, (cases, worst, line) in result.gaps.items():
            before, most, of = whole.gaps.get(name, (0, worst, line))
            whole.gaps[name] = before + cases, max(worst, most), line if worst > most else of
        whole.known |= {group: case for group, case in result.known.items() if group not in whole.known}
        whole.rounding, whole.run_as = whole.rounding or result.rounding, whole.run_as or result.run_as
    tried = [result for result in results if result.cases]
    whole.mended = [group for group in _in_all([result.mended for result in tried]) if group not in whole.known]
    whole.uncovered = [edge for edge, count in whole.edges.items() if not count]
    whole.unhit = _in_all([result.unhit for result in tried])
    whole.untaken = _in_all([result.untaken for result in tried])
    if whole.cases or whole.failures:
        whole.verdict, whole.reason = ("fail" if whole.failures else "pass"), ""
    return whole


def _failures(blocks: Iterable[list[FailureReport]]) -> list[FailureReport]:
    shortest: dict[str, list[FailureReport]] = {}
    for failures in blocks:
        by_case: dict[str, list[FailureReport]] = {}
        for failure in failures:
            by_case.setdefault(failure.case or failure.kind, []).append(failure)
        for case, own in by_case.items():
            name = own[0].group or own[0].kind
            if name not in shortest or len(case) < len(shortest[name][0].case or shortest[name][0].kind):
                shortest[name] = own
    return [failure for own in shortest.values() for failure in own]


def _added(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts added up by name, one level deep or two."""
    total: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if isinstance(value, Mapping):
                total[name] = dict(sorted((Counter(total.get(name, {})) + Counter(value)).items()))
            else:
                total[name] = total.get(name, 0) + value
    return total


def _in_all(lists: Sequence[Sequence[str]]) -> list[str]:
    return [name for name in lists[0] if all(name in others for others in lists)] if lists else []
