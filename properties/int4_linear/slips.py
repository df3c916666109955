"""Usual slips in a linear layer of four bits."""

from properties.shared.slips import Given, Reference, but


def _points(given: Given, more: int) -> object:
    return None if given["zeros"] is None else given["zeros"] + more


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "every zero point were 8": but(reference, zeros=lambda given: given["zeros"] * 0 + 8),
        "every zero point were 0": but(reference, zeros=lambda given: given["zeros"] * 0),
        "zero points were one more, as GPTQ's files mean them": but(reference, zeros=lambda given: _points(given, 1)),
        "zero points were one less": but(reference, zeros=lambda given: _points(given, -1)),
        "the groups' scales stood in the reverse order": but(reference, scales=lambda given: given["scales"].flip(1)),
        "x were not quantized": but(reference, activation="x"),
        "there were no bias": but(reference, bias=None),
    }
