"""What backends of both sides inherit."""

from torch import Tensor

from serving.batch import ForwardBatch
from serving.layers import AttentionLayer


class DecodesOnly:
    """A backend that cannot prefill: a server needs another one for that."""

    def forward_extend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Raises ValueError: choose another backend for the prefill."""
        raise ValueError("forward_extend: the mla backend decodes only")
