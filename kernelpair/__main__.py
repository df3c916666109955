"""`python -m kernelpair` is `kernelpair`."""

import sys

from kernelpair.cli import main

sys.exit(main())
