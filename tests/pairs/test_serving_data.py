"""What both sides' backends share: a server's configuration, the registry, layers, and the slots of requests."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from serving import (
    BACKENDS,
    AttentionLayer,
    KVPool,
    ModelConfig,
    PoolExhausted,
    RequestPool,
    ServerConfig,
    backend_named,
    backends_for,
    check_config,
    check_layers,
)
from serving.config import CONV_STATE_LAYOUT

DENSE, MLA = ModelConfig(), ModelConfig(use_mla=True)


# --- check_config ---


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (ServerConfig("nobody"), "nobody.*slot, paged, mla, gdn"),
        (ServerConfig("slot", decode_backend="nobody"), "nobody"),
        (ServerConfig("slot", speculative=True, topk=2), "topk 2"),
        (ServerConfig("slot", page_size=0), "page_size"),
        (ServerConfig("slot", conv_state_layout="DSX"), "conv_state_layout"),
        (ServerConfig("slot", kv_cache_dtype="fp8_e4m3"), "kv_cache_dtype"),
        (ServerConfig("paged", kv_cache_dtype="int4"), "kv_cache_dtype"),
        (ServerConfig("mla", page_size=64, model=MLA), "prefill_backend 'mla'"),
        (ServerConfig("mla"), "prefill_backend 'mla' cannot prefill"),
        (ServerConfig("slot", decode_backend="mla", speculative=True), "speculative"),
        (ServerConfig("paged", prefill_backend="gdn", page_size=64, model=MLA), "prefill_backend 'gdn'"),
        (ServerConfig("slot", decode_backend="gdn", page_size=64, model=MLA), "decode_backend 'gdn'"),
        (ServerConfig("slot", decode_backend="mla", page_size=64, model=DENSE), "decode_backend 'mla'"),
        (ServerConfig("slot", decode_backend="mla", page_size=64, speculative=True, model=MLA), "speculative"),
        (ServerConfig("slot", model=ModelConfig(is_encoder_decoder=True, sliding_window=8)), "sliding_window 8"),
        (ServerConfig("gdn", model=ModelConfig(is_encoder_decoder=True)), "is_encoder_decoder"),
        (ServerConfig("slot", model=ModelConfig(local_chunk=128)), "local_chunk"),
        (ServerConfig("paged", page_size=128, model=ModelConfig(local_chunk=64)), "local_chunk 64"),
    ],
)
def test_a_server_that_cannot_work_is_refused(config: ServerConfig, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_config(config)


@pytest.mark.parametrize(
    ("config", "pages"),
    [
        (ServerConfig("paged", page_size=64, model=DENSE), 64),
        (ServerConfig("paged", page_size=128, model=DENSE), 128),
        (ServerConfig("slot", decode_backend="mla", page_size=16, model=MLA), 16),
        (ServerConfig("slot", decode_backend="mla", page_size=32, model=MLA), 32),
        (ServerConfig("slot", page_size=1, model=DENSE), 1),
        (ServerConfig("paged", decode_backend="slot", page_size=16, model=DENSE), 16),  # the decode backend decides
        (ServerConfig("paged", page_size=7), 7),  # no model, no decision
    ],
)
def test_a_page_size_that_fits_is_kept(config: ServerConfig, pages: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_config(config).page_size == pages


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig("paged", page_size=16, model=DENSE),
        ServerConfig("slot", decode_backend="paged", page_size=1, model=DENSE),  # the raw flag says slot
        ServerConfig("slot", decode_backend="mla", page_size=1, model=MLA),
    ],
)
def test_other_page_sizes_fall_back_with_a_warning(config: ServerConfig) -> None:
    with pytest.warns(UserWarning, match=f"page_size {config.page_size} .*using 128"):
        assert check_config(config).page_size == 128


def test_the_conv_state_layout_is_SD_unless_it_is_set() -> None:
    assert check_config(ServerConfig()).conv_state_layout == "SD"
    assert check_config(ServerConfig(conv_state_layout="DS")).conv_state_layout == "DS"


def test_users_set_the_conv_state_layout_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, flag, layout in (("DS", None, "DS"), ("SD", None, "SD"), ("", None, "SD"), ("DS", "SD", "SD"), ("SD", "DS", "DS")):
        monkeypatch.setenv(CONV_STATE_LAYOUT, value)
        assert check_config(ServerConfig(conv_state_layout=flag)).conv_state_layout == layout
    for wrong in ("ds", "SDD", " DS"):
        monkeypatch.setenv(CONV_STATE_LAYOUT, wrong)
        with pytest.raises(ValueError, match=f"{CONV_STATE_LAYOUT} must be SD or DS, got '{wrong}'"):
            check_config(ServerConfig(conv_state_layout="SD"))
    monkeypatch.delenv(CONV_STATE_LAYOUT)
    assert check_config(ServerConfig()).conv_state_layout == "SD"


KINDS = {"dense": {}, "recurrent": {"recurrent": True}, "encoder": {"is_encoder_decoder": True},
         "both": {"recurrent": True, "is_encoder_decoder": True}}  # fmt: skip


@pytest.mark.parametrize("caching", [None, False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_models_neither_share_prefixes_nor_cut_prefills(kind: str, chunked: bool, caching: bool | None) -> None:
    config = ServerConfig("slot", chunked_prefill=chunked, prefix_caching=caching, model=ModelConfig(**KINDS[kind]))
    off = {"dense": "", "recurrent": "chunked_prefill prefix_caching", "encoder": "prefix_caching",
           "both": "chunked_prefill prefix_caching"}[kind].split()  # fmt: skip
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        plan = check_config(config)
    assert plan.chunked_prefill == (chunked and "chunked_prefill" not in off)
    assert plan.prefix_caching == (caching is not False and "prefix_caching" not in off)
    asked = {"chunked_prefill": chunked, "prefix_caching": bool(caching)}
    assert [str(one.message).split()[0] for one in warned] == [flag for flag in off if asked[flag]]


def test_without_a_model_chunks_and_prefixes_are_as_asked() -> None:
    for chunked, caching in ((True, None), (False, True), (True, False)):
        plan = check_config(ServerConfig("slot", chunked_prefill=chunked, prefix_caching=caching))
        assert (plan.chunked_prefill, plan.prefix_caching) == (chunked, caching)


def test_each_phase_has_its_own_backend() -> None:
    plan = check_config(ServerConfig("slot", decode_backend="mla", page_size=64, model=MLA))
    assert (plan.prefill_backend, plan.decode_backend) == ("slot", "mla")
    plan = check_config(ServerConfig("nobody", prefill_backend="slot", decode_backend="slot", model=DENSE))
    assert plan.prefill_backend == "slot"


# --- registry ---


def test_the_registry_says_who_can_do_what() -> None:
    assert backends_for("local") == ["paged"]
    assert backends_for("mla", "decode") == ["slot", "paged", "mla"]
    assert backends_for("mla", "speculative") == backends_for("mla_prefill") == ["slot", "paged"]
    assert backends_for() == list(BACKENDS)
    assert not backend_named("mla").prefill
    with pytest.raises(ValueError, match="unknown backend 'x'; known are slot, paged, mla, gdn"):
        backend_named("x")
    with pytest.raises(ValueError, match="unknown capability 'flying'"):
        backends_for("flying")


# --- layers ---

LAYER = AttentionLayer(0, 2, 1, 8, 8, 1.0)


def pool(dtype: torch.dtype = torch.float32, width: int = 8, slots: int = 32) -> KVPool:
    return KVPool(torch.zeros(slots, 1, width).to(dtype), torch.zeros(slots, 1, width).to(dtype))


WRONG_LAYERS: list[tuple[str, dict[str, Any], str]] = [
    ("slot", {"heads": 0}, "heads"),
    ("slot", {"heads": 3, "kv_heads": 2}, "heads"),
    ("slot", {"sliding_window": -2}, "sliding_window"),
    ("slot", {"sm_scale": float("nan")}, "sm_scale"),
    ("slot", {"sm_scale": 1e-60}, "sm_scale of layer 0 must be finite and > 0 in float32, got 1e-60"),
    ("slot", {"sm_scale": 1e300}, "sm_scale"),
    ("slot", {"logit_cap": -1.0}, "logit_cap of layer 0"),
    ("slot", {"logit_cap": float("nan")}, "logit_cap of layer 0"),
    ("slot", {"sm_scale": 1e10, "logit_cap": 1e-40}, "logit_cap of layer 0"),
    ("slot", {"sinks": torch.zeros(3)}, r"sinks of layer 0 must have shape \[2\], got \[3\]"),
    ("slot", {"sinks": torch.tensor([0.0, torch.nan])}, "sinks of layer 0 must be finite or -inf, got nan of head 1"),
    ("paged", {"k_scale": 1e-60}, "k_scale"),
    ("paged", {"v_scale": 1e300}, "v_scale"),
    ("slot", {"k_scale": 0.5}, "k_scale"),
    ("paged", {"k_scale": -1.0}, "k_scale"),
    ("slot", {"local": True}, "local"),
    ("paged", {"local": True, "sliding_window": 3}, "local"),
    ("paged", {"latent": True}, "must be the first columns"),
    ("slot", {"latent": True}, "must be the first columns"),
    ("mla", {}, "latent"),
    ("mla", {"latent": True, "logit_cap": 2.0}, "logit_cap"),
    ("slot", {"head_dim": 9}, "k of the pool"),
    ("slot", {"layer_id": 7}, "layer 7"),
]


@pytest.mark.parametrize(("backend", "changed", "named"), WRONG_LAYERS)
def test_a_layer_that_cannot_be_served_is_refused(backend: str, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_layers(backend, [replace(LAYER, **changed)], {0: pool()})


def test_a_latent_cache_is_never_float8() -> None:
    k = torch.zeros(32, 1, 12).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="k of the pool of layer 0 is float8"):
        check_layers("paged", [replace(LAYER, head_dim=12, latent=True)], {0: KVPool(k, k[..., :8])})


def test_an_encoder_and_a_window_do_not_go_together() -> None:
    layers = [replace(LAYER, is_cross=True), replace(LAYER, layer_id=1, sliding_window=4)]
    with pytest.raises(ValueError, match="sliding_window"):
        check_layers("slot", layers, {0: pool(), 1: pool()})


def test_float8_belongs_into_pages() -> None:
    check_layers("paged", [replace(LAYER, k_scale=0.5)], {0: pool(torch.float8_e4m3fn)}, 16)
    with pytest.raises(TypeError, match="float8"):
        check_layers("slot", [LAYER], {0: pool(torch.float8_e4m3fn)})
    with pytest.raises(ValueError, match="page_size 5"):
        check_layers("paged", [LAYER], {0: pool()}, 5)
    with pytest.raises(ValueError, match="page_size must be at least 1, got 0"):
        check_layers("paged", [LAYER], {0: pool()}, 0)


def test_numbers_at_the_ends_of_float32_are_served() -> None:
    for number in (2.0**-149, 3.4e38):
        check_layers("slot", [replace(LAYER, sm_scale=number), replace(LAYER, logit_cap=number, sm_scale=1e-20)], {0: pool()})
    check_layers("slot", [replace(LAYER, sinks=torch.tensor([0.0, -torch.inf]))], {0: pool()})


# --- requests ---


def requests(pages: int = 8, page_size: int = 2, rows: int = 3, columns: int = 10) -> RequestPool:
    return RequestPool(torch.full((rows, columns), -1, dtype=torch.int32), pages, page_size)


def owned(pool: RequestPool, row: int, tokens: int) -> set[int]:
    return set(pool.locations(row, 0, tokens).tolist())


def test_requests_own_different_slots() -> None:
    pool = requests()
    a, b = pool.arrive(), pool.arrive(encoder_len=3)
    pool.grow([a, b], [3, 4])
    slots = [owned(pool, a, 3), owned(pool, b, 4), set(pool.encoder_locations(b).tolist())]
    assert len(set.union(*slots)) == 10
    assert pool.req_to_token[b, 4:8].tolist() == pool.locations(b, 0, 4).tolist()  # behind two whole pages of encoder tokens
    assert pool.free_pages == 8 - 2 - 2 - 2


def test_freed_slots_are_used_again() -> None:
    pool = requests()
    row = pool.arrive()
    pool.grow([row], [5])
    assert len(pool.shrink(row, 3)) == 2  # the third page's
    assert len(pool.free(row)) == 4
    assert pool.free_pages == 8
    assert pool.arrive() == row


def test_a_request_that_is_named_twice_grows_once() -> None:
    pool = requests()
    row = pool.arrive()
    pool.grow([row, row], [5, 3])
    assert pool.free_pages == 8 - 3
    assert len(pool.free(row)) == 6


def test_a_shared_page_is_free_when_its_last_owner_leaves() -> None:
    pool = requests()
    a = pool.arrive()
    pool.grow([a], [5])
    b = pool.arrive(shared_with=a, shared_tokens=4)
    assert torch.equal(pool.locations(a, 0, 4), pool.locations(b, 0, 4))
    pool.grow([b], [5])
    assert len(owned(pool, a, 5) & owned(pool, b, 5)) == 4
    assert len(pool.free(a)) == 2
    assert len(pool.free(b)) == 6
    assert pool.free_pages == 8


def _state(pool: RequestPool) -> Any:
    return pool.req_to_token.clone(), pool.free_pages, repr(pool._held), list(pool._owners), list(pool._rows)


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (lambda pool: pool.grow([0, 1], [10, 8]), PoolExhausted, "pages wanted"),
        (lambda pool: pool.grow([0], [11]), ValueError, "length 11"),
        (lambda pool: pool.grow([5], [1]), ValueError, "row 5"),
        (lambda pool: pool.grow([0, 1], [5, -1]), ValueError, "length -1"),
        (lambda pool: pool.shrink(0, -1), ValueError, "length -1"),
        (lambda pool: pool.arrive(encoder_len=-1), ValueError, "encoder_len -1"),
        (lambda pool: pool.arrive(shared_with=0, shared_tokens=-2), ValueError, "shared_tokens -2"),
        (lambda pool: pool.arrive(shared_tokens=-2), ValueError, "shared_tokens -2"),
        (lambda pool: pool.arrive(shared_with=5, shared_tokens=2), ValueError, "row 5"),
        (lambda pool: pool.arrive(encoder_len=2, shared_with=0, shared_tokens=2), ValueError, "shared_tokens"),
        (lambda pool: pool.locations(0, 2, -1), ValueError, "start 2: -1 tokens"),
        (lambda pool: pool.free(5), ValueError, "row 5"),
        (lambda pool: pool.shrink(5, 0), ValueError, "row 5"),
        (lambda pool: pool.arrive(encoder_len=11), ValueError, "encoder_len 11"),
        (lambda pool: pool.arrive(encoder_len=10), PoolExhausted, "5 pages"),
        (lambda pool: pool.arrive(shared_with=0, shared_tokens=3), ValueError, "shared_tokens 3"),
        (lambda pool: pool.arrive(shared_with=0, shared_tokens=6), ValueError, "shared_tokens 6"),
        (lambda pool: pool.arrive(shared_tokens=2), ValueError, "shared_tokens 2"),
        (lambda pool: pool.arrive(shared_with=5), ValueError, "row 5"),
        (lambda pool: pool.locations(0, 3, 2), ValueError, "start 3"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(wrong: Any, error: type[Exception], named: str) -> None:
    pool = requests()
    assert [pool.arrive(), pool.arrive()] == [0, 1]
    pool.grow([0, 1], [4, 4])
    before = _state(pool)
    with pytest.raises(error, match=named):
        wrong(pool)
    after = _state(pool)
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_there_are_no_more_requests_than_rows() -> None:
    pool = requests(rows=1)
    pool.arrive()
    with pytest.raises(PoolExhausted, match="row"):
        pool.arrive()


def test_a_request_is_freed_once() -> None:
    pool = requests()
    row = pool.arrive()
    pool.free(row)
    with pytest.raises(ValueError, match=f"row {row} holds no request"):
        pool.free(row)
