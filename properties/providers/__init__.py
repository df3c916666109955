"""Other people's kernels under our contracts: one module a library, found through the entry points in kernels/pyproject.toml."""
