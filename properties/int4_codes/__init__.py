"""int4_codes on trial: codes of four bits and zero points out of words of eight, as GPTQ and AWQ publish them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from kernelpair.call.layout import ANY_STRIDES
from kernelpair.call.values import generator
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Relation, Signature
from kernelpair.trial.session import Session
from optimized import int4_linear as optimized
from properties.shared.packed_weights import LONG, MEASURES, WeightCase, of_models, of_sizes
from properties.shared.strategies import any_of, common, near, together
from properties.shared.wrong_calls import cast, changed, grown, made, one_rank_more, replaced, setting
from properties.thresholds import branches
from reference import int4_codes as reference

RESULTS = ("codes", "zeros")
FORMATS = ("gptq", "awq")
OUTPUTS = (8, 16, 24, 40, 64, 96, 416)  # N
DEPTHS = (8, 16, 32, 40, 64, 128, 1024)  # K; of awq any number
SHAPES = ((28_672, 24), (64, 14_336), (8, 65_536), (4096, 256))
GROUPS = (1, 2, 3, 8, 33, 130, 896)  # the last: of 32 columns each, in a layer of 28,672
MANY_GROUPS = 70_000  # of one case in 8, of few outputs: more than 16 bits count
FEW_OUTPUTS = 16
FEW_GROUPS = 8  # of a weight with very many outputs
LAYOUTS = dict.fromkeys(("qweight", "qzeros"), (*ANY_STRIDES, "transposed", "far", "far_columns"))


@dataclass(frozen=True, kw_only=True)
class WordsCase(WeightCase):
    """Words of eight codes of a weight [N, K], and of the zero points of its groups."""

    N: int = 8
    K: int = 8
    format: Literal["gptq", "awq"] = "gptq"
    groups: int = 1
    zero_offset: int = 1
    """What gptq's zero points are stored less."""
    fewer: int = 0
    """Columns less than K, of awq."""


FIELDS = together({
    **common(LAYOUTS, []),
    "format": any_of(*FORMATS),
    "groups": any_of(*GROUPS, MANY_GROUPS),
    "zero_offset": any_of(1, 0),
    "fewer": any_of(0, 1, 3),
})  # fmt: skip


def _whole(N: int, K: int, **fields: Any) -> WordsCase:
    """Whole words either way; outputs that are few where groups are many."""
    if fields["groups"] == MANY_GROUPS:
        N, fields = min(N, FEW_OUTPUTS), near(fields)
    elif N == LONG:
        fields["groups"] = min(fields["groups"], FEW_GROUPS)
    return WordsCase(N=-(-N // 8) * 8, K=-(-K // 8) * 8, **fields)


def inputs(case: WordsCase) -> Inputs:
    """Words of any bits, the last one of which is data too."""
    K = case.K if case.format == "gptq" else case.K - case.fewer
    shape = (K // 8, case.N) if case.format == "gptq" else (K, case.N // 8)
    words = {"qweight": _words(case.seed, "qweight", shape), "qzeros": _words(case.seed, "qzeros", (case.groups, case.N // 8))}
    return {"format": case.format, **words, "zero_offset": case.zero_offset if case.format == "gptq" else None}


def _words(seed: int, name: str, shape: tuple[int, int]) -> Tensor:
    drawn = generator(seed, name).integers(-(2**31), 2**31 - 1, size=shape, dtype="int32", endpoint=True)
    return torch.from_numpy(drawn)


def _of(side: Any) -> Any:
    def call(format: str, qweight: Tensor, qzeros: Tensor, zero_offset: int | None) -> tuple[Tensor, Tensor]:
        if format == "awq":
            codes, zeros = side.int4_from_awq(qweight, qzeros)
        else:
            codes, zeros = side.int4_from_gptq(qweight, qzeros, zero_offset)
        return codes, zeros

    return call


# Calls by name: a side's function takes these arguments.
call_reference = _of(reference)
call_optimized = _of(optimized)


def _stored(values: Tensor, order: tuple[int, ...]) -> Tensor:
    """Words of eight values along the last dimension, of which nibble i is the one at order[i]."""
    eights = values.to(torch.int64).unflatten(-1, (-1, 8))[..., list(order)]
    return (eights << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)


def _other_format(case: WordsCase, session: Session) -> None:
    """The same codes as the other format stores them."""
    codes, zeros = (session.first.outputs[name] for name in RESULTS)
    plain = tuple(range(8))
    if case.format == "awq":
        words = {"qweight": _stored(codes, plain).T.contiguous(), "qzeros": _stored(zeros.T, plain), "zero_offset": 0}
        other = replace(case, format="gptq", zero_offset=0, layout={})
    else:
        stored = {"qweight": codes, "qzeros": zeros - case.zero_offset}
        words = {name: _stored(values.T, reference.AWQ_ORDER) for name, values in stored.items()} | {"zero_offset": None}
        other, zeros = replace(case, format="awq", fewer=0, layout={}), zeros - case.zero_offset
    got = session.run(other, {"format": other.format, **words}, judged=False).outputs
    session.expect_same("codes", got["codes"], codes, "both formats of the same codes agree")
    session.expect_same("zeros", got["zeros"], zeros, "both formats of the same zero points agree")


def _dense(case: WordsCase, session: Session) -> None:
    got = session.run(replace(case, layout={}), session.inputs(), judged=False).outputs
    for name in RESULTS:
        session.expect_same(name, got[name], session.first.outputs[name], "dense tensors")


def _parts(case: WordsCase, session: Session) -> None:
    """Words do not depend on each other: the outputs from the middle on alone."""
    given, first = session.inputs(), case.N // 16 * 8
    words = first if case.format == "gptq" else first // 8
    rest = {"qweight": given["qweight"][:, words:].clone(), "qzeros": given["qzeros"][:, first // 8 :].clone()}
    got = session.run(replace(case, layout={}, N=case.N - first), given | rest, judged=False).outputs
    for name in RESULTS:
        session.expect_same(name, got[name], session.first.outputs[name][first:], "the later outputs alone")


def _gptq(case: Any) -> bool:
    return bool(case.format == "gptq")


PAIR = Pair(
    name="int4_codes",
    reference=call_reference,
    optimized=call_optimized,
    cases=Cases(
        type=WordsCase,
        version=1,
        strategy=of_sizes(_whole, FIELDS, OUTPUTS, DEPTHS),
        inputs=inputs,
        models=of_models(_whole, FIELDS, SHAPES),
    ),
    signature=Signature(results=RESULTS, dtypes=(), layouts=LAYOUTS),
    truth=Exact(),
    relations={
        "formats": Relation(_other_format, "both formats of the same codes agree",
                            lambda case: case.format == "gptq" or (case.K - case.fewer) % 8 == 0),
        "layout": Relation(_dense, "strides do not matter"),
        "parts": Relation(_parts, "words do not depend on each other", lambda case: case.N > 8),
    },
    wrong_calls={
        "rank": one_rank_more("qweight"),
        "empty": changed("qweight", lambda words: words[:0], ValueError),
        "bytes": cast("qweight", torch.uint8),
        "long": cast("qweight", torch.int64),
        "none": replaced("qweight", None, TypeError),
        "zeros_rank": one_rank_more("qzeros"),
        "zeros_empty": changed("qzeros", lambda words: words[:0], ValueError),
        "zeros_dtype": cast("qzeros", torch.float32),
        "zeros_none": replaced("qzeros", None, TypeError),
        "zeros_outputs": grown("qzeros", 1, "qweight"),
        "outputs_of_no_word": grown("qweight", 1, "qzeros"),
        "zero_offset_two": made(setting(zero_offset=2), ValueError, "zero_offset", when=_gptq),
        "zero_offset_negative": made(setting(zero_offset=-1), ValueError, "zero_offset", when=_gptq),
    },
    coverage=Coverage(
        edges={
            "one word of outputs": lambda case: case.N == 8,
            "K of no whole words": lambda case: case.format == "awq" and case.fewer > 0,
            "several groups": lambda case: case.groups > 1,
            "more groups than 16 bits count": lambda case: case.groups > 2**16,
            "transposed": lambda case: case.layout.get("qweight") == "transposed" and case.K > 8 and case.N > 8,
            **{f"format {name}": lambda case, name=name: case.format == name for name in FORMATS},  # type: ignore[misc]
            **{f"zero_offset {n}": lambda case, n=n: _gptq(case) and case.zero_offset == n for n in (0, 1)},  # type: ignore[misc]
        },
        measures=MEASURES | {"codes": lambda case: case.N * case.K},
        branches=partial(branches, "int4_codes"),
    ),
)  # fmt: skip
