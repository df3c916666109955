"""Usual slips in a linear layer."""

from properties.shared.slips import Reference, but


def slips(reference: Reference) -> dict[str, Reference]:
    return {"there were no bias": but(reference, bias=None)}
