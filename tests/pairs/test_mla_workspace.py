"""The workspace of mla_decode: the closed form against its definition, and the buffer that only grows."""

import itertools

import pytest

from optimized.mla_decode import mla_auto_splits, mla_decode_workspace_size
from optimized.workspace import Workspace
from properties.mla_decode.cases import LARGER, WORKSPACE, within_workspace
from reference import mla_decode as reference

LENGTHS = (0, 1, 511, 512, 513, 1024, 5000, 70_000)
BATCHES = (0, 1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200)


def test_auto_splits_equal_the_reference_and_stay_in_range() -> None:
    for length, batch in itertools.product(LENGTHS, BATCHES):
        splits = mla_auto_splits(length, batch, 16, 64)
        assert splits == reference.mla_auto_splits(length, batch, 16, 64)
        assert 1 <= splits <= 128


@pytest.mark.parametrize("splits", [-1, 1, 2, 7])
def test_size_equals_the_definition(splits: int) -> None:
    for length, batch, heads in itertools.product(LENGTHS, BATCHES, (0, 1, 16)):
        size = mla_decode_workspace_size(length, batch, heads, 64, 512, splits)
        assert size == reference.mla_decode_workspace_size(length, batch, heads, 64, 512, splits)


def test_size_never_falls() -> None:
    for splits in (-1, 2, 7):
        for length, heads in itertools.product(LENGTHS, (1, 16)):
            sizes = [mla_decode_workspace_size(length, batch, heads, 64, 512, splits) for batch in range(140)]
            assert sizes == sorted(sizes)
        sizes = [mla_decode_workspace_size(length, 8, 16, 64, 512, splits) for length in range(0, 9000, 37)]
        assert sizes == sorted(sizes)


def test_wrong_extents_are_refused() -> None:
    with pytest.raises(ValueError, match="num_batches"):
        mla_decode_workspace_size(1, -1, 1, 64)
    with pytest.raises(ValueError, match="num_kv_splits"):
        mla_decode_workspace_size(1, 1, 1, 64, 512, 0)
    with pytest.raises(ValueError, match="max_seq_len"):
        mla_auto_splits(-1, 1, 1, 64)


@pytest.mark.parametrize("batch", [0, 1, 17])
def test_no_case_has_a_workspace_of_hundreds_of_megabytes(batch: int) -> None:
    """Not that of a larger batch either, of a batch without requests or with one."""
    fields = {"larger_workspace": True, "values": "random", "seed": 0, "splits": 300}
    splits = within_workspace(fields, batch, 260, 512)["splits"]
    size = mla_decode_workspace_size(700 * LARGER, batch + LARGER, 260 + LARGER, 64, 512, splits)
    assert size < 4 * 5 * WORKSPACE or splits == 1


def test_workspace_grows_and_keeps_its_address() -> None:
    workspace = Workspace()
    assert workspace.capacity == 0
    address = workspace.get(1000).data_ptr()
    assert workspace.get(10).data_ptr() == address
    assert workspace.get(10).numel() == 10
    assert workspace.capacity == 1000
    assert workspace.get(2000).numel() == workspace.capacity == 2000
    with pytest.raises(ValueError, match="nbytes"):
        workspace.get(-1)
