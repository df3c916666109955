"""Usual slips in a decode step."""

from properties.shared.slips import Reference, of_attention, of_window


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        **of_window(reference, "sliding_window", 1),
        **of_attention(reference, "sm_scale", "logit_cap"),
    }
