"""The attention references against an oracle that shares nothing with them: rows by the definition, and torch's own attention."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

import properties
from kernelpair.call.place import settle
from kernelpair.trial.truth import truth_of
from reference.attention_metadata import build_attention_metadata
from reference.paged_attention import paged_attention
from tests.outside.attention_oracle import (
    QueryRow,
    attend,
    by_sdpa,
    decode_rows,
    extend_rows,
    live_requests,
    mla_rows,
    paged_rows,
)

CASES = 300  # a pair and seed
SEEDS = (11, 12, 13, 14)  # one after the other until all that is needed is met, some of which is rare
ROWS: dict[str, Callable[[Mapping[str, Any]], Iterator[QueryRow]]] = {
    "decode_attention": decode_rows,
    "extend_attention": extend_rows,
    "mla_decode": mla_rows,
    "paged_attention": paged_rows,
}
NEEDED = {  # what some row of each pair has to have met
    "decode_attention": {"sinks", "sinks without keys", "cap", "window", "encoder", "cross", "no keys", "shared kv heads",
                         "plain"},
    "extend_attention": {"sinks", "sinks without keys", "cap", "window", "encoder", "cross", "no keys", "shared kv heads",
                         "plain"},
    "mla_decode": {"no keys", "shared kv heads", "plain"},
    "paged_attention": {"sinks", "sinks without keys", "cap", "left", "right", "k_descale", "v_descale", "qv", "no keys",
                        "slopes", "shared kv heads", "plain"},
}  # fmt: skip
DRAWN = settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def met(x: Mapping[str, Any], row: QueryRow) -> set[str]:
    """What a row is an example of."""
    sinks = x.get("sinks") is not None
    return {
        name
        for name, holds in {
            "sinks": sinks and len(row.keys),
            "sinks without keys": sinks and not len(row.keys),
            "cap": (x.get("logit_cap") or x.get("softcap") or 0) > 0 and len(row.keys),
            "window": x.get("sliding_window", 0) > 0 and not x.get("is_cross_attn"),
            "encoder": x.get("encoder_lens") is not None and not x["is_cross_attn"] and bool(x["encoder_lens"].any()),
            "cross": x.get("is_cross_attn", False) and len(row.keys),
            "left": x.get("window_left", -1) >= 0 and len(row.keys),
            "right": x.get("window_right", -1) >= 0 and not x["causal"] and len(row.keys),
            "k_descale": x.get("k_descale") is not None and len(row.keys),
            "v_descale": x.get("v_descale") is not None and len(row.keys),
            "slopes": x.get("alibi_slopes") is not None and len(row.keys),
            "qv": x.get("qv") is not None and len(row.keys),
            "no keys": not len(row.keys),
            "shared kv heads": row.q.shape[0] > row.keys.shape[1] and len(row.keys),
            "plain": not sinks and not (x.get("logit_cap") or x.get("softcap")) and len(row.keys),
        }.items()
        if holds
    }


def scale_of(x: Mapping[str, Any]) -> float:
    if x.get("sm_scale") is not None:
        return float(x["sm_scale"])
    if x["softmax_scale"] is not None:
        return float(x["softmax_scale"])
    return float((x["q"].shape[-1] + (0 if x["qv"] is None else x["qv"].shape[-1])) ** -0.5)


def expect(out: Tensor, row: QueryRow, x: Mapping[str, Any], scale: float, what: object) -> None:
    """The row of `out` is what the oracle says, and where there is neither cap nor sink also what torch says."""
    cap, sinks = x.get("logit_cap") or x.get("softcap") or 0.0, x.get("sinks")
    expected, tolerance = attend(row, scale, cap, sinks)
    error = (out - expected).abs()
    assert bool((error <= tolerance).all()), f"row {row.at} is off by {float(error.max()):.3g}: {what}"
    if cap == 0 and sinks is None and len(row.keys):
        error = (out - by_sdpa(row, scale)).abs()
        assert bool((error <= tolerance).all()), f"row {row.at} is not what torch says, by {float(error.max()):.3g}: {what}"


@pytest.mark.parametrize("name", ROWS)
def test_reference_is_what_the_definition_says(name: str) -> None:
    pair = properties.pairs()[name]
    found: set[str] = set()

    @DRAWN
    @given(pair.cases.strategy)
    def attempt(case: Any) -> None:
        truth, x = truth_of(pair, settle(pair, case, pair.cases.inputs(case)))
        if name == "decode_attention":  # keys are written before they are read; the caches themselves are judged bit for bit
            written = {side: x[side].clone() for side in ("k_cache", "v_cache")}
            live = live_requests(x)
            if x["key"] is not None:
                slots = x["loc"][live].long()
                written["k_cache"][slots] = x["key"][live]
                of_key = x["value"] is None or case.shared  # a buffer of both holds keys alone, whatever is given
                fresh = x["key"][..., : x["v_cache"].shape[2]] if of_key else x["value"]
                written["v_cache"][slots] = fresh[live]
            x = {**x, **written}
            assert not truth["out"][~live].any()
        covered = set()
        for row in ROWS[name](x):
            expect(truth["out"][row.at], row, x, scale_of(x), case)
            found.update(met(x, row))
            covered.add(row.at)
        if name == "paged_attention":  # rows before the first request and behind the last one
            begin, end = int(x["cu_seqlens_q"][0]), int(x["cu_seqlens_q"][-1])
            assert not truth["out"][:begin].any() and not truth["out"][end:].any()

    for number in SEEDS:
        seed(number)(attempt)()
        if NEEDED[name] <= found:
            break
    assert NEEDED[name] <= found, f"never met: {sorted(NEEDED[name] - found)}"


# --- through the metadata: drafts, chunks, encoders ---


def serving_batch(draw: st.DataObject) -> tuple[str, dict[str, Any], int]:
    """Mode, arguments of build_attention_metadata, and the chunk (0: none) of a batch, each request in pages of its own."""
    mode = draw.draw(st.sampled_from(["decode", "draft_decode", "target_verify", "extend", "mixed", "draft_extend"]))
    page, size = draw.draw(st.sampled_from([1, 2, 4])), draw.draw(st.integers(1, 3))
    encoders = draw.draw(st.none() | st.lists(st.integers(0, 9), min_size=size, max_size=size))
    lens = draw.draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    new = [draw.draw(st.integers(0, length)) for length in lens]
    drafts, step = draw.draw(st.integers(1, 4)), draw.draw(st.integers(0, 3))
    chunk = 0 if encoders is not None else draw.draw(st.sampled_from([0, 4, 8]))
    pages = 48 // page
    order = torch.randperm(size * pages, generator=torch.Generator().manual_seed(sum(lens) + page)).reshape(size, pages)
    table = (order[:, :, None] * page + torch.arange(page)).flatten(1)
    arguments: dict[str, Any] = {
        "seq_lens": torch.tensor(lens), "req_pool_indices": torch.arange(size).flip(0), "req_to_token": table, "page_size": page,
        "num_draft_tokens": drafts, "speculative_step_id": step,
    }  # fmt: skip
    if "extend" in mode or mode == "mixed":
        arguments["extend_seq_lens"] = torch.tensor(new)
    if encoders is not None:
        arguments["encoder_lens"] = torch.tensor(encoders)
    if chunk:
        arguments["attn_chunk_size"] = chunk
    return mode, arguments, chunk


def tokens_of(mode: str, given: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Of each request: all tokens with those of this step, and the new ones."""
    lens, size = given["seq_lens"].tolist(), len(given["seq_lens"])
    if mode == "decode":
        return [(length, 1) for length in lens]
    if mode == "draft_decode":
        return [(length + given["speculative_step_id"] + 1, 1) for length in lens]
    if mode == "target_verify":
        return [(length + given["num_draft_tokens"], given["num_draft_tokens"]) for length in lens]
    return [(lens[b], int(given["extend_seq_lens"][b])) for b in range(size)]


def rows_by_token(
    mode: str, x: Mapping[str, Any], chunk: int, q: Tensor, k: Tensor, v: Tensor, cross: bool
) -> Iterator[QueryRow]:
    """Every query row and what it sees, by the slots of the request table: its chunk up to itself, or all of its encoder."""
    at, page = 0, x["page_size"]
    for b, (total, new) in enumerate(tokens_of(mode, x)):
        slots = x["req_to_token"][int(x["req_pool_indices"][b])].tolist()
        encoder = int(x["encoder_lens"][b]) if "encoder_lens" in x else 0
        base = -(-encoder // page) * page
        for position in range(total - new, total):
            begin = position // chunk * chunk if chunk else 0
            seen = slots[:encoder] if cross else slots[base + begin : base + position + 1] if position >= 0 else []
            yield QueryRow(at, q[at], k[seen], v[seen])
            at += 1


@DRAWN
@seed(12)
@given(st.data())
def test_attention_through_the_metadata(draw: st.DataObject) -> None:
    """Drafts, chunks and encoder lengths: metadata and attention together, against tokens and the request table alone."""
    mode, x, chunk = serving_batch(draw)
    meta = build_attention_metadata(mode, **x)
    new = sum(count for _, count in tokens_of(mode, x))
    numbers = torch.Generator().manual_seed(new)
    q = torch.randn(new, 4, 6, dtype=torch.float64, generator=numbers)
    k, v = (torch.randn(x["req_to_token"].numel(), 2, width, dtype=torch.float64, generator=numbers) for width in (6, 5))
    pages = [cache.unflatten(0, (-1, x["page_size"])) for cache in (k, v)]
    for cross in (False, True) if meta.encoder_lens is not None else (False,):
        keys: tuple[Any, ...] = (meta.page_table, meta.cache_seqlens, meta.cu_seqlens_q)
        if meta.local is not None:
            keys = meta.local.block_table, meta.local.seqlens_k, meta.local.cu_seqlens_q
        if cross:
            keys = meta.encoder_page_table, meta.encoder_lens, meta.cu_seqlens_q
        out = paged_attention(q, *pages, *keys, causal=not cross, softmax_scale=0.4)
        for row in rows_by_token(mode, x, chunk, q, k, v, cross):
            expect(out[row.at], row, {}, 0.4, (mode, x))
