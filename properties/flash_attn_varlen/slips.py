"""Usual slips in attention over plain tensors."""

from properties.shared.slips import Reference, but, of_attention, of_window


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        **of_window(reference, "window_left", 0),
        "rows stood at the keys' begin (top_left), not at their end": but(reference, alignment="top_left"),
        **of_attention(reference, "softmax_scale", "softcap"),
    }
