"""`kernelpair list`: the pairs, what they prove, and where each file is."""

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kernelpair.cli.main import EXIT_HARNESS, EXIT_OK
from kernelpair.cli.select import provider_named, select_candidates, select_loaded, select_suite
from kernelpair.contract.pair import NotFuzzed, Pair
from kernelpair.providers.provider import ready
from kernelpair.report.lines import shown
from kernelpair.suite import Suite, Tier, run_as
from kernelpair.trial.modes import BUILT_IN


def listing(options: argparse.Namespace) -> int:
    """Print the pairs, or what a provider covers of them; exit status 0, or 70 where a pair is broken."""
    _, suite = select_suite(options)
    if options.provider:
        return _cover(options, suite)
    pairs, broken = select_loaded(suite, options.pairs)
    described = [_describe(suite, pair) for pair in pairs]
    status = EXIT_HARNESS if broken else EXIT_OK
    if options.json:
        print(json.dumps({"pairs": described, "broken": broken}, indent=2))
        return status
    console = Console(highlight=False)
    for entry in described:
        _show(console, entry)
    for name, says in broken.items():
        console.print(Text.assemble((name, "bold"), (f"  broken: {says}", "red")), soft_wrap=True, markup=False)
    return status


def _cover(options: argparse.Namespace, suite: Suite) -> int:
    """What a provider adapts, under which limits, and what it leaves out."""
    found = provider_named(suite, options.provider)
    covered: dict[str, dict[str, Any]] = {
        name: {"operator": (adapter.call.__doc__ or "").strip().split("\n")[0], "limits": list(adapter.limits),
               "silent": dict(adapter.silent), "side_effects": dict(adapter.side_effects)}
        for name in sorted(found.adapters)
        for adapter in [found.adapter(name)]
    }
    left = [name for name in suite.pairs() if name not in covered]
    reason = ready(found)
    if options.json:
        print(json.dumps({"provider": found.name, "about": found.about, "usable": not reason, "reason": reason,
                          "covered": covered, "not_covered": left}, indent=2))
        return EXIT_OK
    console = Console(highlight=False)
    console.print(Text.assemble((found.name, "bold"), f"  {found.about}"), soft_wrap=True, markup=False)
    if reason:
        console.print(f"  cannot be used here: {reason}", style="yellow", soft_wrap=True, markup=False)
    for name, entry in covered.items():
        console.print(Text.assemble((name, "bold"), f"  {entry['operator']}"), soft_wrap=True, markup=False)
        for limit in entry["limits"]:
            console.print(f"  unsupported  {limit}", soft_wrap=True, markup=False)
        for relation, says in entry["silent"].items():
            console.print(f"  not asked    {relation}: {says}", soft_wrap=True, markup=False)
        for effect, says in entry["side_effects"].items():
            console.print(f"  not judged   {effect}: {says}", soft_wrap=True, markup=False)
    console.print(f"not covered: {' '.join(left)}", soft_wrap=True, markup=False)
    return EXIT_OK


def _summary(path: Path) -> str:
    """What a pair's module says first of itself."""
    says = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(says.split("\n\n")[0].split())


def _describe(suite: Suite, pair: Pair) -> dict[str, Any]:
    files = suite.files(pair)
    candidates = select_candidates(suite, pair, ())
    tiers = {tier.name: tier for tier in suite.tiers()}
    return {
        "pair": pair.name,
        "summary": _summary(suite.root / files["properties"]).removeprefix(f"{pair.name} on trial: "),
        "dtypes": list(pair.signature.dtypes),
        "candidates": [_candidate(name, reason, tiers.get(name)) for name, reason in candidates],
        "relations": {name: relation.says for name, relation in pair.relations.items()} | BUILT_IN,
        "wrong_calls": list(pair.wrong_calls),
        "incomplete": _lacks(pair),
        "edges": list(pair.coverage.edges),
        "bench_rows": [row.name for row in pair.bench.rows],
        "files": dict(files),
    }


def _candidate(name: str, reason: str, tier: Tier | None) -> dict[str, Any]:
    """Whether it runs here, why not, and what stands in for what the machine lacks."""
    stand_in = run_as(tier) if tier is not None else ""
    return {"name": name, "runnable": not reason and not stand_in, "reason": reason, "run_as": stand_in}


def _lacks(pair: Pair) -> str:
    """What a pair must have and has not; empty where it is complete."""
    if pair.wrong_calls:
        return ""
    why = f"; no random ones either: {pair.fuzz.why}" if isinstance(pair.fuzz, NotFuzzed) else ""
    return f"no wrong call: what a call with wrong arguments does is not tested{why}"


def _show(console: Console, entry: dict[str, Any]) -> None:
    console.print(Text.assemble((entry["pair"], "bold"), f"  {entry['summary']}"), soft_wrap=True, markup=False)
    names = [f"({c['name']})" if c["reason"] else shown(c["name"], c["run_as"]) for c in entry["candidates"]]
    console.print(f"  candidates   {' '.join(names)}", soft_wrap=True, markup=False)
    console.print(f"  dtypes       {' '.join(entry['dtypes'])}", soft_wrap=True, markup=False)
    for number, (name, says) in enumerate(entry["relations"].items()):
        console.print(f"  {'relations' if number == 0 else '':12} {name}: {says}", soft_wrap=True, markup=False)
    console.print(f"  wrong calls  {len(entry['wrong_calls'])}: {' '.join(entry['wrong_calls'])}", soft_wrap=True, markup=False)
    if entry["incomplete"]:
        console.print(f"  incomplete   {entry['incomplete']}", style="yellow", soft_wrap=True, markup=False)
    for number, (role, path) in enumerate(entry["files"].items()):
        console.print(f"  {'files' if number == 0 else '':12} {role}: {path}", soft_wrap=True, markup=False)
    console.print()
