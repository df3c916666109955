"""Recorded decodes: what a graph consists of, that it serves batches that change without being made anew, compiled too, and what
is refused. What they compute in a server's life is on trial as the pair `serving`."""

import gc
import linecache
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from optimized.backends.mla import MlaBackend
from optimized.backends.paged import PagedBackend
from optimized.backends.recorded import RecordedDecode
from optimized.backends.slot import SlotBackend
from optimized.mla_decode import mla_decode_workspace_size
from serving import AttentionLayer, ForwardBatch, KVPool

SIZE, SLOTS = 3, 64
LAYERS = {0: AttentionLayer(0, 2, 1, 8, 8, 0.5), 1: AttentionLayer(1, 4, 2, 16, 8, 0.3, sliding_window=5, logit_cap=4.0)}
# Requests by their row of the table, how many tokens each has, and the slots of the newest ones.
BATCHES = [((0, 1, 2), (3, 16, 1)), ((2,), (2,)), ((1, 0), (9, 4)), ((), ()), ((0, 2, 1), (16, 16, 16)), ((1,), (1,))]


def table() -> Tensor:
    return torch.arange(4).mul(16)[torch.tensor([2, 0, 3])][:, None].add(torch.arange(16)).to(torch.int32)


def batch_of(rows: tuple[int, ...], lengths: tuple[int, ...], **more: Any) -> ForwardBatch:
    pool, lens = torch.tensor(rows, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)
    return ForwardBatch("decode", pool, lens, table()[pool, lens - 1].long(), **more)


def made(kind: str, seed: int = 0, **more: int) -> Any:
    rng = torch.Generator().manual_seed(seed)
    pools = {}
    for n, layer in LAYERS.items():
        widths = layer.head_dim, layer.v_head_dim
        pools[n] = KVPool(*(torch.randn(SLOTS, layer.kv_heads, width, generator=rng) for width in widths))
    if kind == "slot":
        return SlotBackend([*LAYERS.values()], pools, table(), max_bs=SIZE)
    return PagedBackend([*LAYERS.values()], pools, table(), page_size=4, max_bs=SIZE, max_context_len=16, **more)


def activations(seed: int, rows: int = SIZE) -> dict[int, tuple[Tensor, ...]]:
    rng = torch.Generator().manual_seed(seed)
    return {
        n: tuple(torch.randn(rows, heads, width, generator=rng) for heads, width in (
            (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim), (layer.kv_heads, layer.v_head_dim)
        ))
        for n, layer in LAYERS.items()
    }  # fmt: skip


def replayed_like_eager(kind: str, compiler: Callable[..., Any] | None) -> RecordedDecode:
    """Serve all batches by one recorded step and, in pools of their own, each as it is; outputs and pools must be the same."""
    backend, eager = made(kind), made(kind)
    recorded = RecordedDecode(dict.fromkeys(LAYERS, backend), LAYERS, compiler)
    for number, (rows, lengths) in enumerate(BATCHES):
        given, live = activations(number), len(rows)
        outs = recorded.decode(given, batch_of(rows, lengths, padded_size=SIZE))
        batch = batch_of(rows, lengths)
        eager.prepare(batch)
        for n, layer in LAYERS.items():
            alone = eager.forward_decode(*(value[:live] for value in given[n]), layer, batch)
            assert torch.equal(outs[n][:live], alone) and not outs[n][live:].any()
            assert all(torch.equal(getattr(backend.pools[n], name), getattr(eager.pools[n], name)) for name in "kv")
    return recorded


def drafted(between: Callable[[PagedBackend, ForwardBatch], None], first: int = 0) -> None:
    """Steps of a draft over static buffers, `between` each two of them; outputs must be those of a batch that has none."""
    replayed, eager = (made("paged", num_draft_tokens=4) for _ in range(2))
    recorded = RecordedDecode(dict.fromkeys(LAYERS, made("paged", num_draft_tokens=4)), LAYERS)
    for step in range(first, 3):
        outs: list[dict[int, Tensor]] = []
        given, rows = activations(step), torch.tensor([1, 0])
        batch = ForwardBatch(
            "draft_decode", rows, torch.tensor([9, 4]), table()[rows, torch.tensor([9, 4]) + step].long(),
            num_draft_tokens=4, speculative_step_id=step,
        )  # fmt: skip
        padded = replace(batch, padded_size=SIZE)
        for backend, one in ((replayed, padded), (eager, batch)):
            if step > first and one is padded:
                between(replayed, padded)
            backend.prepare(one)
            cut = slice(None) if one is padded else slice(2)
            outs.append({n: backend.forward_decode(*(x[cut] for x in given[n]), LAYERS[n], one)[:2] for n in LAYERS})
        if step > first:
            between(recorded.backends[0], padded)
        outs.append({n: out[:2] for n, out in recorded.decode(given, padded).items()})
        assert all(torch.equal(outs[0][n], outs[1][n]) and torch.equal(outs[2][n], outs[1][n]) for n in LAYERS)


def test_each_step_of_a_draft_has_a_graph_of_its_own() -> None:
    drafted(lambda backend, batch: None)


def test_buffers_may_be_captured_between_two_steps_of_a_draft() -> None:
    drafted(lambda backend, batch: backend.capture("draft_decode", batch.rows))


def test_drafts_of_two_sizes_take_turns() -> None:
    one = torch.tensor([2])
    other = ForwardBatch("draft_decode", one, one * 3, table()[one, one * 3].long(), num_draft_tokens=4, padded_size=SIZE - 1)
    drafted(lambda backend, batch: backend.prepare(other))


def test_a_draft_may_begin_with_any_step() -> None:
    drafted(lambda backend, batch: None, first=1)


def test_a_draft_goes_on_after_a_replay_was_refused() -> None:
    """The refusal comes before a backend is prepared: the next step would attend what the refused draft has."""
    replayed, eager = (made("paged", num_draft_tokens=4) for _ in range(2))
    recorded = RecordedDecode(dict.fromkeys(LAYERS, replayed), LAYERS)
    rows, lengths = torch.tensor([1, 0]), torch.tensor([9, 4])
    sizes = {"num_draft_tokens": 4, "padded_size": SIZE}
    for step in range(2):
        loc, given = table()[rows, lengths + step].long(), activations(step)
        batch = ForwardBatch("draft_decode", rows, lengths, loc, speculative_step_id=step, **sizes)
        outs = recorded.decode(given, batch)
        alone = replace(batch, padded_size=None)
        eager.prepare(alone)
        expected = {n: eager.forward_decode(*(value[:2] for value in given[n]), LAYERS[n], alone) for n in LAYERS}
        assert all(torch.equal(outs[n][:2], expected[n]) for n in LAYERS)
        wrong = {n: tuple(value.double() for value in values) for n, values in given.items()}
        with pytest.raises(ValueError, match="activations: "):
            recorded.decode(wrong, replace(batch, seq_lens=lengths.flip(0) // 4, speculative_step_id=0))


@pytest.mark.parametrize("kind", ["slot", "paged"])
def test_one_graph_serves_batches_that_change(kind: str) -> None:
    recorded = replayed_like_eager(kind, None)
    (graph,) = recorded.graphs.values()
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]  # type: ignore[attr-defined]
    assert {str(target).split(".")[0] for target in called} <= {"kernelpair", "aten"}
    kernel = {"slot": "kernelpair.decode_attention", "paged": "kernelpair.paged_attention"}[kind]
    assert sum(str(target).startswith(kernel) for target in called) == len(LAYERS)


@pytest.mark.parametrize("kind", ["slot", "paged"])
def test_a_recorded_step_is_compiled_once(kind: str) -> None:
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")
    replayed_like_eager(kind, lambda graph: torch.compile(graph, fullgraph=True, backend=counted))
    assert counted.frame_count == 1


def test_threads_may_record_at_once() -> None:
    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            done = [*threads.map(lambda kind: replayed_like_eager(kind, None), ("slot", "paged") * 4)]
    finally:
        sys.setswitchinterval(switched)
    assert all(len(recorded.graphs) == 1 for recorded in done)


def test_a_recorded_step_has_scratch_for_the_longest_context() -> None:
    layer, context = AttentionLayer(0, 4, 1, 40, 32, 0.2, latent=True), 4096
    assert mla_decode_workspace_size(context, 1, layer.heads, 64, 32) > mla_decode_workspace_size(1, 1, layer.heads, 64, 32)
    k = torch.randn(context, 1, 40)
    backend = MlaBackend([layer], {0: KVPool(k, k[..., :32])}, torch.arange(context)[None], page_size=64, max_bs=1,
                         max_context_len=context)  # fmt: skip
    recorded, row = RecordedDecode({0: backend}, {0: layer}), torch.tensor([0])
    for length in (1, context, 65):
        given = torch.randn(1, 4, 40), torch.randn(1, 1, 40)
        activations = given[0], given[1], given[1][..., :32]
        batch = ForwardBatch("decode", row, torch.tensor([length]), torch.tensor([length - 1]))
        out = recorded.decode({0: activations}, replace(batch, padded_size=1))[0]
        backend.prepare(batch)
        assert torch.equal(out, backend.forward_decode(*activations, layer, batch))


def test_each_size_has_a_graph_of_its_own() -> None:
    backend = made("paged")
    recorded = RecordedDecode(dict.fromkeys(LAYERS, backend), LAYERS)
    before = [pool.k.clone() for pool in backend.pools.values()]
    for size in (1, 3, 1, 2):
        recorded.decode(activations(size, size), batch_of((), (), padded_size=size))
    assert len(recorded.graphs) == 3
    assert all(torch.equal(pool.k, held) for pool, held in zip(backend.pools.values(), before))  # nobody lives: nothing is stored


@pytest.mark.parametrize("kind", ["slot", "paged"])
def test_each_kind_of_batch_has_a_graph_of_its_own(kind: str) -> None:
    """Steps of a draft, and batches with and without an encoder, have one mode and size but read other tensors."""
    layer, layers = LAYERS[0], {0: LAYERS[0]}
    size, row = {"padded_size": SIZE}, torch.tensor([1])
    drafts = [ForwardBatch("draft_decode", row, torch.tensor([3]), torch.tensor([3 + step]), speculative_step_id=step, **size)
              for step in range(3)]  # fmt: skip
    decode = ForwardBatch("decode", row, torch.tensor([5]), torch.tensor([8]), **size)
    batches = [*drafts, decode, replace(decode, encoder_lens=torch.tensor([4])), decode]

    def backend() -> Any:
        pools = {0: KVPool(made("slot").pools[0].k.clone(), made("slot").pools[0].v.clone())}
        if kind == "slot":
            return SlotBackend([layer], pools, table(), max_bs=SIZE)
        more = {"page_size": 4, "max_context_len": 16, "max_encoder_len": 8, "num_draft_tokens": 4}
        return PagedBackend([layer], pools, table(), max_bs=SIZE, **more)

    eager, replayed = backend(), backend()
    recorded = RecordedDecode({0: replayed}, layers)
    for number, batch in enumerate(batches):
        given = activations(number)[0]
        out = recorded.decode({0: given}, batch)[0]
        alone = replace(batch, padded_size=None)
        eager.prepare(alone)
        assert torch.equal(out[:1], eager.forward_decode(*(value[:1] for value in given), layer, alone))
        assert torch.equal(replayed.pools[0].k, eager.pools[0].k)
    assert len(recorded.graphs) == 5


def test_the_source_of_a_graph_goes_with_it() -> None:
    recorded = replayed_like_eager("slot", None)
    (name,) = (graph.forward.__code__.co_filename for graph in recorded.graphs.values())  # type: ignore[attr-defined]
    assert any(line.startswith("def forward") for line in linecache.getlines(name))  # tracebacks show it
    del recorded
    gc.collect()
    assert not linecache.getlines(name)


def test_what_was_not_recorded_is_refused() -> None:
    backend = made("slot")
    recorded = RecordedDecode(dict.fromkeys(LAYERS, backend), LAYERS)
    batch = batch_of((0,), (3,), padded_size=SIZE)
    with pytest.raises(ValueError, match="padded_size None"):
        recorded.decode(activations(0), replace(batch, padded_size=None))
    with pytest.raises(ValueError, match="mode 'extend'"):
        recorded.decode(activations(0), replace(batch, mode="extend", extend_seq_lens=torch.tensor([1])))
    recorded.decode(activations(0), batch)
    held = backend.pools[0].k.clone()
    wrong = activations(1) | {1: tuple(value.bfloat16() for value in activations(1)[1])}
    with pytest.raises(ValueError, match=r"torch\.bfloat16 for what was recorded as .* torch\.float32"):
        recorded.decode(wrong, batch)
    for loc in (None, batch_of((0, 1), (3, 3)).out_cache_loc, torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(ValueError, match="out_cache_loc must"):
            recorded.decode(activations(1), replace(batch, out_cache_loc=loc))
    with pytest.raises(IndexError, match="req_pool_indices"):
        recorded.decode(activations(1), replace(batch, req_pool_indices=torch.tensor([7])))
    assert torch.equal(backend.pools[0].k, held)
