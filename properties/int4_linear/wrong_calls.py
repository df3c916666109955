"""int4_linear: calls that both sides refuse."""

import torch

from properties.int4_linear.cases import LAYOUT
from properties.shared import linear_calls
from properties.shared.wrong_calls import cast, changed, grown, replaced, with_gaps

WRONG_CALLS = {
    **linear_calls.wrong_calls(LAYOUT.replace("nib2", "nib4")),
    **{
        f"group_size_{size}": replaced("group_size", size, ValueError, "group_size", "scales", "zeros") for size in (0, -2)
    },
    "K_too_large": replaced("K", 2**20 + 1, ValueError, *linear_calls.OF_K),
    "scales_panels": grown("scales", 0),
    "scales_groups": grown("scales", 1),
    "scales_plain": changed("scales", lambda scales: scales.flatten(1), ValueError),
    "zeros_groups": grown("zeros", 1),
    "zeros_dtype": cast("zeros", torch.int8),
    "zeros_none": replaced("zeros", None, TypeError),
    "activation_unknown": replaced("activation", "int4", ValueError),
    "activation_none": replaced("activation", None, TypeError),
    "data_gaps": with_gaps("data"),
}
