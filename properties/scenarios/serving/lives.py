"""Which lives of a server are drawn, and how one that fails is made plainer."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from kernelpair.call.layout import DENSE_LAST
from properties.scenarios.serving.cases import CHUNK, PAGED_ONLY, ServingCase, Step
from properties.scenarios.serving.wrong import WRONG
from properties.shared.strategies import between, choices, common

LONG_STRETCH = 24  # so that a prompt of 24 has more keys than a decode takes in one piece
OPTIONS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "stack": ("one", "mixed", "encoder", "local", "float8", "latent", "hybrid", "sharing", "draft", "draft", "encoder", "latent",
              "latent", "float8"),
    "paged": (False, True),
    "latent_pages": ("decodes", "all", "all"),  # the backend that serves all knows caps and windows
    "page": (1, 2, 4, 16),
    "replayed": (False, True, True, True),
    "recorded": (False, True),
    "drafts": (2, 1, 3, 4, 3),
    "tentative": (False, True),
    "more": ("", "cap", "sinks", "window", "all", "all"),
    "float8": ("float8_e4m3fn", "float8_e5m2"),
    "state": ("float32", "float32", "bfloat16"),
    "conv_layout": ("SD", "DS"),
    "state_layout": ("vk", "kv"),
    "spread": (1.0, 0.1, 4.0),
    "size": (1.0, 0.1, 30.0),
    "provoked": (False, True, True),
    "narrow": (1, 0, 127, 6, 57, 80),
    "stretch": (1,) * 6 + (LONG_STRETCH,),
}
LONG_LAYERS: tuple[dict[str, Any], ...] = (
    *({"stack": "latent", "paged": True, "latent_pages": "decodes", "replayed": replayed} for replayed in (False, True) * 2),
    *({"stack": stack, "paged": False} for stack in ("one", "mixed", "sharing", "latent")),
    *({"stack": stack} for stack in ("latent", "encoder", "draft")),
)
"""What a stretched life serves: most of it where a backend's scratch depends on how long its requests are."""
KINDS = ("arrive", "extend", "decode", "extend", "decode", "arrive", "verify", "extend", "decode", "finish", "verify", "bad",
         "decode", "extend", "arrive", "capture", "bad")  # fmt: skip
NUMBERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "arrive": ((1, 2, 3, 5, 8, 9, 13, 16, 17, 24), (0, 1, 3, 5), (0, 0, 1, 2, 3)),
    "extend": ((1, 2, 3, 7, 8, 16, 24), (0, 0, 1, 4, 9), (0, 15, 1, 2)),
    "decode": ((15, 1, 2, 5, 3, 0), (0, 0, 1, 2), (0, 0, 1)),
    "verify": ((15, 1, 2, 3), tuple(range(0, 625, 39)), (0, 3, 5, 1)),
    "finish": ((0, 1, 2, 3), (0,), (0,)),
    "capture": ((1, 2, 4, 6), (0,), (0,)),
    "bad": ((*range(len(WRONG)), 10, 11, 12, 10, 11), (0, 1), (0, 31, len(WRONG) - 1)),
}
SHORT_REQUESTS, SHORT_STEPS, SHORT_LIVES = 3, 8, 600
SHORT_KINDS = ("extend", "extend", "decode", "decode", "verify")
LONG: dict[str, tuple[tuple[int, ...], ...]] = {
    "arrive": ((13, 16, 17, 24), (0, 1, 3, 5), (0,)),
    "extend": ((16, 24), (0, 9, 24), (0, 15)),
    "decode": ((15,), (0, 1, 2), (0,)),
}
"""Numbers by which a short life needs as much room as a long one."""
LONG_OPENING = ("extend", "extend", "decode", "decode")
LONG_STEPS = 8  # each of them attends and compares as many keys as a short life does
TURNS = ("arrive",)
IN_TURN: tuple[Step, ...] = (("extend", 24, 24, 0), ("decode", 1, 0, 0), ("decode", 2, 0, 0), ("decode", 1, 0, 0))
BEHIND_ONE = ("arrive", "extend")
OPENINGS = (
    (), (), ("arrive", "arrive", "arrive", "extend", "extend"), TURNS, BEHIND_ONE, ("extend", "verify", "verify", "verify")
)  # fmt: skip
"""How a life may begin behind its first request: as it comes, with more tokens than the pools hold, with two requests that decode
in turns, with the first token of one request and a prefill of the next in one step, with drafts at once."""
ROUNDS = (1, 2, 3, 5)  # lists of steps, of up to twelve each
LAYOUTS = {f"{name}{number}": DENSE_LAST for number in range(3) for name in ("k", "v")}
LAYOUTS |= {"conv1": DENSE_LAST, "ssm1": DENSE_LAST}
FUSED = tuple((f"k{number}", f"v{number}") for number in range(3))
FIELDS = st.fixed_dictionaries(common(LAYOUTS, (), FUSED))


def _step(kind: str, code: int, of: Mapping[str, tuple[tuple[int, ...], ...]] = NUMBERS) -> Step:
    numbers = []
    for options in of[kind]:
        code, digit = divmod(code, len(options))
        numbers.append(options[digit])
    return kind, numbers[0], numbers[1], numbers[2]


CODE = st.integers(0, 839)
STEP = st.tuples(st.sampled_from(KINDS), CODE).map(lambda drawn: _step(*drawn))
ARRIVAL = st.integers(0, 199).map(lambda code: _step("arrive", code))
STEPS = st.lists(STEP, max_size=12)


@st.composite
def strategy(draw: st.DrawFn) -> ServingCase:
    """Any stack that its backend can serve, and up to sixty steps."""
    options = draw(choices(OPTIONS))
    fields = draw(FIELDS)
    if options["stretch"] > 1:
        options |= LONG_LAYERS[fields["seed"] % len(LONG_LAYERS)]
    several = options["stack"] == "draft" and options["drafts"] > 2 and fields["seed"] % 4  # steps over one metadata
    if options["stack"] in PAGED_ONLY or several:
        options["paged"] = True
    options["replayed"] |= bool(several)
    options["provoked"] |= bool(several) and fields["seed"] % 4 > 1
    if options["stack"] == "latent" and fields["seed"] % 8 not in (5, 7):  # over pages: with all that there is, or by mla_decode
        plain = fields["seed"] % 8 in (2, 3, 6)
        options |= {"paged": True, "latent_pages": "decodes" if plain else "all", "more": options["more"] if plain else "all"}
    if options["stack"] == "float8" and fields["seed"] % 4 == 1:  # keys that need neither a division nor a conversion
        options["dtype"] = "float32"
    options["page"] = _page(options)
    options["recorded"] &= options["replayed"]
    if options["stretch"] > 1:
        return ServingCase(steps=_long_life(draw), **options, **fields)
    first = draw(ARRIVAL, label="first")
    kinds: tuple[str, ...] = draw(st.sampled_from(OPENINGS), label="opening")
    if options["stack"] == "draft":
        kinds = OPENINGS[-1]
    if options["stack"] == "encoder":  # of whose lengths a replay may keep the first ones
        kinds = TURNS
        options["replayed"] |= fields["seed"] % 4 > 0
    if options["stack"] == "hybrid" and fields["seed"] % 2:  # whose states a decode takes as they are
        kinds = BEHIND_ONE
    opening = [_step(kind, draw(CODE, label=kind), NUMBERS | LONG) for kind in kinds]
    if kinds == BEHIND_ONE:
        opening[-1] = ("extend", 1, opening[-1][2] or 4, 0)
    if kinds == TURNS:  # two encoders of different length, where the layers have any
        (_, tokens, encoder, share), encoders = opening[0], NUMBERS["arrive"][1]
        other = encoder if encoder != first[2] else encoders[encoders.index(encoder) - 1]
        opening = [("arrive", tokens, other, share), *IN_TURN]
    rounds = draw(st.sampled_from(ROUNDS), label="rounds")
    steps = [step for _ in range(rounds) for step in draw(STEPS, label="steps")]
    return ServingCase(steps=(first, *opening, *steps)[:60], **options, **fields)


def _long_life(draw: st.DrawFn) -> tuple[Step, ...]:
    """A few steps over two requests or more, one of which has hundreds of tokens."""
    long, other = ("arrive", 24, draw(CODE, label="encoder") % 6, 0), _step("arrive", draw(CODE, label="other"))
    arrivals = (long, other) if draw(between(0, 2), label="order") == 2 else (other, long)
    opening = [_step(kind, draw(CODE, label=kind), LONG) for kind in LONG_OPENING]
    return (*arrivals, *opening, *draw(STEPS, label="steps"))[:LONG_STEPS]


def _page(options: dict[str, Any]) -> int:
    """A page that chunks of local attention are whole numbers of."""
    return min(options["page"], CHUNK) if options["stack"] in PAGED_ONLY else options["page"]


def simpler(case: ServingCase) -> Iterator[ServingCase]:
    """The case without some of its steps, half of them first; with a field at its default; with a number of a step made plain.
    Where it stays long, short ones that are drawn anew."""
    steps, length = case.steps, len(case.steps)
    size = length // 2
    while size:
        for start in range(0, length, size):
            yield replace(case, steps=steps[:start] + steps[start + size :])
        size //= 2
    plain = ServingCase(stack=case.stack, paged=case.stack in PAGED_ONLY, steps=steps)
    for spec in fields(case):
        if getattr(case, spec.name) != getattr(plain, spec.name):
            yield replace(case, **{spec.name: getattr(plain, spec.name)})
    for i, (kind, which, who, more) in enumerate(steps):
        for number in range(which, min(which + more + 1, len(WRONG))) if kind == "bad" and more else ():
            yield replace(case, steps=(*steps[:i], ("bad", number, who, 0), *steps[i + 1 :]))
    for i, (kind, *numbers) in enumerate(steps):
        for j, (number, options) in enumerate(zip(numbers, NUMBERS[kind])):
            for other in options[: options.index(number)] if number in options else ():
                changed = [*numbers[:j], other, *numbers[j + 1 :]]
                yield replace(case, steps=(*steps[:i], (kind, changed[0], changed[1], changed[2]), *steps[i + 1 :]))
    if sum(step[0] == "arrive" for step in steps) > SHORT_REQUESTS or length > SHORT_STEPS:
        yield from (replace(case, steps=life) for life in _short_lives(case.seed))


def _short_lives(seed: int) -> Iterator[tuple[Step, ...]]:
    """What took many requests a few steps at a time, a few long ones may show at once; no smaller form of it leads there."""
    draw = Random(seed)

    def step(kind: str) -> Step:
        first, second, third = (draw.choice(options) for options in (NUMBERS | LONG)[kind])
        return kind, first, second, third

    for _ in range(SHORT_LIVES):
        *arrivals, last = (step("arrive") for _ in range(SHORT_REQUESTS))
        others = [step(draw.choice(SHORT_KINDS)) for _ in range(SHORT_STEPS - SHORT_REQUESTS)]
        late = draw.randrange(len(others) + 1)
        yield (*arrivals, *others[:late], last, *others[late:])
