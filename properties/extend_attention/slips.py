"""Usual slips in a prefill."""

from functools import partial
from typing import Any

from properties.shared.slips import Reference, of_attention, of_window


def _from_the_cache(reference: Reference, **given: Any) -> Any:
    """New keys and values as they lie in the cache, where an engine may have put them before the call."""
    if given["is_cross_attn"] or given["k"] is None or given["v"] is None:
        return reference(**given)
    keys, values = given["k"].clone(), given["v"].clone()
    requests = zip(*(given[name].tolist() for name in ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc")))
    for b, (row, length, new, start) in enumerate(requests):
        if new:
            end = length + (0 if given["encoder_lens"] is None else int(given["encoder_lens"][b]))
            columns = given["req_to_token"][row, end - new : end].long()  # by the contract any numbers
            slots = columns.clamp(0, len(given["k_cache"]) - 1)
            keys[start : start + new], values[start : start + new] = given["k_cache"][slots], given["v_cache"][slots]
    return reference(**given | {"k": keys, "v": values})


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "new keys and values were those in the cache, not k and v": partial(_from_the_cache, reference),
        **of_window(reference, "sliding_window", 1),
        **of_attention(reference, "sm_scale", "logit_cap"),
    }
