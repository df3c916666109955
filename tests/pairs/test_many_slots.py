"""Slots, tokens and keys whose numbers need more than 16 bits, and crowds: only while they are small."""

from dataclasses import replace

from properties.causal_conv1d.cases import ConvCase
from properties.causal_conv1d_update_spec.cases import ConvSpecCase
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.decode_attention.cases import DecodeAttentionCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.mla_decode.cases import MlaDecodeCase
from properties.paged_attention.cases import PagedAttentionCase
from properties.shared.pads import MANY_SLOTS


def test_wider_slots_are_few() -> None:
    chunk = ChunkCase(form="pool", K=3, V=3, spare=MANY_SLOTS + 2, before=MANY_SLOTS + 3)
    assert (chunk.spare, chunk.before) == (MANY_SLOTS + 2, MANY_SLOTS + 3)
    assert (replace(chunk, K=64, V=64).spare, replace(chunk, K=64, V=64).before) == (2, 3)
    update = DeltaCase(key_size=7, value_size=7, spare=MANY_SLOTS)
    assert update.spare == MANY_SLOTS and replace(update, key_size=128, value_size=128).spare == 1  # a pad may be one of them
    convolution = ConvCase(dim=3, width=4, states=True, indexed=True, spare=MANY_SLOTS + 1)
    assert convolution.spare == MANY_SLOTS + 1 and replace(convolution, dim=64).spare == 1
    drafts = ConvSpecCase(dim=3, width=4, spare=MANY_SLOTS + 1)
    assert drafts.spare == MANY_SLOTS + 1 and replace(drafts, dim=64).spare == 1


def test_requests_with_larger_heads_are_few() -> None:
    crowd = DecodeAttentionCase(lens=(1, 2) * 515, encoder=(3,) * 1030, pads=(2, 900))
    assert len(crowd.lens) == 1030 and len(crowd.pads) == 2
    fitted = replace(crowd, heads=8, kv_heads=8, width=64, width_v=64)
    assert (len(fitted.lens), len(fitted.encoder or ()), fitted.pads) == (17, 17, (2,))
    far = PagedAttentionCase(rows=(2,), lens=(66_001,))
    assert far.lens == (66_001,)
    assert (replace(far, width=64, width_v=64).rows, replace(far, width=64, width_v=64).lens) == ((2,), (300,))
    assert replace(MlaDecodeCase(lens=(66_001,)), latent=512, rope=64).lens == (300,)
