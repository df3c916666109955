"""The kernels of an inference engine as an installed suite. `suite` is what the engine loads; nothing else is to be imported.

The packages `properties`, `reference`, `serving` and `optimized` lie in this folder and not beside it, so that they hide nobody's
folders of these names and nobody's hide them.
"""
