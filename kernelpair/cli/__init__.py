"""The command line: `kernelpair doctor | list | check | replay | mutate | bench`."""

from kernelpair.cli.main import main

__all__ = ["main"]
