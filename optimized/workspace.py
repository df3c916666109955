"""A scratch buffer that is kept between calls."""

import torch
from torch import Tensor


class Workspace:
    """Grow-only scratch memory: `workspace.get(nbytes)` for every call, whatever its size.

    The memory is allocated anew only when it is missing or too small; otherwise its address stays the same, as a captured
    graph needs it. Its content is undefined.

        workspace = Workspace()
        size = mla_decode_workspace_size(int(seq_lens.max()), *q_nope.shape[:2], page_size)
        out = mla_decode(q_nope, q_pe, kv_cache, seq_lens, page_table, workspace.get(size), sm_scale)
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Bytes that are allocated."""
        return 0 if self._buffer is None else self._buffer.numel()

    def get(self, nbytes: int) -> Tensor:
        """A uint8 tensor of `nbytes` bytes at the start of the buffer. ValueError if nbytes is negative."""
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, got {nbytes}")
        if self._buffer is None or self.capacity < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        return self._buffer[:nbytes]
