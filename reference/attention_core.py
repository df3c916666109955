"""The attention core: what every attention kernel does once it knows which keys a query row sees.

It does not gather, write caches, dequantise or build masks; the callers do.
"""

import math

import torch
from torch import Tensor

from reference import checks


def attention_core(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None = None,
    *,
    sm_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    distance: Tensor | None = None,
) -> Tensor:
    """Softmax attention of T query rows over N keys; returns [T, H, Dv] in q's dtype.

    q [T, H, D], k [N, Hkv, D], v [N, Hkv, Dv]; query head h reads kv head h // (H // Hkv). visible [T, N] bool, or None: every
    row sees every key. sinks [H]: a score that takes part in the softmax, unscaled and uncapped, with no value. slopes [H] and
    distance [T, N], of each key from each row: their product comes to the capped score. A row that sees nothing is 0. Computed
    in float64 if q is float64, else in float32, and rounded once.
    """
    T, H, D = q.shape
    N, Hkv, Dv = v.shape
    G, dtype = H // Hkv, q.dtype
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, v = (tensor.to(wide, copy=True) for tensor in (q, k, v))  # copies: the bits do not depend on where an argument lies
    rows = q.reshape(T, Hkv, G, D).permute(1, 2, 0, 3).reshape(Hkv, G * T, D)
    z = (rows @ k.permute(1, 2, 0)).view(Hkv, G, T, N) * sm_scale
    if logit_cap > 0:
        z = logit_cap * torch.tanh(z / logit_cap)
    if slopes is not None and distance is not None:
        z = z + slopes.to(wide).view(Hkv, G, 1, 1) * distance.to(wide)
    if visible is not None:
        z = z.masked_fill(~visible, -math.inf)
    sink = torch.full((H,), -math.inf, dtype=wide) if sinks is None else sinks.to(wide)
    z = torch.cat([z, sink.view(Hkv, G, 1, 1).expand(Hkv, G, T, 1)], dim=-1)
    m = z.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(wide).min)  # finite, so that an empty row gives exp(-inf) = 0
    p = torch.exp(z - m)
    den = p.sum(dim=-1, keepdim=True).clamp_min(1.0)  # the largest term is 1; only an empty row has less
    o = (p[..., :N].reshape(Hkv, G * T, N) @ v.permute(1, 0, 2)).view(Hkv, G, T, Dv) / den
    o = o + 0.0  # a hidden value times its weight is a zero of either sign: no -0 comes of it
    return o.permute(2, 0, 1, 3).reshape(T, H, Dv).to(dtype)


def check_core(H: int, Hkv: int, D: int, Dv: int, dtype: torch.dtype, sm_scale: float, logit_cap: float = 0.0,
               sinks: Tensor | None = None, *, names: tuple[str, str] = ("sm_scale", "logit_cap")) -> None:
    """The argument checks that belong to the core: scale, cap, head ratio, widths, sinks (ValueError, TypeError).

    `names` is what the caller's arguments for scale and cap are called."""
    checks.positive(names[0], sm_scale)
    checks.is_number(names[1], logit_cap)
    if logit_cap != 0:  # no cap
        checks.positive(names[1], logit_cap)
        if torch.tensor(sm_scale, dtype=torch.float32).div(torch.tensor(logit_cap, dtype=torch.float32)).isinf():
            raise ValueError(f"{names[1]} = {logit_cap} is too small: {names[0]} divided by it is infinite in float32")
    if Hkv < 1 or H % Hkv:
        raise ValueError(f"q has {H} heads, which is not a multiple of the cache's {Hkv} heads")
    if D < 1 or Dv < 1:
        raise ValueError(f"q and v_cache must have positive head sizes, got D = {D}, Dv = {Dv}")
    if sinks is not None:
        checks.parameter_vector("sinks", sinks, H, dtype)
        bad = (sinks.isnan() | (sinks == math.inf)).nonzero()
        if len(bad):
            raise ValueError(f"sinks[{int(bad[0])}] = {float(sinks[int(bad[0])])} must be finite or -inf")
