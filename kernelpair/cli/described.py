"""What `kernelpair list` says of pairs, as plain data."""

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelpair.cli.select import select_candidates, select_loaded
from kernelpair.contract.case import own_fields
from kernelpair.contract.mistakes import told
from kernelpair.contract.pair import NotFuzzed, Pair, Stepwise
from kernelpair.search.drawing import drawn_cases
from kernelpair.suite import Suite, Tier, run_as
from kernelpair.trial.check import known_trials
from kernelpair.trial.modes import BUILT_IN

DRAWN = 60  # cases whose arguments are looked at


def described(suite: Suite, wanted: Sequence[str]) -> dict[str, Any]:
    """Each of these pairs, or all if none is given; and for each broken pair what is wrong with it."""
    pairs, broken = select_loaded(suite, wanted)
    return {"pairs": [_describe(suite, pair, bool(wanted)) for pair in pairs], "broken": broken}


def _summary(path: Path) -> str:
    """What a pair's module says first of itself."""
    says = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(says.split("\n\n")[0].split())


def _describe(suite: Suite, pair: Pair, wanted: bool) -> dict[str, Any]:
    """What a pair says of itself; with what its kernel is called, and what its cases say, only where the pair is asked for."""
    files = suite.files(pair)
    candidates = select_candidates(suite, pair, ())
    tiers = {tier.name: tier for tier in suite.tiers()}
    return {
        "pair": pair.name,
        "summary": _summary(suite.root / files["properties"]).removeprefix(f"{pair.name} on trial: "),
        "dtypes": list(pair.signature.dtypes),
        **(_called(pair) | {"case": own_fields(pair.cases.type)} if wanted else {}),
        "candidates": [_candidate(name, reason, tiers.get(name)) for name, reason in candidates],
        "relations": {name: relation.says for name, relation in pair.relations.items()} | _built_in(pair),
        "not_fuzzed": pair.fuzz.why if isinstance(pair.fuzz, NotFuzzed) else "",
        "wrong_calls": list(pair.wrong_calls),
        "incomplete": _lacks(pair),
        "edges": list(pair.coverage.edges),
        "bench_rows": [row.name for row in pair.bench.rows],
        "files": dict(files),
    }


def _called(pair: Pair) -> dict[str, Any]:
    """What a candidate, so an adapter too, is called with: form, if there are several -> names of arguments; which of them it
    changes, and what it returns. Empty of whole runs, which call several kernels."""
    if isinstance(pair.truth, Stepwise):
        return {"arguments": {}, "changes": [], "results": []}
    signature = inspect.signature(pair.reference)
    named = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
    try:
        arguments = {"": list(named)} if len(named) == len(signature.parameters) else _by_form(pair)
    except Exception as error:  # noqa: BLE001 - the pair's own strategy may raise anything
        return {"arguments": {}, "changes": [], "results": [], "not_told": told(error)}
    changed = [name for name in pair.signature.written if any(name in names for names in arguments.values())]
    arguments = {form: [_with_default(name, named.get(name)) for name in names] for form, names in arguments.items()}
    returned = [] if signature.return_annotation in (None, "None") else pair.signature.results
    return {"arguments": arguments, "changes": changed, "results": [name for name in returned if name not in changed]}


def _with_default(name: str, parameter: inspect.Parameter | None) -> str:
    """An argument, with its default where calls may leave it out."""
    return name if parameter is None or parameter.default is parameter.empty else f"{name}={parameter.default!r}"


def _by_form(pair: Pair) -> dict[str, list[str]]:
    """Of a reference that takes whatever it is given: what drawn cases of each form bring. A text stands beside its name: no
    signature says that a form, a layout or a dtype comes as one."""
    found: dict[str, dict[str, str]] = {}
    for case in drawn_cases(pair.cases.strategy, DRAWN, 1):
        brought = pair.cases.inputs(case).items()
        named = {name: f"{name}={value!r}" if isinstance(value, str) else name for name, value in brought}
        found[getattr(case, "form", "")] = named | found.get(getattr(case, "form", ""), {})
    return {form: list(names.values()) for form, names in found.items()}


def _candidate(name: str, reason: str, tier: Tier | None) -> dict[str, Any]:
    """Whether it runs here, why not, and what stands in for what the machine lacks."""
    stand_in = run_as(tier) if tier is not None else ""
    return {"name": name, "runnable": not reason and not stand_in, "reason": reason, "run_as": stand_in}


def _built_in(pair: Pair) -> dict[str, str]:
    """The trials of the engine that the pair has, and what each shows."""
    return {name: says for name, says in BUILT_IN.items() if name in known_trials(pair)}


def _lacks(pair: Pair) -> str:
    """What a pair must have and does not have; empty if it is complete."""
    return "" if pair.wrong_calls else "no wrong call: what a call with wrong arguments does is not tested"
