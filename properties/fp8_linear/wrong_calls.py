"""fp8_linear: calls that both sides refuse."""

from properties.fp8_linear.cases import LAYOUT
from properties.shared import linear_calls
from properties.shared.wrong_calls import grown, one_rank_more, replaced, with_gaps

WRONG_CALLS = {
    **linear_calls.wrong_calls(LAYOUT.replace("e4m3", "e5m2")),
    "scales_outputs": grown("scales", 0),
    "scales_columns": grown("scales", 1),
    "scales_rank": one_rank_more("scales"),
    "block_n_zero": replaced("block_n", 0, ValueError, "block_n", "scales"),
    "block_k_zero": replaced("block_k", 0, ValueError, "block_k", "scales"),
    "data_gaps": with_gaps("data"),
}
