"""Attention backends and linear modules in plain PyTorch, over the references of the kernels: one module each."""
