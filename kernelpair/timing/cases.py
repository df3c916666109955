"""Any case as a bench row: its arguments lie in memory as they do on trial."""

from kernelpair.call.memory import Arena, Placed
from kernelpair.call.place import place, settle
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import BenchRow, Inputs, Pair
from kernelpair.trial.check import read_case

UNTIMED = (WRONG_CALL, "fuzz")  # trials whose call ends in an error


def row_of(pair: Pair, case: Case) -> BenchRow:
    """A row that is named by the case's line. Raises ValueError for one whose call is wrong."""
    if case.trial.startswith(UNTIMED):
        raise ValueError(f"trial: {case.trial!r} makes a wrong call, which does no work that could be timed")
    return BenchRow(pair.line(case), lambda: _arguments(pair, case), case=case)


def row_named(pair: Pair, name: str) -> BenchRow:
    """A row that the pair declares, or the one of the case whose line the name is."""
    declared = next((row for row in pair.bench.rows if row.name == name), None)
    return declared or row_of(*read_case({pair.name: pair}, name))


def _arguments(pair: Pair, case: Case) -> Inputs:
    arena = Arena.create()
    placed = place(pair, case, settle(pair, case, pair.cases.inputs(case)), arena).arguments
    return {name: arena.view(value) if isinstance(value, Placed) else value for name, value in placed.items()}
