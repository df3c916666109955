"""Errors that come from what somebody wrote or set, a provider, a saved case or a limit, and from no fault of the harness."""

UNFINISHED = "NotImplementedError: "  # before "fill in", which the files of new-pair say until somebody has
BY_CLASS = {"ProviderError: ": "provider fault", "CaseError: ": "bad saved case", "NoAddressSpace: ": "no address space"}


def input_fault(error: str) -> str:
    """What is wrong with it, where an error of these words came from that; else empty."""
    found = ((says, error.partition(name)[2]) for name, says in BY_CLASS.items())
    return next((f"{says}: {rest}" for says, rest in found if rest), "")


def unfinished(error: str) -> str:
    """What is to be filled in, where an error of these words comes from a file that `new-pair` wrote; else empty."""
    says = error.removeprefix(UNFINISHED).partition("; raised at ")[0]
    return says if error.startswith(f"{UNFINISHED}fill in ") else ""
