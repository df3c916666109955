"""The decisions of a server's start: which backends, which page size, and what cannot be served at all."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from serving.registry import backend_named

MLA_PAGES = (16, 32, 64, 128)
PAGES = (64, 128)
FALLBACK_PAGE = 128
CONV_LAYOUTS = ("SD", "DS")
CONV_STATE_LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"
"""The variable by which users of engines choose the layout of convolution states."""


@dataclass(frozen=True)
class ModelConfig:
    """What a server must know of a model."""

    use_mla: bool = False
    is_encoder_decoder: bool = False
    recurrent: bool = False
    """It has gated-delta-net layers."""
    sliding_window: int = -1
    """Keys to the left; -1: none."""
    local_chunk: int | None = None
    """Tokens of a chunk of local attention."""


@dataclass(frozen=True)
class ServerConfig:
    """A server's flags. A phase's own flag, where it is given, overrides `attention_backend`."""

    attention_backend: str = "slot"
    prefill_backend: str | None = None
    decode_backend: str | None = None
    page_size: int = 1
    speculative: bool = False
    topk: int = 1
    kv_cache_dtype: str = "auto"
    chunked_prefill: bool = False
    prefix_caching: bool | None = None
    """Requests share the keys of a common beginning; None: where the model can."""
    conv_state_layout: str | None = None
    model: ModelConfig | None = None


@dataclass(frozen=True)
class ServerPlan:
    """What follows from the flags."""

    prefill_backend: str
    decode_backend: str
    page_size: int
    conv_state_layout: str
    chunked_prefill: bool
    prefix_caching: bool | None
    """None: not decided."""


def check_config(config: ServerConfig, environment: Mapping[str, str] = os.environ) -> ServerPlan:
    """Resolve a server's flags. ValueError names the flag, or the variable of the environment, that cannot be served.

    With a warning, a page size that a paged decode backend does not take falls back to 128, and prefix caching and chunked
    prefill are off where the model does not allow them. Without a model config nothing that depends on the model is decided.
    """
    prefill = config.prefill_backend or config.attention_backend
    decode = config.decode_backend or config.attention_backend
    can_prefill, can_decode = backend_named(prefill), backend_named(decode)
    if config.page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {config.page_size}")
    if config.speculative and config.topk != 1:
        raise ValueError(f"topk {config.topk}: only chains of drafts (topk 1) can be verified")
    if config.kv_cache_dtype not in ("auto", "fp8_e4m3", "fp8_e5m2"):
        raise ValueError(f"kv_cache_dtype {config.kv_cache_dtype!r} is none of auto, fp8_e4m3, fp8_e5m2")
    if config.kv_cache_dtype != "auto" and not (can_prefill.float8 and can_decode.float8):
        raise ValueError(f"kv_cache_dtype {config.kv_cache_dtype}: the backends {prefill!r} and {decode!r} cannot both read it")
    conv_state_layout = _conv_state_layout(config, environment)
    page_size, chunked, shared = config.page_size, config.chunked_prefill, config.prefix_caching
    if config.model is not None:
        chunked, shared = _prefill(config, config.model)
        config = replace(config, chunked_prefill=chunked)
    _check_phases(config, prefill, decode)
    if config.model is not None:
        _check_model(config.model, prefill, decode)
        page_size = _page_size(config, config.model, decode)
    return ServerPlan(prefill, decode, page_size, conv_state_layout, chunked, shared)


def _conv_state_layout(config: ServerConfig, environment: Mapping[str, str]) -> str:
    """The flag, else the variable, else SD; an empty variable is none."""
    asked = {"conv_state_layout": config.conv_state_layout, CONV_STATE_LAYOUT: environment.get(CONV_STATE_LAYOUT) or None}
    for name, layout in asked.items():
        if layout not in (None, *CONV_LAYOUTS):
            raise ValueError(f"{name} must be {' or '.join(CONV_LAYOUTS)}, got {layout!r}")
    return next((layout for layout in asked.values() if layout is not None), CONV_LAYOUTS[0])


def _prefill(config: ServerConfig, model: ModelConfig) -> tuple[bool, bool]:
    """Whether prefills are cut into chunks, and prefixes shared: neither with recurrent layers, whose state is kept for the end
    of a request's tokens and for no prefix of them; and keys that attended an encoder are their own request's."""
    chunks, shares = not model.recurrent, not (model.recurrent or model.is_encoder_decoder)
    for flag, asked, can in (
        ("chunked_prefill", config.chunked_prefill, chunks),
        ("prefix_caching", config.prefix_caching, shares),
    ):
        if asked and not can:
            kind = "recurrent" if model.recurrent else "encoder-decoder"
            warnings.warn(f"{flag} is switched off: the model is {kind}", stacklevel=3)
    return config.chunked_prefill and chunks, config.prefix_caching is not False and shares


def _check_phases(config: ServerConfig, prefill: str, decode: str) -> None:
    """What the backends can do, whatever the model is."""
    can_prefill, can_decode = backend_named(prefill), backend_named(decode)
    for flag, name, able in (("prefill", prefill, can_prefill.prefill), ("decode", decode, can_decode.decode)):
        if not able:
            raise ValueError(f"{flag}_backend {name!r} cannot {flag}")
    if config.speculative and not can_decode.speculative:
        raise ValueError(f"speculative: decode_backend {decode!r} cannot verify drafts")
    if config.chunked_prefill and not can_prefill.chunked_prefill:
        raise ValueError(f"chunked_prefill: prefill_backend {prefill!r} cannot continue a prefill")


def _check_model(model: ModelConfig, prefill: str, decode: str) -> None:
    can_prefill, can_decode = backend_named(prefill), backend_named(decode)
    if model.use_mla and not can_prefill.mla_prefill:
        raise ValueError(f"prefill_backend {prefill!r} cannot prefill an MLA model; name another one")
    if model.use_mla and not can_decode.mla:
        raise ValueError(f"decode_backend {decode!r} cannot decode an MLA model; name another one")
    if can_decode.mla_only and not model.use_mla:
        raise ValueError(f"decode_backend {decode!r} serves MLA models only")
    if model.is_encoder_decoder and model.sliding_window >= 0:
        raise ValueError(f"sliding_window {model.sliding_window}: an encoder-decoder model cannot have one")
    if model.is_encoder_decoder and not (can_prefill.cross and can_decode.cross):
        raise ValueError(f"is_encoder_decoder: the backends {prefill!r} and {decode!r} cannot both attend an encoder")
    if model.local_chunk is not None and not (can_prefill.local and can_decode.local):
        raise ValueError(f"local_chunk: the backends {prefill!r} and {decode!r} have no local layers")


def _page_size(config: ServerConfig, model: ModelConfig, decode: str) -> int:
    allowed = MLA_PAGES if model.use_mla else PAGES
    page_size = config.page_size
    if backend_named(decode).paged and page_size not in allowed:
        warnings.warn(
            f"page_size {page_size} is none of {', '.join(map(str, allowed))} that decode_backend {decode!r} takes: "
            f"using {FALLBACK_PAGE}",
            stacklevel=3,
        )
        page_size = FALLBACK_PAGE
    if model.local_chunk is not None and model.local_chunk % page_size:
        raise ValueError(f"local_chunk {model.local_chunk} must be a multiple of page_size {page_size}")
    return page_size
