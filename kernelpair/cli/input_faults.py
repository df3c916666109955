"""Errors that come from what somebody wrote or set, a provider, a saved case or a limit, and from no fault of the harness."""

BY_CLASS = {"ProviderError: ": "provider fault", "CaseError: ": "bad saved case", "NoAddressSpace: ": "no address space"}


def input_fault(error: str) -> str:
    """What is wrong with it, where an error of these words came from that; else empty."""
    found = ((says, error.partition(name)[2]) for name, says in BY_CLASS.items())
    return next((f"{says}: {rest}" for says, rest in found if rest), "")
