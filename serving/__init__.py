"""What a serving engine hands to its attention backends: plain data, and the bookkeeping of slots. No kernel is called here.

Both `reference.backends` and `optimized.backends` take these, so that they differ only in how they compute.
"""

from serving.backend import DecodesOnly
from serving.batch import (
    DECODE_MODES,
    EXTEND_MODES,
    MODES,
    ForwardBatch,
    check_batch,
    check_keys,
    check_queries,
    check_static_drafts,
    prepared,
)
from serving.config import ModelConfig, ServerConfig, ServerPlan, check_config
from serving.layers import AttentionLayer, GdnLayer, KVPool, StatePool, check_chunked, check_layers, check_stored, store_route
from serving.metadata import AttentionMetadata, GdnMetadata, LocalAttentionMetadata
from serving.mla import MlaForm, MlaProjections, check_latent_call, check_projections, mla_form
from serving.packed import (
    PackedConvWeight,
    PackedExperts,
    PackedFp8Experts,
    PackedFp8Weight,
    PackedInt4Weight,
    PackedInt8Experts,
    PackedInt8Weight,
    PackedWeight,
)
from serving.registry import BACKENDS, Capabilities, backend_named, backends_for
from serving.requests import PoolExhausted, RequestPool

__all__ = [
    "BACKENDS",
    "DECODE_MODES",
    "EXTEND_MODES",
    "MODES",
    "AttentionLayer",
    "AttentionMetadata",
    "Capabilities",
    "DecodesOnly",
    "ForwardBatch",
    "GdnLayer",
    "GdnMetadata",
    "KVPool",
    "LocalAttentionMetadata",
    "MlaForm",
    "MlaProjections",
    "ModelConfig",
    "PackedConvWeight",
    "PackedExperts",
    "PackedFp8Experts",
    "PackedFp8Weight",
    "PackedInt4Weight",
    "PackedInt8Experts",
    "PackedInt8Weight",
    "PackedWeight",
    "PoolExhausted",
    "RequestPool",
    "ServerConfig",
    "ServerPlan",
    "StatePool",
    "backend_named",
    "backends_for",
    "check_batch",
    "check_chunked",
    "check_config",
    "check_keys",
    "check_latent_call",
    "check_layers",
    "check_projections",
    "check_queries",
    "check_static_drafts",
    "check_stored",
    "mla_form",
    "prepared",
    "store_route",
]
