"""The files of a command that ended before its run had begun: none of an earlier run is taken for this one's."""

import argparse
import json
from contextlib import suppress
from pathlib import Path

from kernelpair.report.files import WriteError, write_whole

SAYS = "Interrupted before the first trial."
ROWS = {"mutate": "mutants", "bench": "rows"}  # what the list of a command's JSON is called, where it is not "results"


def write_unbegun(options: argparse.Namespace) -> None:
    """Write each file that was asked for: it says that there is no result."""
    command, seed = options.command, getattr(options, "seed", None)
    nothing = {
        "json": json.dumps({ROWS.get(command, "results"): [], "environment": {"seed": seed, "interrupted": True}}) + "\n",
        "junit": '<testsuite name="kernelpair" tests="0" failures="0" errors="0" skipped="0" />\n',
        "html": f"<!doctype html><title>kernelpair {command}</title><p>{SAYS}</p>\n",
        "markdown": f"### kernelpair {command}: interrupted\n\n{SAYS}\n",
    }
    for name, text in nothing.items():
        path = getattr(options, name, None)
        if isinstance(path, str):  # of doctor and speed --json is something else
            with suppress(WriteError):
                write_whole(Path(path), text)
