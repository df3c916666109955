"""A suite that kills the process which asks for its candidates."""

import os
import signal
from typing import NoReturn

from kernelpair.contract.pair import Pair
from kernelpair.suite import Suite
from properties.suite import SUITE as OURS


class Ends(Suite):
    """Whoever judges with it is gone."""

    root = OURS.root
    pairs = OURS.pairs

    def tiers(self) -> tuple[()]:
        return ()

    def candidates(self, pair: Pair) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL came back")


SUITE = Ends()
