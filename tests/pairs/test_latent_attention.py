"""Latent attention by mode: which form a batch takes, that it is the one which runs, and what is refused. What it computes is on
trial as the pair `models`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import optimized.backends.latent
import optimized.backends.slot
import reference.backends.latent
import reference.backends.slot
from serving import AttentionLayer, ForwardBatch, KVPool, MlaProjections, mla_form

SIDES = {"reference": reference.backends, "optimized": optimized.backends}
LAYER = AttentionLayer(0, 2, 1, 12, 8, 0.5, latent=True)
UP = MlaProjections(torch.randn(2, 4, 8), torch.randn(2, 6, 8))
NEW = ForwardBatch("extend", torch.tensor([1, 0]), torch.tensor([3, 1], dtype=torch.int32), torch.tensor([16, 17, 18, 0]),
                   torch.tensor([3, 1]))  # fmt: skip
CONTINUED = replace(NEW, seq_lens=torch.tensor([3, 4]), out_cache_loc=torch.tensor([16, 17, 18, 3]))
DECODE = ForwardBatch("decode", torch.tensor([1, 0]), torch.tensor([3, 4]), torch.tensor([18, 3]))


class Counted:
    """A backend that says how often it was called."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.calls = backend, []  # type: Any, list[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("forward"):
            self.calls.append(name)
        return getattr(self.backend, name)


def made(side: str, **changed: Any) -> tuple[Any, Counted]:
    table = torch.arange(32, dtype=torch.int32).reshape(2, 16)
    k = torch.full((32, 1, 12), torch.nan)
    slot = Counted(SIDES[side].slot.SlotBackend([LAYER], {0: KVPool(k, k[..., :8])}, table))
    layers = {0: (changed.get("layer", LAYER), changed.get("up", UP))}
    return SIDES[side].latent.LatentAttention(slot, slot, layers), slot


@pytest.mark.parametrize(
    ("batch", "form"),
    [
        (NEW, "expanded"),
        (CONTINUED, "absorbed"),
        (DECODE, "absorbed"),
        (replace(CONTINUED, mode="mixed", num_decodes=0), "absorbed"),
        (replace(NEW, mode="draft_extend"), "expanded"),
        (replace(DECODE, mode="target_verify", num_draft_tokens=1), "absorbed"),
        (replace(NEW, extend_seq_lens=torch.tensor([3, 0]), seq_lens=torch.tensor([3, 1])), "absorbed"),
    ],
)
def test_the_form_follows_from_the_batch(batch: ForwardBatch, form: str) -> None:
    assert mla_form(batch) == form


@pytest.mark.parametrize("side", SIDES)
def test_only_a_prefill_that_continues_nothing_is_expanded(side: str) -> None:
    latent, slot = made(side)
    q, rows = torch.randn(4, 2, 8), torch.randn(4, 1, 12)
    slot.backend.prepare(NEW)
    out = latent.forward(q, rows, LAYER, NEW)
    assert slot.calls == [] and out.shape == (4, 2, 6) and out.isfinite().all()
    assert torch.equal(slot.backend.pools[0].k[[16, 17, 18, 0]], rows)
    slot.backend.pools[0].k[[1, 2]] = torch.randn(2, 1, 12)
    for batch, name in ((CONTINUED, "forward_extend"), (DECODE, "forward_decode")):
        slot.calls.clear()
        slot.backend.prepare(batch)
        tokens = len(batch.out_cache_loc)  # type: ignore[arg-type]
        assert latent.forward(q[:tokens], rows[:tokens], LAYER, batch).isfinite().all()
        assert slot.calls == [name]


@pytest.mark.parametrize("side", SIDES)
def test_the_expanded_form_stores_only_what_it_is_asked_to(side: str) -> None:
    latent, slot = made(side)
    q, rows = torch.randn(4, 2, 8), torch.randn(4, 1, 12)
    slot.backend.prepare(NEW)
    stored = latent.forward(q, rows, LAYER, NEW)
    slot.backend.pools[0].k.fill_(torch.nan)
    assert torch.equal(latent.forward(q, rows, LAYER, NEW, save_kv_cache=False), stored)
    assert slot.backend.pools[0].k.isnan().all()
    assert NEW.out_cache_loc is not None
    for loc in (None, NEW.out_cache_loc[:3], torch.arange(5)):
        with pytest.raises(ValueError, match="out_cache_loc"):
            latent.forward(q, rows, LAYER, replace(NEW, out_cache_loc=loc))
    assert slot.backend.pools[0].k.isnan().all()


@pytest.mark.parametrize("side", SIDES)
def test_what_does_not_fit_the_projections_is_refused(side: str) -> None:
    with pytest.raises(ValueError, match="latent of layer 0"):
        made(side, layer=replace(LAYER, latent=False))
    with pytest.raises(ValueError, match="up_v must have shape"):
        made(side, up=MlaProjections(UP.up_k, torch.zeros(2, 6, 9)))
    latent, slot = made(side)
    slot.backend.prepare(NEW)
    q, rows = torch.zeros(4, 2, 8), torch.zeros(4, 1, 12)
    for given, named in (((q[..., 1:], rows), "q must"), ((q, rows[1:]), "rows must")):
        with pytest.raises(ValueError, match=named):
            latent.forward(*given, LAYER, NEW)
    assert slot.backend.pools[0].k.isnan().all()
