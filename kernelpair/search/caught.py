"""A failing case on its way through Hypothesis, as an exception."""

from kernelpair.contract.verdict import Verdict


class Caught(Exception):
    """A case failed. One subclass a kind, so that Hypothesis keeps failures of different kinds apart."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__("; ".join(failure.detail for failure in verdict.failures))


_caught: dict[str, type[Caught]] = {}


def caught(verdict: Verdict, kind: str) -> Caught:
    """The exception for a failing verdict; its class is that of the kind."""
    if kind not in _caught:
        _caught[kind] = type(kind, (Caught,), {"__module__": "kernelpair"})
    return _caught[kind](verdict)
