"""The command line: called in this process, and how it is started in one of its own."""

import os
import sys

from kernelpair.cli import main

COMMAND = (sys.executable, "-c", "import sys; from kernelpair.cli import main; sys.exit(main())")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}


def kernelpair(*arguments: str) -> int:
    """The exit status, also where the arguments are wrong."""
    try:
        return main(arguments)
    except SystemExit as left:  # argparse
        return int(left.code or 0)
