"""Usual slips in a mixture of experts."""

from properties.shared.slips import Reference, but


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "every router weight were 1": but(reference, topk_weights=lambda given: given["topk_weights"] * 0 + 1),
        "the router's weight met the result, not the input": but(reference, apply_router_weight_on_input=False),
        "routed_scaling_factor were 1": but(reference, routed_scaling_factor=1.0),
        "there were no b13": but(reference, b13=None),
        "there were no b2": but(reference, b2=None),
    }
