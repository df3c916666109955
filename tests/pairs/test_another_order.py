"""Of the errors that a wrong call has a kernel may say any: one that looks for another error first than ours do is right, too."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import properties
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check, read_case
from reference.mla_decode import mla_decode_workspace_size

FLOAT32 = torch.float32


def _of(pair: str, **given: Any) -> Any:
    return properties.pairs()[pair].reference(**given)


def rate_first(**given: Any) -> Any:
    if given["A_log"].dtype not in (given["a"].dtype, FLOAT32):
        raise TypeError("A_log has neither the dtype of the gates nor float32")
    return _of("gdn_gating", **given)


def residual_first(**given: Any) -> Any:
    if given["residual"] is not None and given["residual"].shape != given["x"].shape:
        raise ValueError("residual has another shape")
    return _of("rms_norm", **given)


def kept_first(**given: Any) -> Any:
    if given["topk_group"] > given["num_expert_group"]:
        raise ValueError("topk_group is too large")
    return _of("topk_gating", **given)


def section_first(**given: Any) -> Any:
    if given["mrope_section"] and sum(given["mrope_section"]) != given["cos_sin_cache"].shape[-1] // 2:
        raise ValueError("mrope_section has another sum")
    return _of("rotary_embedding", **given)


def data_first(**given: Any) -> Any:
    if len(given["data"]) != -(-given["N"] // 32):
        raise ValueError("data has other panels")
    return _of("int4_linear", **given)


def columns_first(**given: Any) -> Any:
    if int(given["query_start_loc"].diff().max()) > given["conv_states"].shape[2] - given["width"] + 2:
        raise ValueError("conv_states has too few columns")
    return _of("causal_conv1d_update_spec", **given)


def table_first(**given: Any) -> Any:
    if int(given["seq_lens"].max()) > given["req_to_token"].shape[1]:
        raise IndexError("seq_lens goes beyond the columns of the table")
    return _of("attention_metadata", **given)


def overlap_first(**given: Any) -> Any:
    spans = zip(given["extend_start_loc"].tolist(), given["extend_seq_lens"].tolist())
    rows = [row for start, count in spans for row in range(start, start + count)]
    if len(set(rows)) < len(rows):
        raise ValueError("extend_start_loc: rows are two requests'")
    return _of("extend_attention", **given)


def workspace_first(**given: Any) -> Any:
    (batch, heads, latent), page = given["q_nope"].shape, given["kv_cache"].shape[1]
    size = mla_decode_workspace_size(int(given["seq_lens"].max()), batch, heads, page, latent, given["num_kv_splits"])
    if given["workspace"].numel() < size:
        raise ValueError("workspace is too small")
    return _of("mla_decode", **given)


def lengths_first(**given: Any) -> Any:
    if given["loc"] is None and int(given["seq_lens"].min()) < 0:
        raise ValueError("seq_lens holds a negative length")
    return _of("decode_attention", **given)


def new_tokens_first(**given: Any) -> Any:
    if bool((given["query_start_loc"].diff() > given["seq_lens"]).any()):
        raise ValueError("seq_lens holds fewer tokens than are new")
    return _of("local_attention_batches", **given)


def weight_named(**given: Any) -> Any:
    if given["form"] == "pack" and not 2 <= given["weight"].shape[-1] <= 4:
        raise ValueError("weight is neither two nor three nor four columns wide")
    return _of("causal_conv1d", **given)


def states_named(**given: Any) -> Any:
    if given["conv_states"] is None and given["cache_indices"] is not None:
        raise ValueError("conv_states are not there")
    return _of("causal_conv1d", **given)


def capture_named(**given: Any) -> Any:
    if given["static"] and given["static"]["capture"] == "never":
        raise ValueError("a replay before its capture")
    return _of("attention_metadata", **given)


@pytest.mark.parametrize(
    ("kernel", "name", "wrong", "fields"),
    [
        (rate_first, "gdn_gating", "all_integers", '"dtype":"bfloat16"'),
        (residual_first, "rms_norm", "x_five_dimensions", '"form":"residual"'),
        (residual_first, "rms_norm", "x_no_dimension", '"form":"residual"'),
        (kept_first, "topk_gating", "groups_zero", ''),
        (section_first, "rotary_embedding", "rotary_wide", '"width":16,"rotary":16,"section":[3,3,2]'),
        (data_first, "int4_linear", "N_zero", ''),
        (columns_first, "causal_conv1d_update_spec", "offsets_negative", ''),
        (table_first, "attention_metadata", "length_beyond_32_bits", '"batches":[{"requests":[{}]}]'),
        (overlap_first, "extend_attention", "start_negative", '"seed":1,"prefixes":[0,0],"extends":[2,2]'),
        (overlap_first, "extend_attention", "start_too_large", '"prefixes":[0,0],"extends":[2,2]'),
        (workspace_first, "mla_decode", "seq_lens_beyond_32_bits", '"lens":[3]'),
        (lengths_first, "decode_attention", "pad_slot_without_loc", '"lens":[3,2],"pads":[1],"pad":"zero"'),
        (weight_named, "causal_conv1d", "pack_width_5", '"form":"pack"'),
        (states_named, "causal_conv1d", "indices_without_states", '"form":"varlen"'),
        (capture_named, "attention_metadata", "never_captured", '"batches":[{"requests":[{}]}]'),
        (new_tokens_first, "local_attention_batches", "offset_negative", '"requests":[[2,2]]'),
    ],
)  # fmt: skip
def test_any_error_of_a_wrong_call_may_be_said(kernel: Any, name: str, wrong: str, fields: str) -> None:
    line = f'{{"pair":"{name}","v":1,"trial":"wrong_call:{wrong}"{"," if fields else ""}{fields}}}'
    pair, case = read_case(properties.pairs(), line)
    pair = replace(pair, wrong_calls={wrong: pair.wrong_calls[wrong]})
    candidate = Candidate("another order", f"{__name__}:{kernel.__name__}")
    assert check(Subject(pair, candidate), case, InProcess(candidate)).failures == []
