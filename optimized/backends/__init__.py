"""Attention backends and linear modules over the compiled kernels, with the interface of `reference.backends`.

    from optimized.backends.paged import PagedBackend

    backend = PagedBackend(layers, pools, req_to_token, page_size=128)
    backend.prepare(batch)                                 # once a batch
    out = backend.forward_decode(q, k, v, layers[0], batch)    # once a layer
"""
