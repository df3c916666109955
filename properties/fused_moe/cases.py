"""fused_moe: what is drawn, and the arguments of a case."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

import reference.fused_moe as reference
from kernelpair.call.layout import READ_ROWS, REPEATED, TABLE
from kernelpair.call.values import generator, permutation, poison_value, signed, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.fused_moe.edges import RARE
from properties.shared.packed_weights import WIDE
from properties.shared.strategies import any_of, around, between, common, either, together
from reference.fp8_to_float import fp8_to_float

TOKENS = (1, 2, 5, 3, 33, 65, 0, 17)
EXPERTS = (1, 2, 8, 3, 64)
TOPK = (1, 2, 3, 8, 0)
WIDTHS = (1, *around(16), *around(32), 64, 96, 128)  # of D and of I
LONG = 300  # tokens of one case in 32
MOST_PRODUCTS = 6_000_000  # of a case: 20 ms for the float64 truth and its bound
MOST_EMULATED = 1_500_000
ROUTES = ("random", "pads", "ascending", "constant", "twice", "padded")
PARTS = ("sums", "scale", "block_n", "block_k")  # of a quantized stack
MAGNITUDES = (1.0, 1e-2, 8.0, 1000.0)  # of x; with the last one gates and ups are some thousands, whose products float16 lacks
GATE = 32.0  # from here on silu(g) = g
ANY_LAYOUT = "vnni2-n32k32"  # a known tag; the shape decides
INT8_LAYOUT, FP8_LAYOUT = "vnni4-n32k64", "e4m3-vnni2-n32k32"
BLOCKS = ("128x128", "tensor", "channel", "32x64", "96x96", "5x48", "3x5", "40x35", f"{WIDE + 3}x{WIDE + 5}")
FACTORS = (1.0, 2.5, -2055 / 4096, 0.0)  # the third one lies about halfway between two numbers of 16 bits
ROWS_APART = tuple(kind for kind in READ_ROWS if kind not in REPEATED)  # every expert has a bias of its own
LAYOUTS = {
    "x": READ_ROWS, "w13": ("offset",), "w2": ("offset",), "topk_weights": TABLE, "topk_ids": TABLE,
    "b13": ROWS_APART, "b2": ROWS_APART, "routed": READ_ROWS,
    **dict.fromkeys(("w13_sums", "w13_scale", "w2_sums", "w2_scale"), ("apart", "far", "strided", "transposed")),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MoeCase(Case):
    """x [tokens, D] through topk of `experts` experts of inner width I; or through one that all tokens share."""

    form: Literal["moe", "shared"] = "moe"
    tokens: int = 1
    experts: int = 1
    topk: int = 1
    D: int = 1
    I: int = 1
    b13: Literal["", "call", "float32"] = ""
    b2: Literal["", "call", "float32"] = ""
    on_input: bool = False
    routed: bool = False
    """Of the shared form: something is added."""
    factor: float = 1.0
    route: Literal["random", "pads", "ascending", "constant", "twice", "padded"] = "random"
    """`pads`: a third of the ids is -1, their weights NaN. `constant`: one expert for all. `twice`: a row names it k times.
    `padded`: of the tokens the first third names experts, as in a batch that was captured for more of them."""
    int8: bool = False
    """Weights of bytes; rows are quantized before each projection."""
    block: str = ""
    """Weights are float8 codes, and these outputs x columns share a scale: `channel` a row, `tensor` all; empty: they are not."""
    block2: str = ""
    """Those of w2, where they are others."""
    values: Literal["uniform", "exact", "one_hot"] = "uniform"
    """`exact`: gates of 32 or 64, whole ups and weights, router weights that are powers of 2: only last roundings are left.
    `one_hot`: gates from 32 on and ups are one product each, and outputs one of these times powers of 2."""
    magnitude: float = 1.0

    @property
    def pairs(self) -> int:
        return self.tokens * self.topk

    def block_size(self, name: str, N: int, K: int) -> tuple[int, int]:
        """Of the float8 weights [N, K] of this name."""
        block = (name == "w2" and self.block2) or self.block
        if block in ("tensor", "channel"):
            return N if block == "tensor" else 1, K
        block_n, block_k = map(int, block.split("x"))
        return block_n, block_k


FIELDS = together({
    **common(LAYOUTS, ["topk_ids"]),
    "dtype": any_of("float32", "bfloat16", "float16"),
    "form": any_of("moe", "moe", "shared"),
    "b13": any_of("", "", "call", "float32"),
    "b2": any_of("", "", "call", "float32"),
    "on_input": any_of(False, False, False, False, False, True),
    "routed": either,
    "factor": any_of(*FACTORS),
    "route": any_of(*ROUTES),
    "int8": any_of(False, False, True),
    "block": any_of("", "", "", "", "", *BLOCKS),
    "block2": any_of("", *BLOCKS),
    "values": any_of("uniform", "exact", "uniform", "one_hot"),
    "magnitude": any_of(*MAGNITUDES),
})  # fmt: skip


@st.composite
def strategy(draw: st.DrawFn) -> MoeCase:
    """Any sizes within the budget, routes, biases, dtypes, strides and values."""
    fields = draw(FIELDS)
    if fields["seed"] % 32 == 9:
        fields = fields | {"layout": fields["layout"] | {"w13": "offset", "w2": "offset"}}
    experts, topk = draw(any_of(*EXPERTS), label="experts"), draw(any_of(*TOPK), label="topk")
    D, inner = draw(any_of(*WIDTHS), label="D"), draw(any_of(*WIDTHS), label="I")
    tokens = draw(any_of(*TOKENS), label="tokens")
    if fields["on_input"]:
        topk = min(topk, 1)
    rare = draw(between(0, 63), label="rare")
    if rare >= 62:
        tokens, experts, topk = LONG, min(experts, 3), min(topk, 2)
    if rare in RARE:
        (tokens, experts, topk, D, inner), more = RARE[rare]
        fields = fields | more
    while work(tokens, experts, topk, D, inner) > MOST_PRODUCTS:
        if tokens > 2 * experts:
            tokens = tokens // 2
        else:
            experts = experts // 2
    return completed(fields, tokens, experts, topk, D, inner)


def work(tokens: int, experts: int, topk: int, D: int, inner: int) -> int:
    """Products of a case, the unpacking of its weights included."""
    return 3 * D * inner * (tokens * topk + 2 * experts)


def completed(fields: dict[str, Any], tokens: int, experts: int, topk: int, D: int, inner: int) -> MoeCase:
    """The case of these sizes, as its form takes them."""
    if fields["form"] == "shared":
        plain = {"b13": "", "b2": "", "on_input": False, "route": "constant"}
        fields, experts, topk = fields | plain, 1, 1
    else:
        fields = fields | {"routed": False, "factor": 1.0}
    if fields["values"] == "one_hot":
        fields = fields | {"b13": "", "b2": "", "on_input": False, "routed": False, "int8": False, "block": ""}
        topk = min(topk, 1)
    if fields["int8"]:
        fields = fields | {"block": ""}
    if not fields["block"]:
        fields = fields | {"block2": ""}
    if fields["int8"] and D == 1:
        fields = fields | {"values": "uniform"}  # an exact row has a 32 and a 127
    most = 8.0 if fields["dtype"] == "float16" else max(MAGNITUDES)
    magnitude = min(fields["magnitude"], most) if fields["values"] == "uniform" else 1.0
    on_input = fields["on_input"] and topk == 1
    return MoeCase(**fields | {
        "tokens": tokens, "experts": experts, "topk": topk, "D": D, "I": inner, "magnitude": magnitude, "on_input": on_input,
    })  # fmt: skip


def _ids(case: MoeCase) -> Tensor:
    shape, drawn = (case.tokens, case.topk), generator(case.seed, "topk_ids")
    if case.route == "constant":
        return torch.full(shape, case.seed % case.experts)
    if case.route == "ascending":
        return torch.arange(case.pairs).reshape(shape) % case.experts
    if case.route == "twice":
        return torch.from_numpy(drawn.integers(0, case.experts, size=(case.tokens, 1))).expand(shape).clone()
    ids = torch.from_numpy(drawn.integers(0, case.experts, size=shape))
    if case.route == "padded":
        ids[-(-case.tokens // 3) :] = -1
    if case.route == "pads":
        ids[torch.from_numpy(drawn.integers(0, 3, size=shape)) == 0] = -1
    return ids


def _router_weights(case: MoeCase, ids: Tensor) -> Tensor:
    """Powers of 2, or any of either sign with some of 0 and some that are tiny; NaN where nobody is to look."""
    shape, drawn = tuple(ids.shape), generator(case.seed, "topk_weights")
    if case.values != "uniform":
        weights = torch.exp2(torch.from_numpy(drawn.integers(0 if case.on_input else -2, 2, size=shape)).float())
    else:
        weights = 0.75 + uniform(case.seed, "topk_weights", shape)
        weights[torch.from_numpy(drawn.integers(0, 9, size=shape)) == 0] = 0.0
        weights[torch.from_numpy(drawn.integers(0, 9, size=shape)) == 0] *= 2.0**-21
    weights[ids < 0] = torch.nan
    return weights


def _exact_layers(case: MoeCase, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gates read one column, which holds 32; ups are sums of few whole numbers, so that 32 of them stay below 2^8."""
    E, D, inner = case.experts, case.D, case.I
    gates = torch.zeros(E, inner, D)
    gates[:, :, case.seed % D] = 1.0
    ups = small_integers(case.seed, "ups", (E, inner, D), torch.float32, 1)
    ups[:, :, permutation(case.seed, "columns", D)[32:]] = 0.0
    ups[:, :, case.seed % D] = small_integers(case.seed, "gate's ups", (E, inner), torch.float32, 1)
    down = small_integers(case.seed, "w2", (E, D, inner), torch.float32) / 256  # results stay in float16's range
    return torch.cat([gates, ups], dim=1).to(dtype), down.to(dtype)


def _one_hot_layers(case: MoeCase, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gates and ups read one column of x, outputs any of a."""
    E, D, inner = case.experts, case.D, case.I
    w13, reads = torch.zeros(E, 2 * inner, D), uniform(case.seed, "w13", (E, 2 * inner), dtype).float()
    reads[:, :inner] = 1 + reads[:, :inner].abs()
    w13[:, :, case.seed % D] = reads
    chosen, steps = (torch.from_numpy(generator(case.seed, "w2").integers(0, most, size=(E, D))) for most in (inner, 4))
    return w13.to(dtype), (one_hot(chosen, inner) * torch.exp2(-steps[..., None].float())).to(dtype)


def _layers(case: MoeCase, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights with which h stays around 1, and y around a."""
    if case.values != "uniform":
        return (_exact_layers if case.values == "exact" else _one_hot_layers)(case, dtype)
    E, D, inner = case.experts, case.D, case.I
    w13 = uniform(case.seed, "w13", (E, 2 * inner, D), dtype, min(1.0, 4 / D**0.5))
    return w13, uniform(case.seed, "w2", (E, D, inner), dtype, min(1.0, 2 / inner**0.5))


def _x(case: MoeCase, dtype: torch.dtype) -> Tensor:
    if case.values != "exact":
        x, gate = uniform(case.seed, "x", (case.tokens, case.D), dtype, case.magnitude), case.seed % case.D
        if case.values == "one_hot":
            x[:, gate] = GATE * (1 + x[:, gate].abs())
        return x
    x = small_integers(case.seed, "x", (case.tokens, case.D), dtype, 127 if case.int8 else 2)
    x[:, case.seed % case.D] = GATE
    if case.int8:
        x[:, (case.seed + 1) % case.D] = 127.0
    return x


def _bias(case: MoeCase, name: str, kind: str, width: int, dtype: torch.dtype) -> Tensor | None:
    if not kind:
        return None
    dtype = dtype if kind == "call" else torch.float32
    if case.values == "uniform":
        return uniform(case.seed, name, (case.experts, width), dtype)
    bias = small_integers(case.seed, name, (case.experts, width), dtype)
    if name == "b13" and case.int8:  # all gates of an expert alike, and no up above 127
        bias[:] = GATE * (bias[:, :1] > 0) * (not case.on_input)
        bias[:, case.I :] = 0.0
    elif name == "b13":
        bias[:, : case.I] = GATE * (bias[:, : case.I] > 0) * (not case.on_input)  # gates stay powers of 2
    return bias


def _bytes(case: MoeCase, name: str, N: int, K: int) -> Inputs:
    """A packed stack of int8 weights with sums and scales, of sizes as float ones have."""
    shape, drawn = (case.experts, N, K), generator(case.seed, name)
    exact, scale = case.values == "exact", torch.ones(case.experts, N)
    if not exact:
        weight = torch.from_numpy(drawn.integers(-128, 127, size=shape, dtype="int8", endpoint=True))
        scale = (1 + uniform(case.seed, f"{name}_scale", shape[:2]) / 2) * min(1.0, (4 if name == "w13" else 2) / K**0.5) / 128
    elif name == "w2":
        weight = small_integers(case.seed, name, shape, torch.int8)
        scale = torch.exp2(-torch.from_numpy(drawn.integers(7, 10, size=shape[:2])).float())
    else:  # one-hot rows: gates read the 32, ups any column, one of them the 127
        columns = torch.from_numpy(drawn.integers(0, K, size=shape[:2]))
        columns[:, : case.I] = case.seed % K
        columns[:, case.I + case.seed % case.I] = (case.seed + 1) % K
        weight = one_hot(columns, K).to(torch.int8)
    stack = reference.PackedInt8Experts.pack(weight, scale if exact else signed(case.seed, f"{name}_scale", scale))
    return {name: stack.data, f"{name}_sums": stack.sums, f"{name}_scale": stack.scale}


def _coded(case: MoeCase, name: str, N: int, K: int) -> Inputs:
    """A packed stack of float8 codes with scales, of sizes as float ones have; in the exact mode they are the same
    numbers, each a code times a power of 2."""
    E, block_size, drawn = case.experts, case.block_size(name, N, K), generator(case.seed, name)
    blocks = (E, -(-N // block_size[0]), -(-K // block_size[1]))
    if case.values == "exact":
        base = 2.0 ** (0 if name == "w13" else -8)
        scales = base * torch.exp2(torch.from_numpy(drawn.integers(-3, 3, size=blocks, endpoint=True)).float())
        w13, w2 = _exact_layers(case, torch.float32)
        codes = (w13 if name == "w13" else w2) / spread(scales, (N, K), block_size)
        weight = codes.to(torch.float8_e4m3fn)
    else:
        magnitude = drawn.integers(0, 0x7E, size=(E, N, K), dtype="uint8", endpoint=True)
        sign = drawn.integers(0, 1, size=(E, N, K), dtype="uint8", endpoint=True)
        weight = torch.from_numpy(magnitude | sign << 7).view(torch.float8_e4m3fn)
        scales = (1 + uniform(case.seed, f"{name}_scale", blocks) / 2) * min(1.0, (8 if name == "w13" else 4) / K**0.5) / 448
        scales = signed(case.seed, f"{name}_scale", scales)
    stack = reference.PackedFp8Experts.pack(weight, scales, block_size)
    return {name: stack.data, f"{name}_scale": stack.scales, f"{name}_block_n": block_size[0], f"{name}_block_k": block_size[1]}


def spread(scales: Tensor, sizes: tuple[int, int], block_size: tuple[int, int]) -> Tensor:
    """The scale of each weight, [E, N, K]."""
    outputs, columns = (torch.arange(size) // block for size, block in zip(sizes, block_size))
    return scales[:, outputs][:, :, columns]


def inputs(case: MoeCase) -> Inputs:
    """Experts that nobody asks for hold poison, in their biases too."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    ids = _ids(case)
    b13, b2 = _bias(case, "b13", case.b13, 2 * case.I, dtype), _bias(case, "b2", case.b2, case.D, dtype)
    if case.int8 or case.block:
        quantized = _bytes if case.int8 else _coded
        stacks = quantized(case, "w13", 2 * case.I, case.D) | quantized(case, "w2", case.D, case.I)
    else:
        stacks = packed(*_layers(case, dtype))
    if case.form == "moe":
        idle = torch.ones(case.experts, dtype=torch.bool)
        idle[ids[ids >= 0]] = False
        for stack in (*stacks.values(), b13, b2):
            if isinstance(stack, Tensor):
                stack[idle] = poison_value(case.poison, stack.dtype)
    given: Inputs = {"form": case.form, "dtype": case.dtype, "x": _x(case, dtype), **stacks, "D": case.D, "I": case.I}
    if case.form == "shared":
        routed = uniform(case.seed, "routed", (case.tokens, case.D), dtype) if case.routed else None
        if routed is not None and case.values == "exact":
            routed = small_integers(case.seed, "routed", (case.tokens, case.D), dtype)
        return given | {"routed": routed, "routed_scaling_factor": case.factor}
    weights = _router_weights(case, ids)
    return given | {
        "topk_weights": weights, "topk_ids": ids, "b13": b13, "b2": b2, "apply_router_weight_on_input": case.on_input,
    }  # fmt: skip


def packed(w13: Tensor, w2: Tensor) -> Inputs:
    """The data of both packed stacks."""
    return {"w13": reference.PackedExperts.pack(w13).data, "w2": reference.PackedExperts.pack(w2).data}


def unpacked(case: MoeCase, given: Inputs) -> tuple[Tensor, Tensor]:
    """Both stacks as they were; of int8 and of codes, what they stand for, in float64."""
    E, D, inner = case.experts, case.D, case.I
    w13, w2 = (_unpacked(given, name, E, N, K) for name, N, K in (("w13", 2 * inner, D), ("w2", D, inner)))
    return w13, w2


def _unpacked(given: Inputs, name: str, E: int, N: int, K: int) -> Tensor:
    scale = given.get(f"{name}_scale")
    if scale is None:
        return reference.PackedExperts(given[name], ANY_LAYOUT, E, N, K).unpack()
    if f"{name}_block_n" in given:
        block = given[f"{name}_block_n"], given[f"{name}_block_k"]
        stack = reference.PackedFp8Experts(given[name], scale, FP8_LAYOUT, E, N, K, block)
        return fp8_to_float(stack.unpack(), torch.float64) * spread(scale.double(), (N, K), block)
    codes = reference.PackedInt8Experts(given[name], given[f"{name}_sums"], scale, INT8_LAYOUT, E, N, K).unpack()
    return codes.double() * scale.double()[..., None]


def small(case: MoeCase) -> bool:
    """Whether tiles in software multiply it in time: every expert that is hit takes a tile of rows at least."""
    rows = 16 * min(case.experts, case.pairs) + case.pairs
    return rows * 3 * max(case.D, 32) * max(case.I, 32) <= 4 * MOST_EMULATED
