"""Usual slips in latent attention."""

from properties.shared.slips import Given, Reference, but


def _width(given: Given, *parts: str) -> int:
    return sum(given[part].shape[-1] for part in parts)


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "sm_scale were the width of all of a query to the power -1/2": but(
            reference, sm_scale=lambda given: _width(given, "q_nope", "q_pe") ** -0.5
        ),
        "scores were those of the latent part alone": but(reference, q_pe=lambda given: given["q_pe"] * 0),
    }
