"""The engine that puts an optimized CPU kernel on trial against its pure-PyTorch reference. It knows no kernel by name."""

__version__ = "0.1.0"
