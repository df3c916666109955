"""The command line."""

from kernelpair.cli.main import main

__all__ = ["main"]
