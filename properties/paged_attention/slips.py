"""Usual slips in attention over pages."""

from properties.shared.slips import Given, Reference, but, of_attention, of_window


def _negated(given: Given) -> object:
    return None if given["alibi_slopes"] is None else -given["alibi_slopes"]


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        **of_window(reference, "window_left", 0),
        **of_attention(reference, "softmax_scale", "softcap"),
        "slopes had the other sign": but(reference, alibi_slopes=_negated),
        "there were no slopes": but(reference, alibi_slopes=None),
        "there were no k_descale": but(reference, k_descale=None),
        "there were no v_descale": but(reference, v_descale=None),
    }
