"""Usual slips in a step of the delta rule."""

from properties.shared.slips import Given, Reference, but


def _other_layout(given: Given) -> str:
    return "vk" if given["state_layout"] == "kv" else "kv"


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "a state lay the other way round (kv for vk)": but(reference, state_layout=_other_layout),
        "every state lay as kv": but(reference, state_layout="kv"),
        "every state lay as vk": but(reference, state_layout="vk"),
        "the results' scale were 1": but(reference, scale=1.0),
        "scale were the width to the power -1/2": but(reference, scale=None),
        "q and k were taken as they are (use_qk_l2norm)": but(reference, use_qk_l2norm=False),
        "q and k were always normalised (use_qk_l2norm)": but(reference, use_qk_l2norm=True),
        "eps were 1e-12": but(reference, eps=1e-12),
    }
