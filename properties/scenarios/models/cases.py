"""Cases of the model trial: a small model of a family that exists, some requests, and how they are served. Nothing here needs the
package that holds the models."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hypothesis import strategies as st

from kernelpair.call.values import generator
from kernelpair.contract.case import Case
from properties.shared.strategies import choices, common
from serving.experts import Routing

LIBRARY_EPS = 1e-6  # of the library's L2 norm of q and k, where our default is the engines' 1e-5
LONGEST = 64  # decoder tokens of a request
VISION_TOKENS = 1601  # of a picture of one tile: 40 x 40 patches and one more
VOCABULARY = 48
HIDDEN = 16
LATENT = 16  # columns of a latent row that are its value
MLA_PAGE = 64  # slots of a page of the mla backend that is told no size
WINDOW = 6  # keys that a query of a windowed layer sees, itself among them


@dataclass(frozen=True)
class Family:
    """A model family: its classes and configuration in the outside library, and the kinds of its layers."""

    module: str
    config: str
    model: str
    options: dict[str, Any]
    kinds: tuple[str, ...]
    """Of each layer: full, window, cross, latent or gdn."""


SHARED = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 8, "num_attention_heads": 2,
    "max_position_embeddings": 256, "pad_token_id": 0, "use_cache": False,
}  # fmt: skip
FAMILIES = {
    "gemma2": Family(
        "gemma2.modeling_gemma2", "Gemma2Config", "Gemma2ForCausalLM",
        {"num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW,
         "attn_logit_softcapping": 3.0, "layer_types": ["sliding_attention", "full_attention"]},
        ("window", "full"),
    ),
    "gpt_oss": Family(
        "gpt_oss.modeling_gpt_oss", "GptOssConfig", "GptOssForCausalLM",
        {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2,
         "layer_types": ["sliding_attention", "full_attention"]},
        ("window", "full"),
    ),
    "mllama": Family(
        "mllama.modeling_mllama", "MllamaTextConfig", "MllamaForCausalLM",
        {"num_key_value_heads": 1, "cross_attention_layers": [1]},
        ("full", "cross", "full"),
    ),
    "deepseek_v3": Family(
        "deepseek_v3.modeling_deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM",
        {"num_key_value_heads": 2, "q_lora_rank": 12, "kv_lora_rank": LATENT, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
         "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
         "moe_intermediate_size": 8, "first_k_dense_replace": 1},
        ("latent", "latent"),
    ),
    "qwen3_moe": Family(
        "qwen3_moe.modeling_qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        {"num_key_value_heads": 1, "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 8,
         "norm_topk_prob": True},
        ("full", "full"),
    ),
    "qwen3_next": Family(
        "qwen3_next.modeling_qwen3_next", "Qwen3NextConfig", "Qwen3NextForCausalLM",
        {"num_key_value_heads": 1, "head_dim": 8, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
         "layer_types": ["linear_attention", "full_attention"]},
        ("gdn", "full"),
    ),
}  # fmt: skip
ROUTINGS = {"qwen3_moe": Routing(3), "deepseek_v3": Routing(2, "sigmoid", num_expert_group=2, topk_group=1, scaling_factor=2.5)}
"""Of the families whose experts are served by our layers: what their configurations above mean."""


@dataclass(frozen=True, kw_only=True)
class ModelCase(Case):
    """A model with random weights, and requests of which each has a prompt and then decodes."""

    family: Literal["gemma2", "gpt_oss", "mllama", "deepseek_v3", "qwen3_moe", "qwen3_next"] = "gemma2"
    prompts: tuple[int, ...] = (1,)
    decodes: int = 1
    """Decode steps of the run; which requests take part in each follows from the seed."""
    chunk: int = 8
    """Tokens of a prompt that one step takes at most."""
    paged: bool = False
    page: int = 1
    images: tuple[int, ...] = ()
    """Encoder tokens of the requests, where the family attends any; those beyond have none."""
    expanded: bool = False
    """Latent layers are served with the keys and values of an ordinary layer; else over their latents."""
    by_mode: bool = False
    """Latent layers take the form that suits each step, and project by themselves; else they are absorbed in all of them."""
    pages_alone: bool = False
    """Over pages, latent layers are prefilled there too; else over slots."""
    windowed: bool = False
    """Latent layers that choose their form see WINDOW keys; the library's function is given a mask that says so."""
    weights: Literal["", "int8", "fp8"] = ""
    """What weights of linear modules are packed as, with fp8 those of experts too; the library has their numbers."""


OPTIONS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "decodes": (1, 32, 32, 4),
    "chunk": (8, 64, 5, 1),
    "paged": (False, True),
    "page": (1, 4, 16),
    "weights": ("", "", "int8", "fp8"),
}
FAMILY = (*FAMILIES, "deepseek_v3")  # twice: its layers are served in five ways
LATENT_FORMS = st.fixed_dictionaries({
    "paged": st.sampled_from((False, True, True)),
    "expanded": st.sampled_from((False, False, False, False, True)),
    "by_mode": st.sampled_from((False, True, True, True)),
    "pages_alone": st.sampled_from((False, False, True)),
    "windowed": st.booleans(),
})  # fmt: skip
PROMPTS = st.lists(st.sampled_from((1, 3, 8, 17, 24)), min_size=1, max_size=3).map(tuple)
SEVERAL = st.lists(st.sampled_from((8, 17, 24, 17, 24)), min_size=2, max_size=3).map(tuple)
"""Prompts of which one often begins in a step that continues another."""
IMAGES = st.lists(st.sampled_from((0, 4, 7, 16)), max_size=3).map(tuple)
PICTURES = st.sampled_from(((VISION_TOKENS,), (VISION_TOKENS, 4), (0, VISION_TOKENS), (VISION_TOKENS, VISION_TOKENS)))


@st.composite
def strategy(draw: st.DrawFn) -> ModelCase:
    """Any family, up to three requests."""
    family = {"family": draw(st.sampled_from(FAMILY), label="family")}
    options, fields = draw(choices(OPTIONS)) | family, draw(st.fixed_dictionaries(common({}, ())))
    if options["family"] == "mllama":
        options["images"] = draw(st.sampled_from((*[IMAGES] * 3, PICTURES)).flatmap(lambda of: of), label="images")
    if options["family"] == "deepseek_v3":
        forms = draw(LATENT_FORMS, label="forms")
        of_either = ("expanded", "paged")
        options |= {name: value and (name in of_either or not forms["expanded"]) for name, value in forms.items()}
        if options["by_mode"] and options["windowed"]:  # the mla backend takes no window; steps that expand pass it
            options |= {"pages_alone": options["paged"], "chunk": options["chunk"] if options["chunk"] > WINDOW else 64}
    prompts = draw(st.one_of(PROMPTS, SEVERAL, SEVERAL) if options.get("by_mode") else PROMPTS, label="prompts")
    return ModelCase(prompts=prompts, **options, **fields)


def encoder_lens(case: ModelCase) -> list[int]:
    """Of each request; 0 in families without an encoder."""
    images = [*case.images, *[0] * len(case.prompts)]
    return images[: len(case.prompts)] if case.family == "mllama" else [0] * len(case.prompts)


def columns(case: ModelCase, page: int) -> int:
    """Of the request table: the longest encoder's whole pages, and the longest request."""
    return -(-max(encoder_lens(case), default=0) // page) * page + LONGEST


Span = tuple[int, int, int]
"""A request, its first token of a step, and how many."""


@lru_cache(maxsize=64)
def _schedule(seed: int, prompts: tuple[int, ...], decodes: int, chunk: int) -> tuple[tuple[str, tuple[Span, ...]], ...]:
    rng = generator(seed, "schedule")
    done = [0] * len(prompts)
    steps: list[tuple[str, tuple[Span, ...]]] = []
    while any(seen < prompt for seen, prompt in zip(done, prompts)):
        spans = []
        for r, prompt in enumerate(prompts):
            count = min(int(rng.integers(1, chunk, endpoint=True)), prompt - done[r])
            if count and (rng.integers(2) or r == next(n for n, p in enumerate(prompts) if done[n] < p)):
                spans.append((r, done[r], count))
        for r, _, count in spans:
            done[r] += count
        steps.append(("extend", tuple(spans)))
    for _ in range(decodes):
        chosen = [r for r in range(len(prompts)) if rng.integers(3) or len(prompts) == 1]
        spans = [(r, done[r], 1) for r in chosen if done[r] < LONGEST]
        for r, _, _ in spans:
            done[r] += 1
        if spans:
            steps.append(("decode", tuple(spans)))
    return tuple(steps)


def schedule(case: ModelCase) -> tuple[tuple[str, tuple[Span, ...]], ...]:
    """The steps: prompts in chunks, then decodes of a batch that changes from step to step."""
    return _schedule(case.seed, case.prompts, case.decodes, case.chunk)


def totals(case: ModelCase) -> list[int]:
    """Tokens of each request at the end."""
    found = [0] * len(case.prompts)
    for _, spans in schedule(case):
        for r, start, count in spans:
            found[r] = start + count
    return found


def absorbed(case: ModelCase) -> bool:
    """Whether latent layers are served over their latents."""
    return case.family == "deepseek_v3" and not case.expanded


def page_of(case: ModelCase) -> int:
    """Slots of a page. The mla backend takes none below 16; a backend whose size is its default is not told it."""
    if not case.paged:
        return 1
    return max(case.page, MLA_PAGE if case.seed % 2 else 16) if absorbed(case) and not case.pages_alone else case.page


def by_mode(case: ModelCase) -> bool:
    """Whether latent layers choose their form step by step."""
    return absorbed(case) and case.by_mode


def windowed(case: ModelCase) -> bool:
    """Whether latent layers have a window: where they choose their form, and no backend decodes that takes none."""
    return by_mode(case) and case.windowed and (case.pages_alone or not case.paged)


def expanded_tokens(case: ModelCase) -> list[bool]:
    """Of each token, request by request: whether its step continues nothing, so that a latent layer expands its keys."""
    lengths = totals(case)
    starts = [sum(lengths[:r]) for r in range(len(lengths))]
    found = [False] * sum(lengths)
    for mode, spans in schedule(case):
        if mode == "extend" and all(start == 0 for _, start, _ in spans):
            for r, _, count in spans:
                found[starts[r] : starts[r] + count] = [True] * count
    return found
