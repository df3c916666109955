"""Attention backends and linear modules in plain PyTorch, over the references of the kernels."""

from reference.backends.gdn import GdnBackend
from reference.backends.linear import Linear, make_linear_dispatch
from reference.backends.mla import MlaBackend
from reference.backends.paged import PagedBackend
from reference.backends.slot import SlotBackend

__all__ = ["GdnBackend", "Linear", "MlaBackend", "PagedBackend", "SlotBackend", "make_linear_dispatch"]
