"""topk_gating: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_PARAMETERS, READ_ROWS
from kernelpair.call.values import generator, poison_value, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.every_value import set_sign
from properties.shared.strategies import any_of, around, between, common, either, float_dtypes, near, shrinking, together

NAMES = ("weights", "ids")
TOKENS = (1, 3, 2, 0, 17, 65)
LONG = 66_000  # tokens of one case in 96, of few experts, or experts of another one: more than 16 bits count
MOST_OF_LONG = 33  # chosen of so many experts
EXPERTS = (1, 2, 7, 8, *around(16), 32, 60, 64, 72, 128, 160, 256, 384, 512, 1040, 2304)
TOPK = (1, 2, 8, 6, 10, 33, 0)  # 0: all that there are
GROUPED = (  # groups of so many
    (2, 1), (8, 32), (8, 20), (4, 18), (2, 33), (4, 2), (2, 7), (3, 130), (8, 1), (4, 16), (5, 3), (20, 2), (17, 3), (4, 130),
    (40, 3), (70, 2), (300, 2),
)  # fmt: skip
LARGE = (  # groups of more experts than a word has bits, or than a byte counts, of one case in 16
    (3, 130), (4, 130), (2, 96), (5, 80), (3, 300), (2, 520),
)  # fmt: skip
MODELS = (  # E, k, groups, of which so many stay, scoring, with a bias: routers of models
    (128, 8, 1, 1, "softmax", False), (128, 4, 1, 1, "softmax", True), (512, 10, 1, 1, "softmax", False),
    (256, 8, 8, 4, "sigmoid", True), (160, 6, 8, 3, "softmax", False), (384, 8, 1, 1, "sigmoid", True),
    (64, 6, 1, 1, "softmax", False), (60, 4, 1, 1, "softmax", False), (16, 1, 1, 1, "sigmoid", False),
)  # fmt: skip
MODEL_TOKENS = (256, 130, 1024)
SPREADS = (1.0, 0.2, 6.0, 200.0, 6e4)  # of the logits; the last as far as float16 reaches
LOW = -24.0  # about which all logits lie in a third of a sigmoid's cases of little spread: every score is next to 0
SCALES = (1.0, 2.5, 0.5, -1.0, 0.0, 1e30, 2.8269999027252197)  # the last is 2.827 in float32, which 16 bits do not hold
LAYOUTS = {"logits": READ_ROWS, "correction_bias": FAR_PARAMETERS}
BIAS_SIZES = {"zeros": 0.0, "small": 2.0**-7, "reorders": 0.5, "rules": 40.0, "overflows": 3e38}


@dataclass(frozen=True, kw_only=True)
class TopkCase(Case):
    """Rows of `tokens`, of which `pads` are no tokens."""

    tokens: int = 1
    experts: int = 1
    topk: int = 1
    groups: int = 1
    kept: int = 1
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scaling: float = 1.0
    bias: Literal["none", "call", "float32"] = "none"
    bias_size: Literal["zeros", "small", "reorders", "rules", "overflows"] = "reorders"
    """`overflows`: all of one sign, and in float32 two of them may add up to an infinity."""
    pads: int | None = None
    """None: the argument is left out."""
    values: Literal["random", "few", "near", "equal"] = "random"
    """`few`: whole numbers from -2 to 2, so that most choices are ties. `near`: one number and its neighbours in the dtype.
    `equal`: some are 0, the others -inf, so that weights are exact."""
    spread: float = 1.0
    masked: bool = False
    """Some logits are -inf, in some rows all of them."""
    broken: bool = False
    """Every third row has a NaN or +inf."""

    @property
    def size(self) -> int:
        """Experts of a group."""
        return self.experts // self.groups


FIELDS = together({
    "dtype": float_dtypes,
    **common(LAYOUTS, []),
    "renormalize": either,
    "scaling": any_of(*SCALES),
    "bias_size": any_of("reorders", "small", "zeros", "rules", "overflows"),
    "pads": any_of(None, None, None, None, 0, 1, 2, 20, 300),
    "values": any_of("random", "few", "near", "equal", "random", "few"),
    "spread": any_of(*SPREADS),
    "masked": any_of(False, False, False, True),
    "broken": any_of(False, False, False, False, True),
})


def completed(fields: dict[str, Any], tokens: int, experts: int, topk: int, groups: int, kept: int, **more: Any) -> TopkCase:
    """A case of the contract that comes as near as it can: groups divide the experts, and hold as many as are chosen."""
    biased = more["bias"] != "none"
    while experts % groups or (biased and groups > 1 and experts // groups < 2):
        groups -= 1
    kept = kept if kept <= groups else 1 + kept % groups  # were all to stay, their scores would not matter
    most = kept * (experts // groups)
    pads = fields.pop("pads")
    topk = min(topk, most) if topk else most
    return TopkCase(
        **fields, **more, tokens=tokens, experts=experts, groups=groups, kept=kept, topk=topk,
        pads=None if pads is None else min(pads, tokens),
    )


@st.composite
def strategy(draw: st.DrawFn) -> TopkCase:
    """Any routing, layouts and dtypes that the contract allows."""
    fields = draw(FIELDS)
    tokens, experts, groups = draw(any_of(*TOKENS), label="tokens"), draw(any_of(*EXPERTS), label="experts"), 1
    if draw(either, label="in groups"):
        groups, size = draw(any_of(*GROUPED), label="groups")
        experts = groups * size
    rare, most = draw(between(0, 95), label="rare"), None
    if rare >= 94:
        few = draw(any_of(2, 3), label="few")
        fields, (tokens, experts), groups = near(fields), (LONG, few) if rare == 95 else (few, LONG), 1
        most = MOST_OF_LONG
    if large := 88 <= rare < 94:  # of which one stays, which no tie decides
        groups, size = draw(any_of(*LARGE), label="large groups")
        fields, experts = fields | {"values": "random", "masked": False}, groups * size
    topk, kept = draw(any_of(*TOPK), label="topk"), draw(any_of(1, 2, 4, 3, 8, 15, 17, 33), label="groups that stay")
    more = {"scoring": draw(any_of("softmax", "sigmoid")), "bias": draw(any_of("none", "none", "call", "float32"))}
    if groups > 1 and fields["bias_size"] == "overflows":  # of two floats, where groups have sums
        more["bias"] = "float32"
    if large:
        more, kept = more | {"bias": ("call", "float32", "none")[rare % 3]}, 1
    return completed(fields, tokens, experts, min(topk or most, most) if most else topk, groups, kept, **more)


@cache
def models(slow: bool) -> st.SearchStrategy[TopkCase]:
    """Routers of models over a prompt: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> TopkCase:
    fields, (experts, topk, groups, kept, scoring, biased) = draw(FIELDS), draw(any_of(*MODELS), label="router")
    tokens = draw(shrinking(draw(any_of(*MODEL_TOKENS), label="tokens")))
    more = {"scoring": scoring, "bias": draw(any_of("call", "float32")) if biased else "none"}
    return completed(fields, tokens, draw(shrinking(experts)), draw(shrinking(topk)), groups, kept, **more)


def _logits(case: TopkCase) -> Tensor:
    shape, dtype = (case.tokens, case.experts), getattr(torch, case.dtype)
    if case.values == "few":
        return small_integers(case.seed, "logits", shape, dtype)
    if case.values == "near":
        steps = small_integers(case.seed, "logits", shape, torch.float64)
        # A step of so many bits: neighbours near 1, of which some are equal after rounding.
        return (1 + steps * 2.0 ** -{"bfloat16": 7, "float16": 10, "float32": 22}[case.dtype]).to(dtype)
    if case.values == "equal":
        drawn = torch.from_numpy(generator(case.seed, "live").integers(0, 3, size=shape))
        return torch.tensor([-torch.inf, 0.0, -0.0], dtype=dtype)[drawn]
    if is_low(case):
        return uniform(case.seed, "logits", shape, scale=case.spread).add_(LOW).to(dtype)
    return uniform(case.seed, "logits", shape, dtype, case.spread)


def is_low(case: TopkCase) -> bool:
    return case.values == "random" and case.spread <= 6 and case.scoring == "sigmoid" and case.seed % 3 == 1


def _last_first(case: TopkCase, logits: Tensor) -> Tensor:
    """Of very many experts the last ones are the best of half of the cases: few would be chosen by chance."""
    if case.experts == LONG and case.seed % 2 and case.values != "equal":
        logits[:, -3:] = logits.amax(-1, keepdim=True) + (1 + torch.arange(3)).to(logits.dtype)
    return logits


def _bias(case: TopkCase) -> Tensor | None:
    if case.bias == "none":
        return None
    dtype: torch.dtype = getattr(torch, case.dtype) if case.bias == "call" else torch.float32
    size = min(BIAS_SIZES[case.bias_size], torch.finfo(dtype).max)
    if case.values == "random":
        bias = uniform(case.seed, "bias", (case.experts,), dtype, size)
    else:
        bias = small_integers(case.seed, "bias", (case.experts,), dtype, 1) * size
    if case.bias_size == "overflows":
        some = -0.9 * size - 0.1 * bias.abs() if case.seed % 4 == 1 else -bias.abs()  # all sums overflow, or some
        bias = bias.abs() if case.seed % 4 == 0 else some
    if case.broken and case.seed % (2 if case.topk == case.experts else 3) == 0:  # of all the last, too, is to be another
        bias[case.seed // 3 % case.experts] = (-torch.inf, torch.inf, torch.nan, -torch.inf)[case.seed // 9 % 4]
    return bias


def inputs(case: TopkCase) -> Inputs:
    """Poison in the rows that are no tokens, unless all rows share their memory."""
    logits = _last_first(case, _logits(case))
    if case.masked and case.experts:
        drawn = torch.from_numpy(generator(case.seed, "masked").integers(0, 4, size=tuple(logits.shape)))
        logits[drawn == 0] = -torch.inf
        if case.seed % 3 == 0:  # beside them the smallest number, with which others mask
            drawn[::5] = drawn[::5].clamp(max=1) * 2  # at times nothing else
            logits[drawn > 1] = torch.finfo(logits.dtype).min
        logits[4::7] = -torch.inf
    if case.broken:
        where = generator(case.seed, "broken").integers(0, case.experts, size=case.tokens)
        for t in range(0, case.tokens, 3):
            logits[t, int(where[t])] = torch.nan if t % 2 == case.seed % 2 else torch.inf
            if t % 2 == case.seed % 2 and t // 2 % 2:
                set_sign(logits, (t, int(where[t])))
    valid = case.tokens - (case.pads or 0)
    if case.layout.get("logits") != EXPANDED:
        logits[valid:] = poison_value(case.poison, logits.dtype)
    return {
        "logits": logits, "topk": case.topk, "scoring": case.scoring, "renormalize": case.renormalize,
        "correction_bias": _bias(case), "num_expert_group": case.groups, "topk_group": case.kept,
        "scaling_factor": case.scaling, "num_valid": None if case.pads is None else valid,
    }


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: case.tokens * case.experts}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: case.tokens == 0,
    "more rows than 16 bits count": lambda case: case.tokens == LONG,
    "more experts than 16 bits count": lambda case: case.experts == LONG and case.tokens > 0,
    "one expert": lambda case: case.experts == 1,
    "all experts are chosen": lambda case: case.topk == case.experts > 1,
    "a partial vector": lambda case: case.experts % 16 > 0,
    "more than 256 experts": lambda case: case.experts > 256,
    "groups that are no whole vectors": lambda case: case.groups > 1 and case.size % 16 > 0,
    "one group stays": lambda case: case.groups > 1 == case.kept,
    "all groups stay": lambda case: case.groups == case.kept > 1,
    "ties": lambda case: case.values == "few" and case.bias == "none" and case.experts > 5,
    "ties of c": lambda case: case.values == "few" and case.bias != "none" and case.experts > 5,
    "ties of groups": lambda case: case.values == "few" and case.groups > case.kept and case.tokens > 2,
    "nothing else is left": lambda case: case.values == "equal" and case.topk > case.experts // 2 > 1,
    "a row of -inf": lambda case: case.masked and case.tokens > 4,
    "rows with NaN and +inf": lambda case: case.broken and case.tokens > 3,
    "rows that are no tokens": lambda case: bool(case.pads) and case.tokens > 2,
    "a bias that reorders": lambda case: case.bias != "none" and case.bias_size == "reorders" and case.experts > 2,
    "a bias that rules": lambda case: case.bias != "none" and case.bias_size == "rules" and case.experts > 2,
    "sums of biases overflow": lambda case: case.bias == "float32" and case.bias_size == "overflows" and case.groups > case.kept,
    "logits far apart": lambda case: case.values == "random" and case.spread > 1e4 and case.experts > 2,
    "saturated scores": lambda case: case.values == "random" and case.spread == 200 and case.scoring == "sigmoid",
    "scores that all are next to 0": lambda case: (
        is_low(case) and case.renormalize and not case.masked and case.experts > 2
    ),
    "shares of all experts": lambda case: not case.renormalize and case.scoring == "softmax" and case.experts > 1,
    "strided bias": lambda case: case.bias != "none" and case.layout.get("correction_bias") == "strided",
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
