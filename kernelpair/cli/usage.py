"""What is wrong with a command line, as far as it can be told before torch and the pairs are loaded, which takes seconds."""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kernelpair.cli.main import UsageError
from kernelpair.names import unknown
from kernelpair.providers.named import ProviderError, place_of
from kernelpair.report.packages import missing
from kernelpair.suite import REFERENCE, Suite, SuiteError, find

FILES = ("json", "junit", "html", "markdown", "script")  # options that name a file to be written


def refuse_misuse(options: argparse.Namespace) -> None:
    """Raises UsageError for options that exclude each other, a file that cannot be written, an unknown provider, pair or tier."""
    if options.command == "check":
        _refuse_limits(options)
    for name in FILES:
        path = getattr(options, name, None)
        if isinstance(path, str):  # of doctor and speed --json is something else
            _refuse_file(f"--{name}", Path(path))
    if getattr(options, "html", None) and missing():
        raise UsageError(f"--html {options.html}: {missing()}")
    if getattr(options, "provider", None):
        try:
            place_of(options.provider)
        except ProviderError as error:
            raise UsageError(str(error)) from None
    pairs, tiers = list(_pairs(options)), getattr(options, "tier", None)
    if pairs or tiers:
        with suppress(SuiteError):  # the command tells it
            _refuse_names(find(options.suite).load(), pairs, tiers if isinstance(tiers, list) else [])


def _refuse_limits(options: argparse.Namespace) -> None:
    limits = [name for name in ("examples", "total", "seconds") if getattr(options, name) is not None]
    if len(limits) > 1 and set(limits) != {"examples", "seconds"}:
        raise UsageError(f"--{limits[0]} and --{limits[1]} both say when to stop; give one of them")
    if options.in_process and options.total:
        raise UsageError("--total measures what a case costs in several processes; with --in-process give --examples")


def _refuse_file(option: str, path: Path) -> None:
    """Better before an hour of trials than after it."""
    place = path if path.exists() and not path.is_file() else path.resolve()  # of a pipe /dev/stdout leads to no path
    if place.is_dir():
        raise UsageError(f"{option}: {path} is a folder")
    if not place.parent.is_dir():
        raise UsageError(f"{option}: the folder of {path} does not exist")
    try:
        if place.exists() and not place.is_file():  # a pipe, /dev/null
            if not os.access(place, os.W_OK):
                raise PermissionError("it may not be written to")
        else:
            tempfile.TemporaryFile(dir=place.parent).close()
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror or error}") from None


def _pairs(options: argparse.Namespace) -> Iterator[str]:
    """The pairs that are named: alone, or in lines of cases."""
    yield from getattr(options, "pairs", ())
    for argument in options.cases if options.command == "replay" else ():
        with suppress(ValueError, AttributeError):  # no line of JSON, or no object: whoever reads it tells that
            pair = json.loads(argument).get("pair")
            if isinstance(pair, str):
                yield pair


def _refuse_names(suite: Suite, pairs: list[str], tiers: list[str]) -> None:
    """Where the suite cannot tell its names without loading pairs, the command does so."""
    known = suite.pair_names()
    for name in pairs:
        if known and name not in known:
            raise UsageError(unknown("pair", name, known))
    known = suite.tier_names()
    for name in tiers:
        if known and name not in (*known, REFERENCE):
            raise UsageError(unknown("tier", name, known))
