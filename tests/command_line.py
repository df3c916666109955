"""The command line, called in this process."""

from kernelpair.cli import main


def kernelpair(*arguments: str) -> int:
    """The exit status, also where the arguments are wrong."""
    try:
        return main(arguments)
    except SystemExit as left:  # argparse
        return int(left.code or 0)
