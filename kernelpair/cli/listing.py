"""`kernelpair list`: the pairs, what they prove, and where each file is."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from kernelpair.cli.main import EXIT_HARNESS, EXIT_OK
from kernelpair.cli.remembered import remembered
from kernelpair.cli.select import provider_named, select_suite
from kernelpair.suite import Suite

MORE = "more of one: kernelpair list PAIR (its candidates, arguments, cases, relations, wrong calls and files)"


def listing(options: argparse.Namespace) -> int:
    """Print the pairs, or what a provider covers of them; exit status 0, or 70 where a pair is broken."""
    place, suite = select_suite(options)
    if options.provider:
        return _cover(options, suite)
    answer = remembered(place, suite, " ".join(["list", *options.pairs]), lambda: _described(suite, options.pairs), _whole)
    status = EXIT_HARNESS if answer["broken"] else EXIT_OK
    if options.json:
        print(json.dumps(answer, indent=2))
        return status
    console = Console(highlight=False)
    show = _show if options.pairs else _show_briefly
    for entry in answer["pairs"]:
        show(console, entry)
    for name, says in answer["broken"].items():
        console.print(Text.assemble((name, "bold"), (f"  broken: {says}", "red")), soft_wrap=True, markup=False)
    if answer["pairs"] and not options.pairs:
        console.print(MORE, style="dim", soft_wrap=True, markup=False)
    return status


def _described(suite: Suite, wanted: Sequence[str]) -> dict[str, Any]:
    from kernelpair.cli.described import described  # loads torch

    return described(suite, wanted)


def _whole(answer: dict[str, Any]) -> bool:
    """Whether the answer may be remembered: not with a broken pair, since what repairs it may lie in a file that is not
    looked at."""
    return not answer["broken"]


def _cover(options: argparse.Namespace, suite: Suite) -> int:
    """What a provider adapts, under which limits, and what it leaves out."""
    from kernelpair.providers.provider import ready

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
        if not reason and (absent := found.lacks(name)):
            console.print(f"  not here     {absent}", style="yellow", soft_wrap=True, markup=False)
        for limit in entry["limits"]:
            console.print(f"  unsupported  {limit}", soft_wrap=True, markup=False)
        for relation, says in entry["silent"].items():
            console.print(f"  not asked    {relation}: {says}", soft_wrap=True, markup=False)
        for effect, says in entry["side_effects"].items():
            console.print(f"  not judged   {effect}: {says}", soft_wrap=True, markup=False)
    console.print(f"not covered: {' '.join(left)}", soft_wrap=True, markup=False)
    return EXIT_OK


def _candidate(name: str, runnable: bool, reason: str, run_as: str) -> str:
    return f"({name})" if reason else f"{name} ({run_as})" if run_as else name


def _show_briefly(console: Console, entry: dict[str, Any]) -> None:
    """What it is, on a line of its own: nobody finds a pair among hundreds of lines."""
    console.print(Text.assemble((entry["pair"], "bold"), f"  {entry['summary']}"), soft_wrap=True, markup=False)
    if entry["incomplete"]:
        console.print(f"  incomplete   {entry['incomplete']}", style="yellow", soft_wrap=True, markup=False)


def _show(console: Console, entry: dict[str, Any]) -> None:
    """All that is known of a pair."""
    console.print(Text.assemble((entry["pair"], "bold"), f"  {entry['summary']}"), soft_wrap=True, markup=False)
    names = [_candidate(**candidate) for candidate in entry["candidates"]]
    console.print(f"  candidates   {' '.join(names)}", soft_wrap=True, markup=False)
    console.print(f"  dtypes       {' '.join(entry['dtypes'])}", soft_wrap=True, markup=False)
    for number, (form, names) in enumerate(entry.get("arguments", {}).items()):
        says = f"{form}: {' '.join(names)}" if form else " ".join(names)
        console.print(f"  {'arguments' if number == 0 else '':12} {says}", soft_wrap=True, markup=False)
    if entry.get("not_told"):
        console.print(f"  arguments    not told: {entry['not_told']}", style="yellow", soft_wrap=True, markup=False)
    for role in ("changes", "results"):
        if entry.get(role):
            console.print(f"  {role:12} {' '.join(entry[role])}", soft_wrap=True, markup=False)
    if entry.get("case"):
        says = " ".join(f"{name}={value}" for name, value in entry["case"].items())
        console.print(f"  case         {says}", soft_wrap=True, markup=False)
    for number, (name, says) in enumerate(entry["relations"].items()):
        console.print(f"  {'relations' if number == 0 else '':12} {name}: {says}", soft_wrap=True, markup=False)
    console.print(f"  wrong calls  {len(entry['wrong_calls'])}: {' '.join(entry['wrong_calls'])}", soft_wrap=True, markup=False)
    if entry["not_fuzzed"]:
        console.print(f"  no fuzz      {entry['not_fuzzed']}", soft_wrap=True, markup=False)
    if entry["incomplete"]:
        console.print(f"  incomplete   {entry['incomplete']}", style="yellow", soft_wrap=True, markup=False)
    for number, (role, path) in enumerate(entry["files"].items()):
        console.print(f"  {'files' if number == 0 else '':12} {role}: {path}", soft_wrap=True, markup=False)
    console.print()
