"""Attention backends of both sides: what they refuse, and that a refused call leaves the pools alone. What they compute is on
trial as the pair `serving`."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import optimized.backends.gdn
import optimized.backends.linear
import optimized.backends.mla
import optimized.backends.paged
import optimized.backends.slot
import reference.backends.gdn
import reference.backends.linear
import reference.backends.mla
import reference.backends.paged
import reference.backends.slot
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from properties import pairs
from serving import AttentionLayer, ForwardBatch, KVPool, StatePool, store_route

SIDES = {"reference": reference.backends, "optimized": optimized.backends}
LAYER = AttentionLayer(0, 2, 1, 8, 8, 0.5)
TABLE = torch.arange(64, dtype=torch.int32).reshape(2, 32)
BATCH = ForwardBatch("decode", torch.tensor([1]), torch.tensor([3]), torch.tensor([34]))
INT32_END = torch.tensor([2**31 - 1], dtype=torch.int32)
EXTEND = replace(BATCH, mode="extend", extend_seq_lens=torch.tensor([1]))


def made(side: str, kind: str, layer: AttentionLayer = LAYER, **options: Any) -> Any:
    k = torch.randn(64, layer.kv_heads, layer.head_dim)
    v = k[..., : layer.v_head_dim] if layer.latent else torch.randn(64, layer.kv_heads, layer.v_head_dim)
    backend = getattr(getattr(SIDES[side], kind), f"{kind.title()}Backend")
    return backend([layer], {0: KVPool(k, v)}, TABLE.clone(), **options)


def activations(tokens: int = 1) -> list[Any]:
    return [torch.randn(tokens, 2, 8), torch.randn(tokens, 1, 8), torch.randn(tokens, 1, 8)]


def decoded(backend: Any, batch: ForwardBatch = BATCH, layer: AttentionLayer = LAYER, tokens: int = 1, **changed: Any) -> Any:
    backend.prepare(batch)
    q, k, v = (changed.get(name, value) for name, value in zip("qkv", activations(tokens)))
    forward = backend.forward_decode if batch.mode == "decode" else backend.forward_extend
    return forward(q, k, v, layer, batch)


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "k without v": (lambda b: decoded(b, v=None), ValueError, "v is None"),
    "v without k": (lambda b: decoded(b, k=None), ValueError, "k is None"),
    "q of other heads": (lambda b: decoded(b, q=torch.zeros(1, 3, 8)), ValueError, "q must have shape"),
    "q of more tokens": (lambda b: decoded(b, tokens=2), ValueError, "q must have shape"),
    "q of another dtype": (lambda b: decoded(b, q=torch.zeros(1, 2, 8).half()), TypeError, "q has dtype"),
    "q in columns": (lambda b: decoded(b, q=torch.zeros(1, 8, 2).mT), ValueError, "q must be dense"),
    "k in columns": (lambda b: decoded(b, k=torch.zeros(1, 1, 16)[..., ::2]), ValueError, "k must be dense"),
    "k of another width": (lambda b: decoded(b, k=torch.zeros(1, 1, 9)), ValueError, "k must have shape"),
    "no location": (lambda b: decoded(b, replace(BATCH, out_cache_loc=None)), ValueError, "out_cache_loc"),
    "two locations": (lambda b: decoded(b, replace(BATCH, out_cache_loc=torch.tensor([3, 4]))), ValueError, "out_cache_loc"),
    "a location outside": (lambda b: decoded(b, replace(BATCH, out_cache_loc=torch.tensor([64]))), IndexError, "out_cache_loc"),
    "a negative location": (lambda b: decoded(b, replace(BATCH, out_cache_loc=torch.tensor([-1]))), IndexError, "out_cache_loc"),
    "locations of floats": (lambda b: decoded(b, replace(BATCH, out_cache_loc=torch.tensor([3.5]))), TypeError, "out_cache_loc"),
    "a location in a row": (lambda b: decoded(b, replace(BATCH, out_cache_loc=torch.tensor([[3]]))), ValueError, "out_cache_loc"),
    "encoder locations of floats": (
        lambda b: decoded(b, replace(BATCH, encoder_out_cache_loc=torch.tensor([3.5]))), TypeError, "encoder_out_cache_loc"
    ),
    "a row outside": (lambda b: decoded(b, replace(BATCH, req_pool_indices=torch.tensor([2]))), IndexError, "req_pool_indices"),
    "too many tokens": (lambda b: decoded(b, replace(BATCH, seq_lens=torch.tensor([33]))), IndexError, "seq_lens"),
    "a negative length": (lambda b: decoded(b, replace(BATCH, seq_lens=torch.tensor([-1]))), ValueError, "seq_lens"),
    "a negative step": (lambda b: decoded(b, replace(BATCH, speculative_step_id=-1)), ValueError, "speculative_step_id"),
    "an unknown mode": (lambda b: decoded(b, replace(BATCH, mode="prefill")), ValueError, "mode 'prefill'"),
    "lengths of floats": (lambda b: decoded(b, replace(BATCH, seq_lens=torch.tensor([3.0]))), TypeError, "seq_lens"),
    "too large a replay": (lambda b: decoded(b, replace(BATCH, padded_size=3)), ValueError, "padded_size 3"),
    "too small a replay": (lambda b: decoded(b, replace(BATCH, padded_size=0)), ValueError, "padded_size 0"),
    "more new than all": (lambda b: decoded(b, replace(EXTEND, extend_seq_lens=torch.tensor([4]))), ValueError, "extend_seq"),
    "an extend without lengths": (lambda b: decoded(b, replace(BATCH, mode="extend")), ValueError, "extend_seq_lens"),
    "a replayed extend": (lambda b: decoded(b, replace(EXTEND, padded_size=2)), ValueError, "padded_size"),
    "a slot twice": (
        lambda b: decoded(b, replace(EXTEND, extend_seq_lens=torch.tensor([2]), out_cache_loc=torch.tensor([5, 5])), tokens=2),
        ValueError, "out_cache_loc",
    ),
    "a slot outside, in the table": (lambda b: decoded(_with_slot(b, 64)), IndexError, "req_to_token"),
    "a negative slot in the table": (lambda b: decoded(_with_slot(b, -1)), IndexError, "req_to_token"),
    "a length at the end of 32 bits": (
        lambda b: decoded(b, replace(BATCH, mode="draft_decode", num_draft_tokens=2, seq_lens=INT32_END)), IndexError, "seq_lens",
    ),
    "an encoder at the end of 32 bits": (lambda b: decoded(b, replace(BATCH, encoder_lens=INT32_END)), IndexError, "seq_lens"),
}  # fmt: skip


def _with_slot(backend: Any, slot: int) -> Any:
    backend.req_to_token[1, 0] = slot
    return backend


@pytest.mark.parametrize(("side", "kind", "wrong"), [*product(SIDES, ("slot", "paged"), WRONG)])
def test_a_wrong_call_is_refused_and_changes_nothing(side: str, kind: str, wrong: str) -> None:
    call, error, named = WRONG[wrong]
    backend = made(side, kind, max_bs=2)
    before = backend.pools[0].k.clone(), backend.pools[0].v.clone()
    with pytest.raises(error, match=named):
        call(backend)
    assert torch.equal(before[0], backend.pools[0].k) and torch.equal(before[1], backend.pools[0].v)
    backend.req_to_token.copy_(TABLE)
    assert decoded(backend).isfinite().all()  # the run goes on


@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
def test_what_is_wrong_with_a_batch_is_refused_before_a_layer_runs(side: str, kind: str) -> None:
    backend, encoder = made(side, kind), {"encoder_lens": torch.tensor([2])}
    wrong = [({"out_cache_loc": torch.tensor([place])}, IndexError, "out_cache_loc") for place in (-1, 64)]
    wrong += [(encoder | {"encoder_out_cache_loc": torch.tensor([3, place])}, IndexError, "encoder_out") for place in (-1, 64)]
    wrong += [(encoder | {"encoder_out_cache_loc": torch.tensor([3, 3])}, ValueError, "encoder_out_cache_loc")]
    for changes, error, says in wrong:
        with pytest.raises(error, match=says):
            backend.prepare(replace(BATCH, **changes))


@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("paged", "mla"))])
def test_a_replay_beyond_its_buffers_is_refused(side: str, kind: str) -> None:
    backend = made(side, kind, LATENT if kind == "mla" else LAYER, page_size=16, max_bs=2, max_context_len=4)
    backend.prepare(replace(BATCH, seq_lens=torch.tensor([5])))  # no replay
    with pytest.raises(IndexError, match="seq_lens: 5"):
        backend.prepare(replace(BATCH, seq_lens=torch.tensor([5]), padded_size=2))


@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
@pytest.mark.parametrize("batch", [BATCH, EXTEND], ids=["decode", "extend"])
def test_a_forward_without_a_batch_is_refused(side: str, kind: str, batch: ForwardBatch) -> None:
    backend = made(side, kind)
    for _ in range(2):
        with pytest.raises(ValueError, match="batch: prepare it first"):
            (backend.forward_decode if batch.mode == "decode" else backend.forward_extend)(*activations(), LAYER, batch)
        with pytest.raises(IndexError):  # what was refused is no batch either
            backend.prepare(replace(batch, out_cache_loc=torch.tensor([64])))


@pytest.mark.parametrize("side", SIDES)
def test_the_mla_backend_decodes_only(side: str) -> None:
    latent = AttentionLayer(0, 2, 1, 12, 8, 0.5, latent=True)
    backend = made(side, "mla", latent, page_size=16)
    with pytest.raises(ValueError, match="mode 'extend'"):
        backend.prepare(EXTEND)
    with pytest.raises(ValueError, match="forward_extend"):
        backend.forward_extend(*activations(), latent, BATCH)
    with pytest.raises(ValueError, match="page_size 8"):
        made(side, "mla", latent, page_size=8)


@pytest.mark.parametrize("side", SIDES)
def test_what_a_backend_cannot_do_is_refused_when_it_is_made(side: str) -> None:
    with pytest.raises(ValueError, match="attn_chunk_size"):
        made(side, "paged", replace(LAYER, local=True))
    with pytest.raises(ValueError, match="local"):
        made(side, "slot", replace(LAYER, local=True))
    with pytest.raises(ValueError, match="page_size 7"):
        made(side, "paged", page_size=7)
    backend = getattr(SIDES[side], "gdn").GdnBackend  # noqa: B009 - a module that mypy does not see
    with pytest.raises(ValueError, match="layer 3"):
        backend([replace(LAYER, layer_id=3)], {})


@pytest.mark.parametrize("side", SIDES)
def test_padded_requests_leave_a_live_one_in_slot_0_alone(side: str) -> None:
    table, slot_0 = TABLE.flip(1), torch.full((1, 8), 0.25)
    backend = made(side, "slot", max_bs=4)
    backend.req_to_token.copy_(table)
    backend.pools[0].k[0], backend.pools[0].v[0] = slot_0, slot_0
    live = replace(BATCH, req_pool_indices=torch.tensor([0]), seq_lens=torch.tensor([32]), out_cache_loc=torch.tensor([0]))
    seen = replace(live, req_pool_indices=torch.tensor([1]), seq_lens=torch.tensor([3]), out_cache_loc=torch.tensor([61]))
    padded = [torch.cat([rows, torch.full((3, *rows.shape[1:]), torch.nan)]) for rows in activations()]
    q, k, v = padded
    for batch, stored in ((live, 0), (seen, 61)):
        backend.pools[0].k[0] = slot_0
        before = backend.pools[0].k.clone()
        out = decoded(backend, replace(batch, padded_size=4), q=q, k=k, v=v, tokens=4)
        assert torch.equal(out[1:], torch.zeros(3, 2, 8)) and out[0].isfinite().all()
        before[stored] = k[0]
        assert torch.equal(backend.pools[0].k, before)
        backend.pools[0].k[0] = slot_0
        alone = decoded(backend, batch, q=q[:1], k=k[:1], v=v[:1])
        assert torch.equal(alone, out[:1])  # slot 0 and all


ROUTED: dict[str, tuple[AttentionLayer, torch.dtype]] = {
    "equal widths": (LAYER, torch.bfloat16),
    "wider keys": (replace(LAYER, head_dim=24, v_head_dim=16), torch.float16),
    "wider values": (replace(LAYER, v_head_dim=33), torch.float32),
    "values of one": (replace(LAYER, head_dim=33, v_head_dim=1), torch.bfloat16),
    "two key heads": (replace(LAYER, heads=4, kv_heads=2), torch.float32),
    "latent rows": (replace(LAYER, head_dim=24, v_head_dim=16, latent=True), torch.bfloat16),
    "float8": (replace(LAYER, k_scale=0.5, v_scale=0.01), torch.float8_e4m3fn),
    "float8 without scales": (LAYER, torch.float8_e5m2),
}


def routed(side: str, kind: str, name: str) -> tuple[Any, AttentionLayer, list[torch.Tensor]]:
    """A backend over a pool of ones, its layer, and q, k, v of one token, large enough to saturate where they are scaled."""
    layer, dtype = ROUTED[name]
    held = torch.bfloat16 if dtype.itemsize == 1 else dtype
    shapes = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim), (layer.kv_heads, layer.v_head_dim)
    q, k, v = (torch.randn(1, *shape).mul(9).to(held) for shape in shapes)
    v = k[..., : layer.v_head_dim] if layer.latent else v
    cache = torch.ones(64, layer.kv_heads, layer.head_dim).to(dtype)
    values = cache[..., : layer.v_head_dim] if layer.latent else torch.ones(64, layer.kv_heads, layer.v_head_dim).to(dtype)
    backend = getattr(getattr(SIDES[side], kind), f"{kind.title()}Backend")
    return backend([layer], {0: KVPool(cache, values)}, TABLE.clone()), layer, [q, k, v]


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("batch", [BATCH, EXTEND], ids=["decode", "extend"])
@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
def test_keys_of_all_head_sizes_and_dtypes_find_their_way(side: str, kind: str, batch: ForwardBatch, name: str) -> None:
    if kind == "slot" and ROUTED[name][1].itemsize == 1:
        with pytest.raises((TypeError, ValueError), match="k of the pool of layer 0 is float8"):
            routed(side, kind, name)
        return
    backend, layer, (q, k, v) = routed(side, kind, name)
    decoded(backend, batch, layer, q=q, k=k, v=v)
    pool = backend.pools[0]
    assert store_route(layer, pool) == (name.split()[0] if name.split()[0] in ("latent", "float8") else "rows")
    for cache, rows, scale in ((pool.k, k, layer.k_scale), (pool.v, v, layer.v_scale)):
        expected = torch.ones_like(cache)
        largest = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}.get(cache.dtype)
        if largest is not None:
            rows = (rows.float() / (1.0 if scale is None else scale)).clamp(-largest, largest)
        expected[34] = rows[0].to(cache.dtype)
        assert torch.equal(cache.float(), expected.float())


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("batch", [BATCH, EXTEND], ids=["decode", "extend"])
@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
def test_keys_of_another_dtype_are_refused_before_anything_is_stored(
    side: str, kind: str, batch: ForwardBatch, which: str
) -> None:
    backend, layer, (q, k, v) = routed(side, kind, "wider values")
    wrong = {"k": k, "v": v} | {which: (k if which == "k" else v).half()}
    with pytest.raises(TypeError, match=rf"\b{which}\b"):
        decoded(backend, batch, layer, q=q, **wrong)
    assert bool((backend.pools[0].k == 1).all()) and bool((backend.pools[0].v == 1).all())


LATENT = AttentionLayer(0, 2, 1, 12, 8, 0.5, latent=True)


@pytest.mark.parametrize("side", SIDES)
def test_queries_of_another_dtype_are_refused_before_anything_is_stored(side: str) -> None:
    k = torch.randn(1, 1, 12)
    for kind, layer, options in (("mla", LATENT, {"page_size": 16}), ("slot", replace(LAYER, is_cross=True), {})):
        backend = made(side, kind, layer, **options)
        before, width = backend.pools[0].k.clone(), layer.head_dim
        keys = k[..., :width]
        batch = replace(BATCH, encoder_lens=torch.tensor([4]), encoder_out_cache_loc=torch.tensor([34]))
        with pytest.raises(TypeError, match="q has dtype"):
            decoded(backend, batch, layer, q=torch.zeros(1, 2, width).half(), k=keys, v=keys[..., :8])
        assert torch.equal(backend.pools[0].k, before)
    backend, layer, (q, k, v) = routed(side, "paged", "float8")
    before = backend.pools[0].k.float()
    for wrong, error in ((q.to(torch.float8_e4m3fn), TypeError), (q.long(), TypeError), (q.mT.contiguous().mT, ValueError)):
        with pytest.raises(error, match=r"\bq\b"):
            decoded(backend, BATCH, layer, q=wrong, k=k, v=v)
    sunk = replace(layer, sinks=torch.zeros(2).half())
    with pytest.raises(TypeError, match="sinks of layer 0"):
        decoded(backend, BATCH, sunk, q=q, k=k, v=v)
    assert torch.equal(backend.pools[0].k.float(), before)
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        assert decoded(backend, BATCH, layer, q=q.to(dtype), k=k, v=v).dtype == dtype


@pytest.mark.parametrize("side", SIDES)
def test_latents_without_a_rope_part_are_served(side: str) -> None:
    layer = replace(LAYER, latent=True)
    q, k, _ = activations()
    for batch in (BATCH, EXTEND):
        outs = []
        for kind, options in (("slot", {}), ("paged", {"page_size": 16}), ("mla", {"page_size": 16})):
            if kind == "mla" and batch is EXTEND:
                continue
            backend = made(side, kind, layer, **options)
            backend.pools[0].k.copy_(torch.linspace(-1, 1, 512).view(64, 1, 8))
            outs.append(decoded(backend, batch, layer, q=q, k=k, v=k))
            assert torch.equal(backend.pools[0].k[34], k[0])
        seen = torch.cat([backend.pools[0].k[32:34, 0], k[0]])
        truth = torch.softmax(q[0] @ seen.T * layer.sm_scale, -1) @ seen
        assert all(torch.allclose(out[0], truth, atol=1e-5) for out in outs)


@pytest.mark.parametrize("side", SIDES)
def test_scales_do_not_depend_on_the_default_dtype(side: str) -> None:
    backend, layer, (q, k, v) = routed(side, "paged", "float8")
    expected = decoded(backend, BATCH, layer, q=q, k=k, v=v)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(decoded(backend, BATCH, layer, q=q, k=k, v=v), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("paged", "mla"))])
def test_a_batch_goes_on_after_another_was_refused(side: str, kind: str, size: int | None) -> None:
    """Its keys go to its own slots, although the refusal comes last, out of the metadata."""
    layer = LATENT if kind == "mla" else LAYER
    backend, batch = made(side, kind, layer, page_size=16, max_bs=2, max_context_len=16), replace(BATCH, padded_size=size)
    backend.req_to_token[0, 0] = 40  # a slot, but it starts no page
    q, k, v = (torch.randn(size or 1, heads, width) for heads, width in ((2, layer.head_dim), (1, layer.head_dim), (1, 8)))
    expected = backend.pools[0].k.clone()
    expected[34] = k[0]
    backend.prepare(batch)
    with pytest.raises(ValueError, match="page_size 16"):
        backend.prepare(replace(batch, req_pool_indices=torch.tensor([0]), out_cache_loc=torch.tensor([40])))
    backend.forward_decode(q, k, v, layer, batch)
    assert torch.equal(backend.pools[0].k, expected)


@pytest.mark.parametrize("side", SIDES)
def test_buffers_hold_one_size_of_draft(side: str) -> None:
    backend = made(side, "paged", max_bs=2, max_context_len=16, num_draft_tokens=3)
    verify = replace(BATCH, mode="target_verify", padded_size=2, num_draft_tokens=2)
    with pytest.raises(ValueError, match="num_draft_tokens 2"):
        backend.prepare(verify)
    draft = replace(BATCH, mode="draft_decode", padded_size=2)
    for step in range(2):  # three tokens of a draft are attended in two steps
        backend.prepare(replace(draft, speculative_step_id=step))
    last = backend.meta
    with pytest.raises(ValueError, match="speculative_step_id 2: the buffers hold 2 steps"):
        backend.prepare(replace(draft, speculative_step_id=2))
    with pytest.raises(ValueError, match="speculative_step_id must be at least 0, got -1"):
        backend.prepare(replace(draft, speculative_step_id=-1))
    assert backend.meta is last
    with pytest.raises(ValueError, match="speculative_step_id 0: the buffers hold 0 steps"):
        made(side, "paged", max_bs=2, max_context_len=16, num_draft_tokens=1).prepare(draft)
    backend.prepare(replace(draft, padded_size=None, speculative_step_id=7))  # built anew, any step has its metadata


@pytest.mark.parametrize(("side", "kind"), [*product(SIDES, ("slot", "paged"))])
def test_an_empty_batch_is_served(side: str, kind: str) -> None:
    backend, none = made(side, kind), torch.zeros(0, dtype=torch.int64)
    before = backend.pools[0].k.clone()
    assert decoded(backend, ForwardBatch("decode", none, none, none), tokens=0).shape == (0, 2, 8)
    assert decoded(backend, ForwardBatch("extend", none, none, none, none), tokens=0).shape == (0, 2, 8)
    assert torch.equal(before, backend.pools[0].k)


@pytest.mark.parametrize("side", SIDES)
def test_the_shorter_pool_of_states_says_which_slots_there_are(side: str) -> None:
    pools = {0: StatePool(torch.zeros(4, 3, 8), torch.zeros(2, 1, 4, 4))}
    backend = getattr(SIDES[side], "gdn").GdnBackend([], pools)  # noqa: B009
    backend.prepare(replace(BATCH, state_indices=torch.tensor([1])))
    with pytest.raises(IndexError, match="state_indices"):
        backend.prepare(replace(BATCH, state_indices=torch.tensor([2])))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int8])
def test_a_linear_weight_that_no_kernel_reads_comes_back_as_it_is(side: str, dtype: torch.dtype) -> None:
    for shape in ((8, 32), (6, 1, 4)):
        weight = torch.zeros(shape).to(dtype)
        assert getattr(SIDES[side], "linear").make_linear_dispatch(weight) is weight  # noqa: B009


@pytest.mark.parametrize("side", SIDES)
def test_a_linear_layer_refuses_what_does_not_fit(side: str) -> None:
    module = getattr(SIDES[side], "linear")  # noqa: B009
    with pytest.raises(ValueError, match="in_features"):
        module.Linear(0, 1)
    linear = module.Linear(4, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match="weight: none is loaded"):
        linear(torch.zeros(1, 4))
    for weight, bias, error, named in (
        (torch.zeros(4, 2), None, ValueError, "weight"),
        (torch.zeros(2, 4, dtype=torch.bfloat16), None, TypeError, "weight"),
        (torch.zeros(2, 4), torch.zeros(3), ValueError, "bias"),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32), TypeError, "bias"),
    ):
        with pytest.raises(error, match=named):
            linear.load(weight, bias)
    with pytest.raises(ValueError, match="bias"):
        module.Linear(4, 2, bias=False, dtype=torch.float32).load(torch.zeros(2, 4), torch.zeros(2))
    assert linear.packed is None and not linear.bias.any()


def test_the_judge_finds_nothing_wrong_with_the_reference() -> None:
    pair = pairs()["serving"]
    itself = Candidate("scalar", "properties.scenarios.serving:PAIR.reference")
    with InProcess(itself) as runner:
        tally = Search(Subject(pair, itself), runner).run(25, None, 4, None)
    assert tally.passed, tally.failures
