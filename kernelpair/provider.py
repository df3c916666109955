"""The old place of kernelpair.providers.provider, for provider files written before version 0.2."""

import warnings

from kernelpair.providers.provider import Unsupported, adapts, fitted

warnings.warn("kernelpair.provider is now kernelpair.providers.provider", DeprecationWarning, stacklevel=2)

__all__ = ["Unsupported", "adapts", "fitted"]
