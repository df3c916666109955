"""decode_attention: what the drawn cases must have met."""

from collections.abc import Callable
from typing import Any

from properties.decode_attention.cases import behind_of, keys_of, live_of, table_of
from properties.decode_attention.rows import loses_keys
from properties.shared.attention_values import extreme, stretch

EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": lambda case: not case.lens,
    "no keys": lambda case: 0 in keys_of(case),
    "more splits than keys": lambda case: any(0 < n < case.splits for n in keys_of(case)),
    "keys in several splits": lambda case: case.splits > 1 and any(n >= 128 for n in keys_of(case)),
    "long": lambda case: any(n >= 511 for n in keys_of(case)),
    "a crowd of requests": lambda case: len(live_of(case)) > 1024,
    "more keys than 16 bits count": lambda case: any(n > 2**16 for n in keys_of(case)),
    "more slots than 16 bits count": lambda case: any(keys_of(case)) and table_of(case).slots > 2**16,
    "more of an encoder's slots than 16 bits count": lambda case: any(
        n and e > 2**16 for n, e in zip(keys_of(case), behind_of(case))),
    "more rows of the table than 16 bits count": lambda case: any(keys_of(case)) and len(table_of(case).columns) > 2**16,
    "more heads than a byte counts": lambda case: case.heads > 256 and any(keys_of(case)),
    "cross attention": lambda case: case.cross and any(keys_of(case)),
    "behind an encoder": lambda case: case.encoder is not None and not case.cross and any(keys_of(case)),
    "window cuts": lambda case: not case.cross and any(0 < case.window < n for n in keys_of(case)),
    "window behind an encoder": lambda case: bool(case.encoder) and not case.cross and any(
        0 < case.window < n and e for n, e in zip(keys_of(case), behind_of(case))),
    "window of one key": lambda case: case.window == 1 and not case.cross and any(n > 1 for n in keys_of(case)),
    "softcap": lambda case: case.cap > 0,
    "sinks": lambda case: case.sinks != "none",
    "scores of -inf": lambda case: loses_keys(case) and any(n > 1 for n in keys_of(case)),
    "a scale near the end of float32": lambda case: stretch(case)[0] > 1e38 and any(n > 1 for n in keys_of(case)),
    **{f"{kind} values": lambda case, kind=kind: extreme(case) == kind and any(n > 1 for n in keys_of(case))  # type: ignore[misc]
       for kind in ("large", "small", "faint")},
    "writes": lambda case: case.write,
    "writes for a request without keys": lambda case: case.write and any(not keys_of(case)[b] for b in live_of(case)),
    "all requests are pads": lambda case: 0 < len(case.lens) == len(case.pads),
    "several pads beside live requests": lambda case: 1 < len(case.pads) < len(case.lens),
    "pads in a call that writes nothing": lambda case: bool(case.pads) and not case.write,
    "a live request sees the pad slot": lambda case: case.pad == "zero" and case.pads != () and any(
        0 in slots for slots in table_of(case).seen),
    "a pad slot and no pads": lambda case: case.pad != "none" and case.lens != () and not case.pads,
    "shared buffer": lambda case: case.shared,
    "shared buffer, value not given": lambda case: case.shared and case.write and not case.value_given,
    "shared buffer with window, encoder or cross": lambda case: case.shared and (case.cross or bool(case.encoder)),
    "several kv heads share queries": lambda case: 1 < case.kv_heads < case.heads,
    "no query heads": lambda case: case.heads == 0,
    "a window beyond 32 bits": lambda case: not case.cross and case.window > 2**32 and any(n > 1 for n in keys_of(case)),
    "MHA": lambda case: 1 < case.kv_heads == case.heads,
    "MLA of 128 heads": lambda case: case.shared and case.heads == 128,
    "D != Dv": lambda case: case.width != case.width_v,
    "width of 1": lambda case: case.width == 1,
    "scattered slots": lambda case: case.scattered,
    "requests share a table row": lambda case: case.same_row,
    "fused caches": lambda case: case.layout.get("k_cache") == "fused" and not case.shared,
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype  # type: ignore[misc]
       for dtype in ("bfloat16", "float16", "float32")},
}
