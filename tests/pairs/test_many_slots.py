"""Very many slots, tokens, keys or requests become few where a provider's limits widen them."""

from dataclasses import replace

import properties
from properties.causal_conv1d.cases import ConvCase
from properties.causal_conv1d_update_spec.cases import ConvSpecCase
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.decode_attention.cases import DecodeAttentionCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase
from properties.mla_decode.cases import MlaDecodeCase
from properties.paged_attention.cases import PagedAttentionCase
from properties.shared.crowds import few_if_wider
from properties.shared.pads import MANY_SLOTS


def test_wider_slots_are_few() -> None:
    chunk = ChunkCase(form="pool", K=3, V=3, spare=MANY_SLOTS + 2, before=MANY_SLOTS + 3)
    wider = few_if_wider(chunk, replace(chunk, K=64, V=64))
    assert (wider.spare, wider.before, wider.K) == (2, 3, 64)
    update = DeltaCase(key_size=7, value_size=7, spare=MANY_SLOTS)
    assert few_if_wider(update, replace(update, key_size=128, value_size=128)).spare == 1  # a pad may be one of them
    convolution = ConvCase(dim=3, width=4, states=True, indexed=True, spare=MANY_SLOTS + 1)
    assert few_if_wider(convolution, replace(convolution, dim=64)).spare == 1
    assert few_if_wider(convolution, convolution).spare == MANY_SLOTS + 1


def test_requests_with_larger_heads_are_few() -> None:
    crowd = DecodeAttentionCase(lens=(1, 2) * 515, encoder=(3,) * 1030, pads=(2, 900))
    wider = few_if_wider(crowd, replace(crowd, heads=8, kv_heads=8, width=64, width_v=64))
    assert (len(wider.lens), len(wider.encoder or ()), wider.pads) == (17, 17, (2,))
    far = PagedAttentionCase(rows=(2,), lens=(66_001,))
    wider_far = few_if_wider(far, replace(far, width=64, width_v=64))
    assert (wider_far.rows, wider_far.lens) == ((2,), (300,))
    latent = MlaDecodeCase(lens=(66_001,))
    assert few_if_wider(latent, replace(latent, latent=512, rope=64)).lens == (300,)


def test_a_long_request_of_a_model_stays_long() -> None:
    model = DecodeAttentionCase(lens=(131_072,), heads=32, kv_heads=8, width=128, width_v=128)
    assert model.lens == (131_072,) and few_if_wider(model, replace(model, dtype="bfloat16")).lens == (131_072,)


def test_pairs_that_draw_them_say_so() -> None:
    pairs = properties.pairs()
    many = {"a crowd of requests", "more slots than 16 bits count", "more keys than 16 bits count"}
    drawing = [name for name, pair in pairs.items() if many & set(pair.coverage.edges)]
    assert len(drawing) >= 9
    others = {name: pairs[name].cases.refit for name in drawing if pairs[name].cases.refit is not few_if_wider}
    unfitted = [name for name, refit in others.items() if refit is pairs["store_cache"].cases.refit]
    assert unfitted == ["attention_metadata", "local_attention_batches", "store_cache"]  # numbers without states, small rows
    assert set(others) - set(unfitted) == {"gated_delta_rule_update_spec"}  # counts its tokens again


def test_drafts_of_wider_slots_are_few() -> None:
    few = properties.pairs()["causal_conv1d_update_spec"].cases.refit
    convolution = ConvSpecCase(dim=3, lengths=(1, 2) * 515, accepted=(1, 1) * 515, pads=(2, 900), before=MANY_SLOTS + 3)
    wider = few(convolution, replace(convolution, dim=64))
    assert (len(wider.lengths), len(wider.accepted), wider.pads, wider.before) == (17, 17, (2,), 3)
    few = properties.pairs()["gated_delta_rule_update_spec"].cases.refit
    crowd = DeltaSpecCase(key_size=7, value_size=7, lengths=(1, 2) * 515, accepted=(1, 1) * 515, requests=1545, pads=(2, 900))
    fewer = few(crowd, replace(crowd, key_size=128, value_size=128))
    assert (len(fewer.lengths), fewer.pads, fewer.requests) == (17, (2,), 25)
