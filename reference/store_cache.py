"""store_cache: rows of k and v into the slots of a KV cache. It copies bits; it never converts."""

import torch
from torch import Tensor

from reference import checks

STORED_DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, pad_slot: int | None = None
) -> None:
    """Write `k_cache[indices[n]] = k[n]` and `v_cache[indices[n]] = v[n]` for every n with `indices[n] != pad_slot`.

    k [N, H, Dk], v [N, H, Dv]; k_cache [P, H, Dk], v_cache [P, H, Dv], all of one dtype; indices [N] int32 or int64.
    Raises TypeError (dtypes), ValueError (shapes, strides, a slot written twice, overlap), IndexError (slot outside [0, P)).
    """
    tensors = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache}
    for name, tensor in tensors.items():
        checks.is_tensor(name, tensor, 3)
        checks.dense_last_dim(name, tensor)
    checks.same_dtype(tensors, STORED_DTYPES)
    N, H, Dk = k.shape
    P, _, Dv = v_cache.shape
    checks.has_shape("v", v, [N, H, Dv])
    checks.has_shape("k_cache", k_cache, [P, H, Dk])
    checks.has_shape("v_cache", v_cache, [P, H, Dv])
    checks.is_index("indices", indices, [N])
    if pad_slot is not None:
        checks.is_integer("pad_slot", pad_slot)
    used = ~checks.are_pads(indices, pad_slot)
    checks.in_range("indices", indices, P, used)
    slots = indices[used].long()
    checks.no_duplicates("indices", slots)
    checks.disjoint({"k_cache": k_cache, "v_cache": v_cache}, {"k": k, "v": v, "indices": indices})

    k_cache[slots] = k[used]
    v_cache[slots] = v[used]
