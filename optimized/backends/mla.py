"""Decoding of absorbed MLA over pages of latents: mla_decode. It cannot prefill."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from optimized.attention_metadata import MetadataBuffers, build_attention_metadata
from optimized.backends.common import StaticLocations, check_all, check_call, store
from optimized.mla_decode import mla_decode, mla_decode_workspace_size
from optimized.workspace import Workspace
from serving import AttentionLayer, AttentionMetadata, DecodesOnly, ForwardBatch, KVPool, check_layers, prepared
from serving.config import MLA_PAGES


class MlaBackend(DecodesOnly):
    """One token a request over rows [latent | rope]; q is [rows, heads, latent + rope]. The workspace is shared by all layers."""

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, page_size: int = 64,
        max_bs: int = 0, max_context_len: int = 0,
    ) -> None:  # fmt: skip
        if page_size not in MLA_PAGES:
            raise ValueError(f"page_size {page_size} is none of {', '.join(map(str, MLA_PAGES))}")
        check_layers("mla", layers, pools, page_size)
        self.pools, self.req_to_token, self.page_size, self.max_bs = pools, req_to_token, page_size, max_bs
        self.slots = min((len(pool.k) for pool in pools.values()), default=0)
        self.workspace = Workspace()
        self._buffers = MetadataBuffers(max_bs, max_context_len, page_size=page_size)
        self._captured: set[tuple[str, int]] = set()
        self._locations, self._loc = StaticLocations(), None  # type: StaticLocations, Tensor | None
        self._longest = 0
        self.meta: AttentionMetadata | None = None

    def capture(self, mode: str, bs: int) -> None:
        """Make, or reset, the static buffers of a mode and size. ValueError where it has no static form."""
        self._buffers.capture(mode, bs)
        self._captured.add((mode, bs))

    def prepare(self, batch: ForwardBatch) -> None:
        """The page table of a batch, before its first layer runs. ValueError, TypeError, IndexError."""
        if batch.mode not in ("idle", "decode"):
            raise ValueError(f"mode {batch.mode!r}: the mla backend decodes only")
        check_all(batch, self.req_to_token, self.slots, self.page_size, self.max_bs)
        given = batch.seq_lens, batch.req_pool_indices, self.req_to_token
        if batch.padded_size is None:
            self.meta = build_attention_metadata(batch.mode, *given, page_size=self.page_size)
            self._longest, self._loc = self.meta.max_seq_len_k, None
            return
        if (batch.mode, batch.padded_size) not in self._captured:
            self.capture(batch.mode, batch.padded_size)
        self.meta = self._buffers.replay(batch.mode, batch.padded_size, *given)
        self._longest = self._buffers.max_context_len  # a recorded step has one workspace for all its replays
        self._loc = self._locations.replay(batch)  # last: a batch that is refused leaves the slots of the one before

    def forward_decode(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [rows, heads, latent] of one token a request."""
        meta = prepared(self.meta)
        pool = self.pools[layer.layer_id]
        new = check_call(q, k, v, layer, pool, batch, save_kv_cache)
        if new is not None:
            k, v, loc = new
            store(pool, layer, k, v, loc if self._loc is None else self._loc)
        latent, rope = q.split([layer.v_head_dim, layer.head_dim - layer.v_head_dim], dim=-1)
        size = mla_decode_workspace_size(self._longest, len(q), layer.heads, self.page_size, layer.v_head_dim)
        pages = pool.k[:, 0].unflatten(0, (-1, self.page_size))
        return mla_decode(
            latent, rope, pages, meta.cache_seqlens, meta.page_table, self.workspace.get(size), layer.sm_scale
        )
