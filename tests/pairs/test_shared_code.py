"""What reference and optimized share, against numbers written by hand: no comparison of the two could notice an error in it.

docs/contracts/shared-code.md lists the shared code; `tests/house/test_shared_code.py` holds that list to the sources.
"""

from dataclasses import MISSING, asdict, fields
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import optimized.attention_metadata
import optimized.backends.linear
import optimized.backends.paged
import optimized.checks
import optimized.local_attention_batches
import reference.attention_metadata
import reference.backends.linear
import reference.backends.paged
import reference.checks
import reference.local_attention_batches
from serving import AttentionLayer, ForwardBatch, GdnLayer, GdnMetadata, KVPool, PackedConvWeight, PackedWeight, StatePool

BOTH = pytest.mark.parametrize("side", [reference, optimized], ids=["reference", "optimized"])
SEQ_LENS, ROWS = torch.tensor([3, 0, 5]), torch.tensor([1, 0, 2])
TABLE = torch.arange(24).reshape(3, 8)  # with pages of 2, row r holds the pages 4r to 4r + 3
PLAIN: dict[str, Any] = {
    "encoder_lens": None, "encoder_cu_seqlens_k": None, "encoder_page_table": None, "encoder_max_seq_len_k": 0, "local": None,
}  # fmt: skip
DECODED = {
    "cache_seqlens": [3, 0, 5], "cu_seqlens_q": [0, 1, 2, 3], "cu_seqlens_k": [0, 3, 3, 8],
    "page_table": [[4, 5, 0], [0, 0, 0], [8, 9, 10]], "max_seq_len_q": 1, "max_seq_len_k": 5,
}  # fmt: skip
LONGER = {  # two tokens more in every request
    "cache_seqlens": [5, 2, 7], "cu_seqlens_k": [0, 5, 7, 14],
    "page_table": [[4, 5, 6, 0], [0, 0, 0, 0], [8, 9, 10, 11]], "max_seq_len_k": 7,
}  # fmt: skip
EXTENDED = DECODED | {"cu_seqlens_q": [0, 2, 2, 7], "max_seq_len_q": 5}
NEW = {"extend_seq_lens": torch.tensor([2, 0, 5])}
VERIFIED = DECODED | LONGER | {"cu_seqlens_q": [0, 2, 4, 6], "max_seq_len_q": 2}
ENCODED = {  # the tokens of request 0 begin behind the two pages of its encoder
    "page_table": [[6, 7, 0], [0, 0, 0], [8, 9, 10]], "encoder_lens": [3, 2, 0], "encoder_cu_seqlens_k": [0, 3, 5, 5],
    "encoder_page_table": [[4, 5], [0, 0], [0, 0]], "encoder_max_seq_len_k": 3,
}  # fmt: skip
LOCAL = {
    "seqlens_q": [1, 1], "cu_seqlens_q": [0, 1, 2], "seqlens_k": [3, 1], "block_table": [[4, 5], [10, 0]],
    "max_seq_len_q": 1, "max_seq_len_k": 3,
}  # fmt: skip
BY_HAND: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("decode", {}, DECODED),
    ("idle", {}, DECODED),
    ("extend", NEW, EXTENDED),
    ("mixed", NEW, EXTENDED),
    ("draft_extend", NEW, EXTENDED),
    ("draft_decode", {"speculative_step_id": 1}, DECODED | LONGER),
    ("target_verify", {"num_draft_tokens": 2}, VERIFIED),
    ("decode", {"encoder_lens": torch.tensor([3, 2, 0])}, DECODED | ENCODED),
    ("decode", {"attn_chunk_size": 4}, DECODED | {"local": LOCAL}),
]


def plain(value: Any) -> Any:
    """Tensors as lists, with what holds them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@BOTH
@pytest.mark.parametrize(("mode", "options", "expected"), BY_HAND, ids=[f"{mode} {list(more)}" for mode, more, _ in BY_HAND])
def test_metadata_by_hand(side: ModuleType, mode: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
    meta = side.attention_metadata.build_attention_metadata(mode, SEQ_LENS, ROWS, TABLE, page_size=2, **options)
    assert plain(asdict(meta)) == PLAIN | expected


@BOTH
@pytest.mark.parametrize(("mode", "drafts", "steps"), [("decode", 0, 1), ("target_verify", 2, 2), ("idle", 3, 1)])
def test_static_metadata_by_hand(side: ModuleType, mode: str, drafts: int, steps: int) -> None:
    buffers = side.attention_metadata.MetadataBuffers(4, 8, page_size=2, num_draft_tokens=drafts)
    empty = plain(asdict(buffers.capture(mode, 4)))
    assert empty["cu_seqlens_q"] == [0, steps, 2 * steps, 3 * steps, 4 * steps]
    assert empty["cache_seqlens"] == [0] * 4 and empty["page_table"] == [[0] * 4] * 4
    more = 2 if mode == "target_verify" else 0
    replayed = plain(asdict(buffers.replay(mode, 4, SEQ_LENS, ROWS, TABLE)))
    assert replayed["cache_seqlens"] == [3 + more, more, 5 + more, 0]
    assert replayed["max_seq_len_k"] == 5 + more and replayed["max_seq_len_q"] == steps


@BOTH
def test_static_metadata_has_its_limits(side: ModuleType) -> None:
    make = side.attention_metadata.MetadataBuffers
    assert len(make(2, 8).capture("decode", 2).cache_seqlens) == 2
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: make(2, 8).capture("decode", 3), ValueError, "bs 3 is more than max_bs 2"),
        (lambda: make(2, 8).capture("decode", -1), ValueError, "bs must be at least 0"),
        (lambda: make(2, 8).capture("decode", True), TypeError, "bs must be an int"),
        (lambda: make(2, 8).capture("extend", 2), ValueError, "mode 'extend'"),
        (lambda: make(2, 8).capture(3, 2), TypeError, "mode must be a str"),
        (lambda: make(2**30, 8, num_draft_tokens=2).capture("target_verify", 2**30), ValueError, "does not fit int32"),
        (lambda: make(-1, 8), ValueError, "max_bs"),
        (lambda: make(2, -1), ValueError, "max_context_len"),
        (lambda: make(2, 8, max_encoder_len=-1), ValueError, "max_encoder_len"),
        (lambda: make(2, 8, page_size=0), ValueError, "page_size must be at least 1"),
        (lambda: make(2, 8, page_size=2**62 + 1), ValueError, "page_size must be at most 4611686018427387904"),
        (lambda: make(2, 8, page_size=2.0), TypeError, "page_size must be an int"),
        (lambda: make(2, 8, num_draft_tokens=-1), ValueError, "num_draft_tokens"),
        (lambda: make(2, 8, speculative_step_id=-1), ValueError, "speculative_step_id"),
        (lambda: make(2, 8, attn_chunk_size=0), ValueError, "attn_chunk_size must be at least 1"),
        (lambda: make(2, 8, attn_chunk_size=3, page_size=2), ValueError, "attn_chunk_size 3 must be a multiple of page_size 2"),
    ]
    for call, error, says in refused:
        with pytest.raises(error, match=says):
            call()


@BOTH
def test_the_largest_pages_and_chunks(side: ModuleType) -> None:
    one, build = torch.tensor([1]), side.attention_metadata.build_attention_metadata
    for page, table in ((2**62, [[1]]), (3 << 60, [[1]])):
        slot = torch.tensor([[page]])
        meta = build("decode", one, one - 1, slot, page_size=page, attn_chunk_size=8 * page)
        assert plain(meta.page_table) == table and plain(meta.local.block_table) == table
        local = side.local_attention_batches.local_attention_batches(4 * page, torch.tensor([0, 1]), one, one[None], page)
        assert plain(local[3]) == [[1]]
    for page in (2**62 + 1, 2**63, 3 << 61):
        with pytest.raises(ValueError, match=f"page_size must be at most {2**62}, got {page}"):
            build("decode", one, one - 1, one[None] - 1, page_size=page)


@BOTH
def test_drafts_by_hand(side: ModuleType) -> None:
    make = side.attention_metadata.MultiStepMetadata
    drafts = make(4, 3, 9, page_size=2)
    assert len(drafts.capture(3)) == 3 and make(1, 3, 9).capture(3) == []
    steps = drafts.replay(3, SEQ_LENS, ROWS, TABLE)
    assert [step.cache_seqlens.tolist() for step in steps] == [[4, 1, 6], [5, 2, 7], [6, 3, 8]]
    before = [plain(asdict(step)) for step in steps]
    with pytest.raises(IndexError):  # the first steps would fit 8 columns, the last one does not
        drafts.replay(3, SEQ_LENS + 1, ROWS, TABLE)
    assert [plain(asdict(step)) for step in steps] == before
    for wrong, error in (({"num_steps": 0}, ValueError), ({"topk": 2}, ValueError), ({"topk": "1"}, TypeError)):
        with pytest.raises(error, match=next(iter(wrong))):
            make(**{"num_steps": 2, "max_bs": 1, "max_context_len": 8, **wrong})


@BOTH
def test_chunks_are_whole_pages(side: ModuleType) -> None:
    local = side.local_attention_batches.local_attention_batches
    lengths = torch.tensor([0, 1]), torch.tensor([3]), torch.zeros(1, 4, dtype=torch.int64)
    assert local(4, *lengths, 2)[2].tolist() == [3]
    for chunk, page, error in ((3, 2, ValueError), (0, 1, ValueError), (4, 0, ValueError), (4.0, 2, TypeError)):
        with pytest.raises(error):
            local(chunk, *lengths, page)


def test_fields_and_their_defaults() -> None:
    """The data that both sides take has no field more, and no default says anything else, than the contracts do."""
    expected: dict[type, dict[str, Any]] = {
        GdnMetadata: {"num_decodes": ..., "num_decode_tokens": ..., "num_prefills": ..., "num_prefill_tokens": ...,
                      "num_actual_tokens": ..., "state_indices": ..., "query_start_loc": ..., "has_initial_state": ...,
                      "pad_slot": None},
        PackedWeight: {"data": ..., "layout": ..., "N": ..., "K": ...},
        PackedConvWeight: {"data": ..., "layout": ..., "dim": ..., "width": ...},
        AttentionLayer: {"layer_id": ..., "heads": ..., "kv_heads": ..., "head_dim": ..., "v_head_dim": ..., "sm_scale": ...,
                         "logit_cap": 0.0, "sliding_window": -1, "is_cross": False, "sinks": None, "k_scale": None,
                         "v_scale": None, "local": False, "latent": False},
        GdnLayer: {"layer_id": ..., "num_k_heads": ..., "head_k_dim": ..., "num_v_heads": ..., "head_v_dim": ...,
                   "conv_weight": ..., "conv_bias": ..., "A_log": ..., "dt_bias": ..., "use_qk_l2norm": True, "eps": 1e-5},
        KVPool: {"k": ..., "v": ...},
        StatePool: {"conv": ..., "ssm": ..., "conv_layout": "SD", "state_layout": "vk"},
        ForwardBatch: {"mode": ..., "req_pool_indices": ..., "seq_lens": ..., "out_cache_loc": None, "extend_seq_lens": None,
                       "encoder_lens": None, "encoder_out_cache_loc": None, "state_indices": None, "num_decodes": 0,
                       "num_draft_tokens": 0, "speculative_step_id": 0, "padded_size": None},
    }  # fmt: skip
    for kind, wanted in expected.items():
        found = {field.name: ... if field.default is MISSING else field.default for field in fields(kind)}
        assert found == wanted, kind.__name__


def test_rows_of_a_batch() -> None:
    batch = ForwardBatch("decode", ROWS, SEQ_LENS)
    assert (batch.size, batch.rows) == (3, 3)
    assert ForwardBatch("decode", ROWS, SEQ_LENS, padded_size=5).rows == 5


@BOTH
def test_a_local_layer_needs_chunks(side: ModuleType) -> None:
    layer = AttentionLayer(0, 1, 1, 8, 8, 0.5, local=True)
    pools = {0: KVPool(torch.zeros(4, 1, 8), torch.zeros(4, 1, 8))}
    with pytest.raises(ValueError, match="attn_chunk_size must be given"):
        side.backends.paged.PagedBackend([layer], pools, TABLE)
    side.backends.paged.PagedBackend([layer], pools, TABLE, attn_chunk_size=4)


@BOTH
def test_what_a_linear_layer_loads(side: ModuleType) -> None:
    def loaded(bias: bool, *values: Any) -> Any:
        layer = side.backends.linear.Linear(3, 2, bias=bias, dtype=torch.float32)
        layer.load(*values)
        return layer

    weight = torch.arange(6.0).reshape(2, 3)
    assert loaded(True, weight, torch.ones(2))(torch.eye(3)).tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    refused: list[tuple[bool, tuple[Any, ...], type[Exception], str]] = [
        (False, (weight.T,), ValueError, "weight must have shape"),
        (False, (weight.double(),), TypeError, "weight has dtype"),
        (False, (weight, torch.ones(2)), ValueError, "bias"),
        (True, (weight, torch.ones(3)), ValueError, "bias must have shape"),
    ]
    for bias, values, error, says in refused:
        with pytest.raises(error, match=says):
            loaded(bias, *values)


def _bytes(tensor: torch.Tensor, shape: list[int], strides: list[int]) -> set[int]:
    """Every byte of a view, from its own indices."""
    elements = {0}
    for size, stride in zip(shape, strides):
        elements = {element + i * stride for element in elements for i in range(size)}
    first, width = tensor.data_ptr(), tensor.element_size()
    return {first + element * width + byte for element in elements for byte in range(width)}


@BOTH
@given(
    dims=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=3),
    offsets=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_tensors_that_share_a_byte_are_refused(side: ModuleType, dims: list[tuple[int, int, int]], offsets: Any) -> None:
    """The proof that two views of one buffer lie apart is one algorithm on both sides: here it meets the bytes."""
    buffer = torch.zeros(200, dtype=torch.int16)
    strides = [stride for _, _, stride in dims]
    shapes = [[dim[which] for dim in dims] for which in (0, 1)]
    a, b = (buffer.as_strided(shape, strides, offset) for shape, offset in zip(shapes, offsets))
    shared = bool(_bytes(a, shapes[0], strides) & _bytes(b, shapes[1], strides))
    disjoint = reference.checks.disjoint if side is reference else optimized.checks.check_disjoint
    refused = ""
    try:
        disjoint({"a": a}, {"b": b})
    except ValueError as error:
        refused = str(error)
    assert refused or not shared, "a shared byte was accepted"


@BOTH
def test_halves_of_a_fused_buffer_lie_apart(side: ModuleType) -> None:
    fused = torch.zeros(5, 2, 2, 8)
    disjoint = reference.checks.disjoint if side is reference else optimized.checks.check_disjoint
    disjoint({"k": fused[:, 0], "v": fused[:, 1]}, {})
    with pytest.raises(ValueError, match="overlap"):
        disjoint({"k": fused[:, 0], "v": fused[:, 0, :, 4:]}, {})
