"""gdn_gating: calls that both sides refuse."""

import torch

from properties.shared.wrong_calls import (
    NAN,
    NO_SCALES,
    all_integers,
    beside_wide,
    cast,
    changed,
    grown,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
)

WRONG_CALLS = {
    "b_rows": grown("b", 0, "a"),
    "b_heads": grown("b", 1, "a"),
    "A_log_heads": grown("A_log", 0),
    "dt_bias_heads": grown("dt_bias", 0),
    "a_rank": one_rank_more("a"),
    "b_rank": changed("b", lambda b: b.reshape(-1), ValueError),
    "A_log_rank": one_rank_more("A_log"),
    "b_dtype": other_dtype("b", "a"),
    "a_integers": beside_wide(cast("a", torch.int64, "b"), "A_log", "dt_bias"),
    "all_integers": beside_wide(all_integers("a", "b"), "A_log", "dt_bias"),
    "A_log_dtype": cast("A_log", torch.float64),
    "dt_bias_integers": cast("dt_bias", torch.int32),
    "a_none": replaced("a", None, TypeError),
    **replaced_each("softplus_beta", NO_SCALES),
    "threshold_nan": replaced("softplus_threshold", NAN, ValueError),
    "A_log_other_half": other_half("A_log"),
    "dt_bias_other_half": other_half("dt_bias"),
}
