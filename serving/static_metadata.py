"""Metadata at fixed addresses: what both sides' buffers take and keep. How they are filled is each side's own."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from serving.batch import DECODE_MODES
from serving.checks import check_count, check_sizes
from serving.metadata import AttentionMetadata

STATIC_MODES = (*DECODE_MODES, "target_verify")
INT32_END = 2**31


class StaticMetadata(ABC):
    """Metadata at fixed addresses, for graphs that record tensors once and replay on new batches.

    `capture(mode, bs)` gives the views to record; `replay(mode, bs, ...)` refreshes them for at most `bs` live requests and
    returns the same object. Every (mode, bs) has buffers of its own, wide enough for max_context_len and max_encoder_len.
    """

    def __init__(
        self, max_bs: int, max_context_len: int, *, page_size: int = 1, num_draft_tokens: int = 0, speculative_step_id: int = 0,
        attn_chunk_size: int | None = None, max_encoder_len: int = 0,
    ) -> None:  # fmt: skip
        check_sizes(page_size, num_draft_tokens, speculative_step_id, attn_chunk_size)
        check_count("max_bs", max_bs)
        check_count("max_context_len", max_context_len)
        check_count("max_encoder_len", max_encoder_len)
        self.max_bs, self.max_context_len, self.max_encoder_len = max_bs, max_context_len, max_encoder_len
        self.page_size, self.num_draft_tokens, self.attn_chunk_size = page_size, num_draft_tokens, attn_chunk_size
        self.speculative_step_id = speculative_step_id
        self._captured: dict[tuple[str, int], AttentionMetadata] = {}

    @abstractmethod
    def capture(self, mode: str, bs: int) -> AttentionMetadata:
        """The buffers of (mode, bs), as a batch without live requests leaves them. Raises ValueError (mode, bs)."""

    @abstractmethod
    def replay(
        self, mode: str, bs: int, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor,
        encoder_lens: Tensor | None = None,
    ) -> AttentionMetadata:  # fmt: skip
        """Refresh the captured buffers of (mode, bs); errors as build_attention_metadata, and nothing is written then."""

    def _check(self, mode: str, bs: int) -> None:
        if not isinstance(mode, str):
            raise TypeError(f"mode must be a str, got {type(mode).__name__}")
        if mode not in STATIC_MODES:
            raise ValueError(f"mode {mode!r} has no static form; those that have: {', '.join(STATIC_MODES)}")
        check_count("bs", bs)
        if bs > self.max_bs:
            raise ValueError(f"bs {bs} is more than max_bs {self.max_bs}")
        if bs * self._q_len(mode) >= INT32_END:
            raise ValueError(f"bs {bs}: the total of query lengths does not fit int32")

    def _q_len(self, mode: str) -> int:
        """Query tokens of each request."""
        return self.num_draft_tokens if mode == "target_verify" else 1


class DraftMetadata:
    """Static metadata of every draft step: a draft of num_steps tokens attends num_steps - 1 times (step ids from 0).

    A side names its StaticMetadata in `buffers`.
    """

    buffers: ClassVar[type[StaticMetadata]]

    def __init__(
        self, num_steps: int, max_bs: int, max_context_len: int, *, topk: int = 1, page_size: int = 1, num_draft_tokens: int = 0,
        attn_chunk_size: int | None = None, max_encoder_len: int = 0,
    ) -> None:  # fmt: skip
        check_count("num_steps", num_steps, 1)
        check_count("topk", topk, 1)
        if topk != 1:
            raise ValueError(f"topk {topk}: only chains of drafts (topk 1) have this form")
        self.steps = [
            self.buffers(
                max_bs, max_context_len, page_size=page_size, num_draft_tokens=num_draft_tokens, speculative_step_id=step,
                attn_chunk_size=attn_chunk_size, max_encoder_len=max_encoder_len,
            )
            for step in range(num_steps - 1)
        ]  # fmt: skip

    def capture(self, bs: int) -> list[AttentionMetadata]:
        """The buffers of each step's draft_decode at batch size `bs`."""
        return [step.capture("draft_decode", bs) for step in self.steps]

    def replay(
        self, bs: int, seq_lens: Tensor, req_pool_indices: Tensor, req_to_token: Tensor, encoder_lens: Tensor | None = None
    ) -> list[AttentionMetadata]:
        """Refresh every step for the same batch. The last step, whose lengths are the longest, goes first: what it accepts
        all accept, so that an error leaves every buffer as it was."""
        batch = seq_lens, req_pool_indices, req_to_token, encoder_lens
        return [step.replay("draft_decode", bs, *batch) for step in reversed(self.steps)][::-1]
