"""Cross attention over either backend: what it refuses before keys of an encoder are stored."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from serving import ForwardBatch
from tests.pairs.test_backends import BATCH, EXTEND, LAYER, SIDES, decoded, made


@pytest.mark.parametrize("batch", [BATCH, EXTEND], ids=["decode", "extend"])
@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
def test_cross_attention_without_lengths_of_encoders_stores_nothing(side: str, kind: str, batch: ForwardBatch) -> None:
    layer = replace(LAYER, is_cross=True)
    backend = made(side, kind, layer)
    before = backend.pools[0].k.clone()
    with pytest.raises(ValueError, match="encoder_lens"):
        decoded(backend, replace(batch, encoder_out_cache_loc=torch.tensor([40])), layer)
    assert torch.equal(before, backend.pools[0].k)
