"""Cases by which right kernels were blamed once: they pass."""

from typing import Any

import pytest
from torch import Tensor

import properties
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check, read_case

ONCE_BLAMED = {
    "scalar": (
        '{"pair":"merge_state","v":1,"trial":"fuzz","heads":3,"empty":"some"}',
        '{"pair":"int4_linear","v":1,"seed":107996,"trial":"fuzz","outer":[97],"N":416,"K":63,"activation":"int8",'
        '"bias":"float32","values":"integers"}',
        '{"pair":"extend_attention","v":1,"seed":7265892,"dtype":"bfloat16","trial":"fuzz","prefixes":[1],"encoder":[0],"cross":true}',
        '{"pair":"fused_moe","v":1,"trial":"pads","tokens":8300,"experts":2,"D":2,"I":2,"b2":"call","on_input":true,"route":"pads"}',
        '{"pair":"quantize_rows_int8","v":1,"seed":1199,"trial":"scaled","rows":66000}',
        '{"pair":"decode_attention","v":1,"seed":31,"dtype":"bfloat16","trial":"window","lens":[300],"width_v":31,"window":2}',
        '{"pair":"paged_attention","v":1,"seed":3,"trial":"wrong_call:heads","rows":[1],"lens":[9],"heads":4,"kv_heads":2,'
        '"width":8,"width_v":32,"latent":true}',
    ),
    "amx_emulated": (  # it rounds operands to 16 bits
        '{"pair":"flash_attn_varlen","v":1,"seed":3,"dtype":"bfloat16","layout":{"v":"expanded"},"rows":[40],"lens":[1024],'
        '"width":16,"width_v":32}',
        '{"pair":"extend_attention","v":1,"seed":3,"dtype":"bfloat16","layout":{"v":"expanded"},"extends":[512],"width":16,'
        '"width_v":32}',
        '{"pair":"chunk_gated_delta_rule","v":1,"seed":1030,"dtype":"bfloat16","layout":{"has_initial_state":"expanded"},'
        '"trial":"accurate","form":"pool","lengths":[20,20],"cold":[0],"K":32,"V":32}',
        '{"pair":"chunk_gated_delta_rule","v":1,"seed":1030,"dtype":"bfloat16","layout":{"k":"expanded","v":"expanded"},'
        '"lengths":[64],"state":"none","beta":"one","decay":0.0,"eps":0.1,"keys":"tiny"}',
    ),
}


@pytest.mark.parametrize(("tier", "line"), [(tier, line) for tier, lines in ONCE_BLAMED.items() for line in lines])
def test_what_once_blamed_a_right_kernel_passes(tier: str, line: str) -> None:
    pair, case = read_case(properties.pairs(), line)
    candidate = properties.suite.candidate(pair, tier)
    assert check(Subject(pair, candidate), case, InProcess(candidate)).failures == []


def copies_its_table(block_table: Tensor, **others: Any) -> Any:
    """A kernel for dense tables alone, on a machine that has 1 GiB to spare."""
    if block_table.numel() * block_table.element_size() > 1 << 30:
        raise MemoryError("no room for a copy of block_table")
    pair = properties.pairs()["local_attention_batches"]
    return pair.reference(block_table=block_table.contiguous(), **others)


def test_somebody_elses_kernel_may_copy_a_table_whose_chunks_lie_far_along() -> None:
    line = '{"pair":"local_attention_batches","v":1,"trial":"far"}'
    pair, case = read_case(properties.pairs(), line)
    candidate = Candidate("copies", f"{__name__}:{copies_its_table.__name__}")
    assert check(Subject(pair, candidate, foreign=True), case, InProcess(candidate)).failures == []
