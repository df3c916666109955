"""Cases of chunk_gated_delta_rule that must come up."""

from collections.abc import Callable
from typing import Any

from properties.chunk_gated_delta_rule.cases import CHUNK, FAST_GROWTH, LONG, MANY, SMALL_EPS
from properties.shared.delta_rule_bound import UNIT

EDGES: dict[str, Callable[[Any], bool]] = {
    "no sequence": lambda case: not case.lengths,
    "no token": lambda case: case.tokens == 0,
    "many sequences": lambda case: case.lengths == MANY,
    "a sequence without tokens": lambda case: 0 in case.lengths,
    "a sequence without tokens in a pool": lambda case: 0 in case.lengths and case.form == "pool",
    "several chunks": lambda case: any(length > 2 * CHUNK for length in case.lengths),
    "a thousand tokens": lambda case: case.lengths == LONG[:1],
    "two thousand tokens": lambda case: case.lengths == LONG[1:],
    "more slots than 16 bits count": lambda case: case.spare >= 2**16 and len(case.live) > 0,
    "more tokens than 16 bits count": lambda case: case.before >= 2**16 and len(case.live) > 0,
    "many heads": lambda case: case.heads > 64 and len(case.live) > 0,
    "a scale above 1": lambda case: (case.scale or 0) > 1 and len(case.live) > 0,
    "a whole chunk": lambda case: CHUNK in case.lengths,
    "first offset above 0": lambda case: case.before > 0 and bool(case.lengths),
    "uncovered tail": lambda case: case.after > 0,
    "no initial state": lambda case: case.state == "none",
    "flags absent": lambda case: case.form == "pool" and not case.flags,
    "dirty slots start from zeros": lambda case: case.form == "pool" and case.flags
    and bool(set(case.live) - set(case.warm)),
    "pads": lambda case: case.form == "pool" and bool(case.pads),
    "pad is a slot in range": lambda case: case.pad_in_range,
    "pad is slot 0 of several": lambda case: case.pad_in_range and case.pad_slot == 0 and case.slots > 1,
    "bfloat16 states": lambda case: case.state == "bfloat16",
    "vk": lambda case: case.state_layout == "vk" and case.K != case.V,
    "K != V": lambda case: case.K != case.V,
    "three value heads a key head": lambda case: case.group == 3,
    "ragged widths": lambda case: case.K == 33 or case.V == 33,
    "fast decay": lambda case: case.decay == 30 and max(case.lengths, default=0) > 16,
    "no decay": lambda case: case.decay == 0,
    "forgets within a chunk": lambda case: case.forgets and max(case.lengths, default=0) > 16,
    "growth": lambda case: case.decay < 0 and max(case.lengths, default=0) > 1,
    "fast growth in bfloat16": lambda case: case.decay == FAST_GROWTH and case.dtype == "bfloat16" and len(case.live) > 0,
    "one head of a key head bursts": lambda case: case.bursts and case.group > 1
    and max((case.lengths[n] for n in case.live), default=0) > 4,
    "beta above 1": lambda case: case.beta == "strong" and len(case.live) > 0,
    "little is written": lambda case: case.beta == "faint" and len(case.live) > 0,
    "exact sums": lambda case: case.exact_sums and len(case.live) > 0,
    "a small eps": lambda case: case.l2norm and case.eps < SMALL_EPS,
    "wide heads": lambda case: max(case.K, case.V) > 128 and any(case.lengths),
    "beta zero": lambda case: case.beta == "zero",
    "tiny keys": lambda case: case.keys == "tiny" and case.l2norm,
    "no normalisation": lambda case: not case.l2norm,
    "accurate, several chunks": lambda case: case.accurate and case.dtype == "bfloat16"
    and max(case.lengths, default=0) > CHUNK,
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in UNIT},  # type: ignore[misc]
}
