"""act_and_mul: calls that both sides refuse."""

import torch

from properties.shared.wrong_calls import cast, changed, grown, replaced, replaced_each, sparse

WRONG_CALLS = {
    "x_odd": grown("x", -1),
    "x_no_dimension": changed("x", lambda x: x.new_ones(()), ValueError),
    "x_five_dimensions": changed("x", lambda x: x.reshape(*(1,) * (5 - x.dim()), *x.shape), ValueError),
    "x_integers": cast("x", torch.int32),
    "x_bytes": cast("x", torch.uint8),
    "x_strides": sparse("x"),
    "x_none": replaced("x", None, TypeError),
    **replaced_each("activation", ("relu", "", "SiLU", "gelu_tan", "gelu_tanh_")),
    "activation_number": replaced("activation", 1, TypeError),
}
