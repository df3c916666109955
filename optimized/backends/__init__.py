"""Attention backends and linear modules over the compiled kernels, with the interface of `reference.backends`."""

from optimized.backends.gdn import GdnBackend
from optimized.backends.linear import Linear, make_linear_dispatch
from optimized.backends.mla import MlaBackend
from optimized.backends.paged import PagedBackend
from optimized.backends.slot import SlotBackend

__all__ = ["GdnBackend", "Linear", "MlaBackend", "PagedBackend", "SlotBackend", "make_linear_dispatch"]
