"""`python -m kernelpair.cli` is `kernelpair`."""

import sys

from kernelpair.cli import main

sys.exit(main())
