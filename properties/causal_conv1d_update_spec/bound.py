"""causal_conv1d_update_spec: how far a result may be from the truth. Once a request's history is known it is a convolution of
its tokens, so the bound is causal_conv1d's; states are copied, and compare bit for bit."""

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs, Within
from properties.causal_conv1d.bound import bound as bound_of_sequences
from properties.causal_conv1d.cases import PAD, ConvCase
from properties.causal_conv1d_update_spec.cases import ConvSpecCase


def as_sequences(given: Inputs) -> Inputs:
    """The same as a call of causal_conv1d: each request has a slot of its own, which holds its history."""
    lengths, width = given["query_start_loc"].diff().tolist(), given["width"]
    states = given["conv_states"]
    histories = states.new_zeros(len(lengths), states.shape[1], width - 1)
    slots = torch.arange(len(lengths))
    rows = zip(lengths, given["cache_indices"].tolist(), given["num_accepted_tokens"].tolist())
    for b, (n, slot, accepted) in enumerate(rows):
        if slot == given["pad_slot"]:
            slots[b] = PAD
        elif n:
            histories[b] = states[slot, :, accepted - 1 : accepted + width - 2]
    kept = {name: given[name] for name in ("packed_weight", "dim", "width", "bias", "query_start_loc", "silu_activation")}
    return kept | {
        "form": "varlen", "x": given["x"].t(), "conv_states": histories, "cache_indices": slots,
        "has_initial_state": torch.ones(len(lengths), dtype=torch.bool), "pad_slot": PAD,
    }


def bound(case: ConvSpecCase, given: Inputs, truth: Outputs) -> Bound:
    """As section "How far from the truth" of causal_conv1d says."""
    plain = ConvCase(form="varlen", dtype=case.dtype, dim=case.dim, width=case.width, exact=case.exact)
    of = bound_of_sequences(plain, as_sequences(given), {"out": truth["out"].t()})["out"]
    assert isinstance(of, torch.Tensor)
    return {"out": of.t()}


TRUTH = Within(bound, sharp=lambda case: case.exact or case.dtype == "float32")
