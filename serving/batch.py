"""A batch of one step, and what must hold of it and of the activations that come with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from serving.checks import check_dense_last
from serving.layers import FLOAT8, AttentionLayer, KVPool

Kept = TypeVar("Kept")
DECODE_MODES = ("idle", "decode", "draft_decode")
EXTEND_MODES = ("extend", "mixed", "draft_extend")
MODES = (*DECODE_MODES, "target_verify", *EXTEND_MODES)
PER_REQUEST = ("req_pool_indices", "seq_lens", "extend_seq_lens", "encoder_lens", "state_indices")
LOCATIONS = ("out_cache_loc", "encoder_out_cache_loc")
QUERIES = (torch.bfloat16, torch.float16, torch.float32)  # of the kernels, over float8


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """One step of B live requests; index tensors are int32 or int64. Requests that decode stand before those that extend.

    seq_lens counts the decoder tokens of a request with those of this step; in draft_decode and target_verify it is what was
    there before them. Decode modes bring one token a request, target_verify num_draft_tokens, the others extend_seq_lens[b].
    """

    mode: str
    req_pool_indices: Tensor
    """[B] row of the request table."""
    seq_lens: Tensor
    """[B]"""
    out_cache_loc: Tensor | None = None
    """[tokens] slot of each token's key and value."""
    extend_seq_lens: Tensor | None = None
    """[B], of extend, mixed and draft_extend."""
    encoder_lens: Tensor | None = None
    """[B]; a request's decoder tokens stand behind its encoder tokens in the request table."""
    encoder_out_cache_loc: Tensor | None = None
    """[encoder tokens that this step brings]"""
    state_indices: Tensor | None = None
    """[B] slot of each request's recurrent state."""
    num_decodes: int = 0
    """How many requests of an extend batch only decode: they come first."""
    num_draft_tokens: int = 0
    speculative_step_id: int = 0
    padded_size: int | None = None
    """Requests of the static buffers that a replayed step uses (at least B); None: the step is not replayed."""

    @property
    def size(self) -> int:
        """Live requests."""
        return len(self.seq_lens)

    @property
    def rows(self) -> int:
        """Requests with the padded ones."""
        return self.size if self.padded_size is None else self.padded_size


def check_batch(batch: ForwardBatch) -> None:
    """ValueError for a mode, sizes or lengths that do not fit together, TypeError for what is no index tensor."""
    if batch.mode not in MODES:
        raise ValueError(f"mode {batch.mode!r} is none of {', '.join(MODES)}")
    for name in (*PER_REQUEST, *LOCATIONS):
        value = getattr(batch, name)
        if value is None and name not in ("req_pool_indices", "seq_lens"):
            continue
        if not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} must be a tensor of int32 or int64")
        if name in PER_REQUEST and list(value.shape) != [batch.size]:
            raise ValueError(f"{name} must have shape {[batch.size]}, got {list(value.shape)}")
    for name in ("seq_lens", "extend_seq_lens", "encoder_lens"):
        value = getattr(batch, name)
        if value is not None and (value < 0).any():
            raise ValueError(f"{name} holds the negative length {int(value.min())}")
    if batch.mode in EXTEND_MODES and batch.extend_seq_lens is None:
        raise ValueError(f"extend_seq_lens must be given in mode {batch.mode}")
    if batch.padded_size is not None and batch.mode in EXTEND_MODES:
        raise ValueError(f"padded_size: mode {batch.mode} has no static form")
    if batch.rows < batch.size:
        raise ValueError(f"padded_size {batch.padded_size} is less than the {batch.size} live requests")
    if batch.speculative_step_id < 0:
        raise ValueError(f"speculative_step_id must be at least 0, got {batch.speculative_step_id}")


def prepared(kept: Kept | None) -> Kept:
    """What a backend keeps of the batch that it has prepared. ValueError where there is none."""
    if not kept:
        raise ValueError("batch: prepare it first")
    return kept


def check_static_drafts(batch: ForwardBatch, num_draft_tokens: int) -> None:
    """ValueError for a replayed draft or verification that static buffers for so many draft tokens do not hold."""
    if batch.padded_size is None:
        return
    if batch.mode == "target_verify" and batch.num_draft_tokens != num_draft_tokens:
        raise ValueError(f"num_draft_tokens {batch.num_draft_tokens}: the static buffers hold {num_draft_tokens}")
    steps = max(num_draft_tokens - 1, 0)  # the last draft token is attended by no step of the draft
    if batch.mode == "draft_decode" and batch.speculative_step_id >= steps:
        raise ValueError(f"speculative_step_id {batch.speculative_step_id}: the buffers hold {steps} steps")


def check_queries(
    q: Tensor, layer: AttentionLayer, pool: KVPool, tokens: int, over_float8: Sequence[torch.dtype] = QUERIES
) -> None:
    """ValueError unless q is [tokens, heads, head_dim], padded tokens among them, and dense in its last dimension; TypeError
    unless it has the pool's dtype, or over float8 one of those. What a kernel refuses later, it refuses after the keys are
    stored."""
    wanted = [tokens, layer.heads, layer.head_dim]
    if not isinstance(q, Tensor):
        raise TypeError(f"q must be a tensor, got {type(q).__name__}")
    if list(q.shape) != wanted:
        raise ValueError(f"q must have shape {wanted} in layer {layer.layer_id}, got {list(q.shape)}")
    if q.dtype not in (over_float8 if pool.k.dtype in FLOAT8 else (pool.k.dtype,)):
        raise TypeError(f"q has dtype {q.dtype}: the pool of layer {layer.layer_id} is {pool.k.dtype}")
    if layer.sinks is not None and layer.sinks.dtype not in (q.dtype, torch.float32):
        raise TypeError(f"sinks of layer {layer.layer_id} have dtype {layer.sinks.dtype}: neither q's, {q.dtype}, nor float32")
    check_dense_last("q", q)


def check_keys(
    k: Tensor | None, v: Tensor | None, layer: AttentionLayer, tokens: int, loc: Tensor | None, live: int, name: str
) -> bool:
    """Whether keys are given: k and v both or neither, for `tokens` rows, and with a location for each live one. ValueError."""
    if (k is None) != (v is None):
        raise ValueError(f"k and v must be given both or neither: {'k' if k is None else 'v'} is None")
    if k is None or v is None:
        return False
    for which, value, width in (("k", k, layer.head_dim), ("v", v, layer.v_head_dim)):
        if list(value.shape) != [tokens, layer.kv_heads, width]:
            wanted = [tokens, layer.kv_heads, width]
            raise ValueError(f"{which} must have shape {wanted} in layer {layer.layer_id}, got {list(value.shape)}")
        check_dense_last(which, value)
    if loc is not None and (loc.dim() != 1 or len(loc) != live):
        raise ValueError(f"{name} must have shape {[live]}, got {list(loc.shape)}")
    return True
