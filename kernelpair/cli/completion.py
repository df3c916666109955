"""`kernelpair completion`: a script by which a shell completes this command line."""

import argparse

from kernelpair.cli.arguments import parser
from kernelpair.cli.main import EXIT_OK, UsageError


def completion(options: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError:
        raise UsageError(f"completion {options.shell}: shtab cannot be imported: pip install 'kernelpair[completion]'") from None
    print(shtab.complete(parser(), shell=options.shell))
    return EXIT_OK
