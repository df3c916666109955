"""paged_attention: what all cases together are to include."""

from typing import Any

from kernelpair.call.layout import SHARED
from properties.paged_attention.cases import PAGES, batch_of
from properties.paged_attention.factors import descale_far, steepness
from properties.shared import attention_values as numbers
from properties.shared.pads import MANY_SLOTS

EDGES: dict[str, Any] = {
    "no requests": lambda case: not case.rows,
    "more keys than 16 bits count": lambda case: any(q and k > 2**16 for q, k in zip(case.rows, case.lens)),
    "more rows than 16 bits count": lambda case: any(case.rows) and any(case.lens) and int(batch_of(case).offsets[-1]) > 2**16,
    "more slots of a page than 16 bits count": lambda case: case.page > 2**16 and any(case.rows) and max(case.lens) > 2**16,
    "more heads than a byte counts": lambda case: case.heads > 256 and any(q and k for q, k in zip(case.rows, case.lens)),
    "a crowd of requests": lambda case: len(case.rows) > 1024,
    "several rows behind many requests": lambda case: len(case.rows) > 64 and case.rows[-1] > 512,
    "no keys": lambda case: any(q and not k for q, k in zip(case.rows, case.lens)),
    "no rows": lambda case: 0 in case.rows and any(case.rows),
    "more rows than keys": lambda case: case.causal and any(q > k > 0 for q, k in zip(case.rows, case.lens)),
    "one row a request": lambda case: bool(case.rows) and set(case.rows) == {1} and max(case.lens) > 1,
    "last page partly used": lambda case: any(k % case.page for k in case.lens),
    "pages used up": lambda case: any(k and k % case.page == 0 for k in case.lens),
    **{f"page of {page}": lambda case, page=page: case.page == page and any(k > page for k in case.lens) for page in PAGES},
    "scores of -inf": lambda case: numbers.loses(case) and any(q and k > 1 for q, k in zip(case.rows, case.lens)),
    "a scale near the end of float32": lambda case: numbers.stretch(case)[0] > 1e38 and any(k > 1 for k in case.lens),
    **{f"{kind} values": lambda case, kind=kind: numbers.extreme(case) == kind
       and any(q and k > 1 for q, k in zip(case.rows, case.lens))
       for kind in ("large", "small", "faint")},
    "descales far from 1": lambda case: any(case.descale) and descale_far(case)[2] != 1 and any(case.lens),
    "causal": lambda case: case.causal and any(q > 1 for q in case.rows),
    "not causal": lambda case: not case.causal and case.left == case.right == -1 and any(q > 1 for q in case.rows),
    "left window cuts": lambda case: any(0 <= case.left < k - 1 for k in case.lens),
    "a window that hides a whole block of keys from later rows": lambda case: case.left >= 0 and any(
        min(q, k) > 288 + case.left for q, k in zip(case.rows, case.lens)),
    "left window hides pages": lambda case: case.left >= 0 and any(
        q and k - q - case.left > case.page for q, k in zip(case.rows, case.lens)),
    "right window cuts": lambda case: not case.causal and case.right >= 0 and any(q > case.right + 1 for q in case.rows),
    "both windows": lambda case: case.left >= 0 and case.right >= 0 and not case.causal,
    "softcap": lambda case: case.cap > 0,
    "sinks": lambda case: case.sinks != "none",
    "sinks without keys": lambda case: case.sinks != "none" and 0 in case.lens,
    "slopes": lambda case: case.alibi and any(q > 1 and k > 1 for q, k in zip(case.rows, case.lens)),
    "slopes, several rows, keys far back": lambda case: case.alibi
    and any(q > 1 and k > 256 for q, k in zip(case.rows, case.lens)),
    "slopes, one row a request": lambda case: case.alibi and bool(case.rows) and set(case.rows) == {1} and max(case.lens) > 64,
    "slopes, heads of one row shared out": lambda case: case.alibi and case.rows == (1,) and 1 < case.lens[0] < 64
    and case.kv_heads > 1,
    "steep slopes": lambda case: case.alibi and steepness(case) > 1 and any(q and k > 1 for q, k in zip(case.rows, case.lens)),
    "slopes and sinks": lambda case: case.alibi and case.sinks != "none" and any(case.lens),
    "slopes and a cap": lambda case: case.alibi and case.cap > 0 and any(case.lens),
    "default scale": lambda case: not case.scaled and case.values == "random",
    "splits": lambda case: case.splits > 1 and any(k > 64 for k in case.lens),
    "float8_e4m3fn": lambda case: case.cache == "float8_e4m3fn" and any(case.lens),
    "float8_e5m2": lambda case: case.cache == "float8_e5m2" and any(case.lens),
    "descales": lambda case: all(case.descale) and case.kv_heads > 1,
    "qv": lambda case: case.latent and any(case.lens),
    "several latents": lambda case: case.latent and case.kv_heads > 1 and any(case.lens),
    "several latents beside one rope part": lambda case: case.latent and case.kv_heads > 1 and any(case.lens)
    and case.layout.get("k_cache") == SHARED and case.layout.get("v_cache") == "fused",
    "qv in one buffer": lambda case: case.latent and case.layout.get("k_cache") == "fused" and any(case.lens),
    "rows of no request": lambda case: case.gaps and case.seed % 3 > 0,
    "several kv heads share queries": lambda case: 1 < case.kv_heads < case.heads,
    "D != Dv": lambda case: case.width != case.width_v,
    "width of 1": lambda case: case.width == 1,
    "more pages than 16 bits count": lambda case: any(case.lens) and batch_of(case).pages > MANY_SLOTS,
    "scattered pages": lambda case: case.scattered and any(k > case.page for k in case.lens),
    "one kv head for all": lambda case: case.layout.get("k_cache") == SHARED and case.kv_heads > 1 and any(case.lens),
    "fused caches": lambda case: case.layout.get("k_cache") == "fused" and any(case.lens),
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in ("bfloat16", "float16", "float32")},
}
