"""fused_moe: sizes that few cases have, what all cases are to include, and what they are measured by."""

from collections.abc import Callable
from typing import Any

RARE: dict[int, tuple[tuple[int, int, int, int, int], dict[str, Any]]] = {  # tokens, experts, topk, D, I, each of one case in 64
    61: ((1199, 160, 8, 3, 2), {}),  # two chunks, of more pairs than of fewer experts
    60: ((9, 20, 17, 33, 17), {}),  # experts of a token that no vector of sixteen holds
    59: ((8300, 2, 1, 2, 2), {"form": "moe", "on_input": True, "route": "pads"}),  # three chunks, with weights on the input
    54: ((8300, 2, 1, 2, 2), {"form": "moe", "route": "padded"}),  # three, of which two have no tokens with experts
    58: ((8300, 1, 1, 2, 2), {"form": "shared", "routed": True}),  # three through one expert beside what was routed elsewhere
    57: ((1025, 1, 1, 8, 8), {"form": "moe", "route": "constant"}),  # a chunk of one expert and one row more
    55: ((70_000, 2, 1, 2, 1), {"layout": {}, "values": "uniform"}),  # a chunk that begins behind the 65,536th token
    56: ((17, 1040, 3, 3, 2), {"form": "moe", "route": "random"}),  # more experts than tables of models have places for
    51: ((70, 1, 1, 2100, 8), {"dtype": "bfloat16", "route": "constant"}),  # many rows of more columns than one slice has, whose
    50: ((70, 1, 1, 8, 2100), {"dtype": "bfloat16", "route": "constant"}),  # sums wait; and as many of what goes down
}
RARE |= {53: RARE[59], 52: RARE[58]}  # twice as often: only a trial of values shows what later chunks take of the first
EDGES: dict[str, Callable[[Any], bool]] = {
    "no tokens": lambda case: case.tokens == 0,
    "more tokens than 16 bits count": lambda case: case.tokens > 2**16,
    "no experts asked for": lambda case: case.topk == 0 < case.tokens,
    "one expert": lambda case: case.experts == 1 and case.form == "moe",
    "experts without tokens": lambda case: case.route == "constant" and case.experts > 1 and case.pairs > 0,
    "one expert for more than 32 tokens": lambda case: case.route == "constant" and case.pairs > 32,
    "an expert twice in a row": lambda case: case.route == "twice" and case.topk > 1 and case.tokens > 0,
    "pads": lambda case: case.route == "pads" and case.pairs > 8,
    "a padded batch": lambda case: case.route == "padded" and case.pairs > 8,
    "a part of a long call that is padding": lambda case: case.route == "padded" and case.tokens > 8192,
    "weights on the input of several chunks": lambda case: case.on_input and case.tokens > 8192,
    "weights on the input": lambda case: case.on_input and case.tokens > 1,
    "b13 alone": lambda case: bool(case.b13) and not case.b2,
    "b2 alone": lambda case: bool(case.b2) and not case.b13,
    "the shared form": lambda case: case.form == "shared" and not case.routed,
    "the shared form with what was routed": lambda case: case.routed and case.factor != 1.0,
    "partial panels of up": lambda case: case.I % 32 > 0,
    "partial panels of down": lambda case: case.D % 32 > 0,
    "int8 weights": lambda case: case.int8 and case.pairs > 0,
    "int8 weights and exact values": lambda case: case.int8 and case.values == "exact" and case.pairs > 2,
    "int8 weights of the shared form": lambda case: case.int8 and case.form == "shared",
    "int8 weights with biases and pads": lambda case: case.int8 and bool(case.b13) and case.route == "pads",
    "float8 weights": lambda case: bool(case.block) and case.pairs > 0,
    "float8 weights and exact values": lambda case: bool(case.block) and case.values == "exact" and case.pairs > 2,
    "float8 weights of the shared form": lambda case: bool(case.block) and case.form == "shared",
    "float8 weights with biases and pads": lambda case: bool(case.block) and bool(case.b13) and case.route == "pads",
    "float8 blocks that end within tiles": lambda case: case.block == "3x5" and case.D > 5 and case.I > 5,
    "float8 blocks of w2 that are others": lambda case: bool(case.block2) and case.block2 != case.block,
    "gates beyond 1,000": lambda case: case.magnitude == 1000.0 and case.pairs > 0,
    "sums of one expert's rows that wait between slices of x": lambda case: case.D > 2048 and MEASURES["rows"](case) > 64,
    "sums that wait between slices of what goes down": lambda case: case.I > 2048 and MEASURES["rows"](case) > 64,
    "more than 1,024 experts": lambda case: case.experts > 1024 and case.pairs > 0,
    "exact values": lambda case: case.values == "exact" and case.pairs > 0,
    "one-hot rows": lambda case: case.values == "one_hot" and case.pairs > 0 and case.dtype != "float32",
    "misaligned weights": lambda case: case.layout.get("w13") == "offset" and case.layout.get("w2") == "offset",
}
MEASURES: dict[str, Callable[[Any], int]] = {
    "rows": lambda case: case.pairs if case.route == "constant" else case.pairs // max(case.experts, 1),
    "columns": lambda case: max(2 * case.I, case.D),
    "panels": lambda case: max(2 * case.I, case.D) // 32,
    "width": lambda case: max(case.D, case.I),
    "blocks": lambda case: max(case.D, case.I) // 32,
    "steps": lambda case: max(case.D, case.I) // 32,
    "elements": lambda case: case.tokens * case.D,
    "quads": lambda case: max(case.D, case.I) // 4,
    "bytes": lambda case: case.D * case.I,
    "ahead": lambda case: case.D * case.I,
}
