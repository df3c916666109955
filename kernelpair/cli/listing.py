"""`kernelpair list`: the pairs, what they prove, and where each file is."""

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import properties
from kernelpair.cli.main import EXIT_OK
from kernelpair.cli.select import provider_named, select_candidates
from kernelpair.pair import Pair
from kernelpair.provider import ready
from kernelpair.trials import BUILT_IN


def listing(options: argparse.Namespace) -> int:
    """Print the pairs, or what a provider covers of them; exit status 0."""
    if options.provider:
        return _cover(options)
    described = [_describe(pair) for pair in properties.pairs().values()]
    if options.json:
        print(json.dumps({"pairs": described}, indent=2))
        return EXIT_OK
    console = Console(highlight=False)
    for entry in described:
        _show(console, entry)
    return EXIT_OK


def _cover(options: argparse.Namespace) -> int:
    """What a provider adapts, under which limits, and what it leaves out."""
    found = provider_named(options.provider)
    covered: dict[str, dict[str, Any]] = {
        name: {"operator": (adapter.call.__doc__ or "").strip().split("\n")[0], "limits": list(adapter.limits),
               "silent": dict(adapter.silent)}
        for name in sorted(found.adapters)
        for adapter in [found.adapter(name)]
    }
    left = [name for name in properties.pairs() if name not in covered]
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
    console.print(f"not covered: {' '.join(left)}", soft_wrap=True, markup=False)
    return EXIT_OK


def _summary(path: Path) -> str:
    """What a pair's module says first of itself."""
    says = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(says.split("\n\n")[0].split())


def _describe(pair: Pair) -> dict[str, Any]:
    return {
        "pair": pair.name,
        "summary": _summary(properties.ROOT / pair.files["properties"]).removeprefix(f"{pair.name} on trial: "),
        "dtypes": list(pair.dtypes),
        "candidates": [{"name": name, "runnable": not reason, "reason": reason} for name, reason in select_candidates(pair, ())],
        "relations": {name: relation.says for name, relation in pair.relations.items()} | BUILT_IN,
        "wrong_calls": list(pair.bad),
        "edges": list(pair.edges),
        "bench_rows": [row.name for row in pair.bench],
        "files": dict(pair.files),
    }


def _show(console: Console, entry: dict[str, Any]) -> None:
    console.print(Text.assemble((entry["pair"], "bold"), f"  {entry['summary']}"), soft_wrap=True, markup=False)
    names = [c["name"] if c["runnable"] else f"({c['name']})" for c in entry["candidates"]]
    console.print(f"  candidates   {' '.join(names)}", soft_wrap=True, markup=False)
    console.print(f"  dtypes       {' '.join(entry['dtypes'])}", soft_wrap=True, markup=False)
    for number, (name, says) in enumerate(entry["relations"].items()):
        console.print(f"  {'relations' if number == 0 else '':12} {name}: {says}", soft_wrap=True, markup=False)
    console.print(f"  wrong calls  {len(entry['wrong_calls'])}: {' '.join(entry['wrong_calls'])}", soft_wrap=True, markup=False)
    for number, (role, path) in enumerate(entry["files"].items()):
        console.print(f"  {'files' if number == 0 else '':12} {role}: {path}", soft_wrap=True, markup=False)
    console.print()
