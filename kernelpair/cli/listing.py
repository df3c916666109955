"""`kernelpair list`: the pairs, what they prove, and where each file is."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.text import Text

import properties
from kernelpair.cli.main import EXIT_OK
from kernelpair.cli.select import select_candidates
from kernelpair.pair import Pair
from kernelpair.session import BUILT_IN


def listing(options: argparse.Namespace) -> int:
    """Print the pairs; exit status 0."""
    described = [_describe(pair) for pair in properties.pairs().values()]
    if options.json:
        print(json.dumps({"pairs": described}, indent=2))
        return EXIT_OK
    console = Console(highlight=False)
    for entry in described:
        _show(console, entry)
    return EXIT_OK


def _describe(pair: Pair) -> dict[str, Any]:
    return {
        "pair": pair.name,
        "summary": (pair.reference.__doc__ or "").strip().split("\n")[0],
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
