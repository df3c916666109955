"""Usual slips where rows are stored."""

from properties.shared.slips import Reference, but


def slips(reference: Reference) -> dict[str, Reference]:
    return {"k and v were exchanged": but(reference, k=lambda given: given["v"], v=lambda given: given["k"])}
